"""Beam search of a real run: weights are chosen on the validation set alone, said in its folder, and used on test."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainers.models.decoding.ngrams import HAS_WHEELS, Ngrams
from tests.trainers.models.decoding.test_rescoring import write_model
from tests.trainers.run_folder.test_checkpoint_parts import ThreadSession
from tests.trainers.synthetic import config
from trainers.config.schema import TrainConfig
from trainers.data import sounds
from trainers.data.prepared_set import PreparedSet
from trainers.distributed.session import LocalSession
from trainers.errors import ConfigError, ResumeError
from trainers.models.ctc.ctc_decode_part import Weights
from trainers.models.families import family_of
from trainers.models.recognizer import Recognizer, Search
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.evaluate import evaluate
from trainers.pipeline.fit import fit
from trainers.pipeline.splits import prepare_all
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import RunFolder
from trainers.scoring.scorer import Scorer, ScoringOptions, SplitScore
from trainers.training.planning import cache_bytes, scored_clips, scoring_options

SENTENCES = ("red", "green", "blue", "left right", "up and down", "stop", "go on then", "one two three four")
MODEL = {"init": "scratch", "family": "ctc", "d_model": 16, "encoder_layers": 1, "attention_heads": 2}
# Of a new output layer's weights, so that another symbol than one wins.
LOUD = 40
ALONE = LocalSession(0, 1, 0)

pytestmark = pytest.mark.skipif(not HAS_WHEELS, reason="flashlight-text has no wheels for this Python")


@pytest.fixture(scope="module")
def searching(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """Four steps of a model of mel frames, decoded with a word list, an n-gram model and a causal language model."""
    folder = tmp_path_factory.mktemp("decoding")
    (folder / "words.txt").write_text("\n".join({word for each in SENTENCES for word in each.split()}))
    return config(
        {
            "run.name": "searched",
            "run.storage_path": str(folder),
            **{f"data.{split}": str(tones / f"{split}.csv") for split in ("train", "validation", "test")},
            "model": MODEL,
            "training.max_steps": 4,
            "training.save_steps": 4,
            "decode.method": "beam",
            "decode.beam_size": 10,
            "decode.lexicon": str(folder / "words.txt"),
            "decode.lm": str(Ngrams(SENTENCES).write(folder / "lm.arpa")),
            "decode.rescoring_model": str(write_model(folder / "gpt")),
            "decode.lm_weight": [0.0, 2.0],
            "decode.word_score": [0.0, 4.0],
            "decode.rescoring_weight": [0.0, 0.5],
        }
    )


def changed(wanted: TrainConfig, part: str, **fields: Any) -> TrainConfig:
    """The config with some fields of a part changed."""
    return wanted.model_copy(update={part: getattr(wanted, part).model_copy(update=fields)})


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Folder of the prepared set and number of settings of each pass over a set, as they come."""
    seen: list[tuple[str, int]] = []
    original = Scorer.score

    def score(self: Scorer, options: ScoringOptions, *rest: Any, **named: Any) -> SplitScore:
        search = options.decoding.search
        seen.append((self._prepared.key, len(search.settings) if search is not None else 0))
        return original(self, options, *rest, **named)

    monkeypatch.setattr(Scorer, "score", score)
    return seen


def test_a_run_chooses_weights_on_validation_and_says_how_each_score_was_made(
    searching: TrainConfig, passes: list[tuple[str, int]]
) -> None:
    result = fit(searching, LocalEngine())
    folder = RunFolder.of(searching)
    environment = folder.read_json("environment.json")
    assert environment is not None
    keys = environment["data"]
    assert [each for each in passes if each[0] == keys["test"]] == [(keys["test"], 1)], "test is seen once, when chosen"
    assert passes == [(keys["validation"], 0), (keys["validation"], 8), (keys["test"], 1)]
    names = ("decoding", "test", "validation")
    tuned, test, validation = (folder.read_json(f"evaluation/{name}.json") for name in names)
    assert tuned is not None and test is not None and validation is not None
    assert len(tuned["trials"]) == 8 and tuned["data"] == keys["validation"] and tuned["rate"] == "wer"
    assert tuned["chosen"]["wer"] == min(each["wer"] for each in tuned["trials"]) <= 100
    assert tuned["best_path"]["wer"] == pytest.approx(validation["wer"])
    assert validation["decoding"] == {"method": "greedy"} and "best_path" not in validation
    chosen = {name: tuned["chosen"][name] for name in ("lm_weight", "word_score", "rescoring_weight")}
    assert {name: test["decoding"][name] for name in chosen} == chosen
    assert {len(test["decoding"][name]["sha256"]) for name in ("lexicon", "lm", "rescoring_model")} == {64}
    assert test["best_path"]["scored"] == test["scored"] == 6
    assert f"the best path's WER is {test['best_path']['wer']:.1f}%" in result.headline
    card = folder.storage.read_bytes("model/README.md").decode()
    assert "| test, the best path |" in card and "lm lm.arpa (SHA-256" in card and "uses the best path" in card
    assert "rescoring_model gpt," in card and str(searching.run.storage_path) not in card
    assert fit(searching, LocalEngine()).totals == result.totals, "a finished run shows its score again"
    with pytest.raises(ResumeError, match=r"was scored with other decode settings; .* rayscribe evaluate"):
        fit(changed(searching, "decode", lm_weight=[1.0]), LocalEngine())
    model = f"{searching.run.storage_path}/searched"
    again = evaluate(searching, LocalEngine(), model=model, split="test")
    assert again.totals == test, "opened again, it chooses the same and scores the same"
    assert "weights_chosen_on_this_set" not in test["decoding"] and "chosen on this set" not in again.headline
    tuned_on = evaluate(searching, LocalEngine(), model=model, split="validation")
    assert tuned_on.totals["decoding"]["weights_chosen_on_this_set"] is True
    assert "decode's weights were chosen on this set" in tuned_on.headline


def test_the_base_is_compared_with_checkpoints_without_the_search_that_only_final_scores_have(
    searching: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in sounds.SOUNDS:
        monkeypatch.setitem(sounds.SOUNDS, name, lambda: [sounds.silence()[0]])
    fit(searching, LocalEngine())
    model = f"{searching.run.storage_path}/searched/model"
    conditions = {"validation.wer": "> 1000", "silence.words_per_minute": "> base"}
    wanted = config(
        {
            "run.name": "gated",
            "run.storage_path": str(tmp_path),
            "data": searching.data.model_dump(),
            "model": {"family": "ctc", "name_or_path": model},
            "training": searching.training.model_dump() | {"learning_rate": 1e-12},
            "decode": searching.decode.model_dump(),
            "evaluate.guard": "default",
            "checkpoint.refuse_if": conditions,
        }
    )
    base = fit(wanted, LocalEngine()).base
    greedy = changed(searching, "decode", method="greedy", **dict.fromkeys(searching.decode.sources))
    alone = evaluate(greedy, LocalEngine(), model=model, split="validation")
    assert base["validation"]["wer"] == alone.totals["wer"] and "best_path" not in base["validation"]
    assert base["test"]["best_path"]["wer"] != base["test"]["wer"]
    (checkpoint,) = Journal(RunFolder.of(wanted)).read().checkpoints
    # Its weights are nearly those of the base.
    assert checkpoint.metrics["eval_silence_words_per_minute"] == base["silence"]["best_path"]["words_per_minute"]
    assert checkpoint.metrics["eval_wer"] == base["validation"]["wer"] and "eval_refused" not in checkpoint.metrics


def test_a_finished_model_is_scored_by_weights_that_are_given_without_a_validation_set(
    searching: TrainConfig, passes: list[tuple[str, int]]
) -> None:
    fit(searching, LocalEngine())
    model, alone = f"{searching.run.storage_path}/searched", changed(searching, "data", validation=None)
    passes.clear()
    with pytest.raises(ConfigError, match=r"data\.validation: there is none, and the decode setting is chosen on it"):
        evaluate(alone, LocalEngine(), model=model, split="test")
    with pytest.raises(ConfigError, match=r"names the variable SPEECH, which is not set, and the decode setting"):
        evaluate(changed(searching, "data", validation="${SPEECH}/v.csv"), LocalEngine(), model=model, split="test")
    given = changed(alone, "decode", lm_weight=[0.5], word_score=[2.0], rescoring_weight=[0.0])
    with pytest.raises(ConfigError, match=r"1 to decode\.beam_size = 10 hypotheses; raise the beams"):
        evaluate(given, LocalEngine(), model=model, split="test", nbest=11)
    result = evaluate(given, LocalEngine(), model=model, split="test", nbest=3)
    assert [count for _, count in passes] == [1]
    folder = RunFolder.of(changed(searching, "run", name=result.folder.removeprefix(f"{searching.run.storage_path}/")))
    assert not folder.storage.exists("evaluation/decoding.json")
    for line in map(json.loads, folder.storage.read_bytes("evaluation/test.jsonl").splitlines()):
        assert line["nbest"][0] == {"text": line["hypothesis"], "avg_logprob": pytest.approx(line["avg_logprob"])}
        assert 1 <= len(line["nbest"]) <= 3 and set(line["hypothesis"].split()) <= set(" ".join(SENTENCES).split())


@pytest.fixture(scope="module", params=["layer", "group"])
def babbling(request: pytest.FixtureRequest, searching: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model, of a kind of norm, that says something else of each clip: new, with a loud output layer."""
    part = {**MODEL, "architecture": "wav2vec2", "feat_extract_norm": request.param, "feature_encoder_dim": 16}
    wanted = changed(changed(searching, "model", **part), "data", normalizer="basic")
    folder = tmp_path_factory.mktemp(request.param)
    family = family_of(wanted.model)
    family.write_description(folder, SENTENCES, wanted.model)
    recognizer = family.load_recognizer(wanted.model, folder, seed=1)
    with torch.no_grad():
        recognizer.model.lm_head.weight.mul_(LOUD)
    # Ranks that are threads share it.
    recognizer.model.eval()
    return wanted, recognizer, prepare_all(wanted, LocalEngine(), ("validation",))["validation"]


def scored(
    wanted: TrainConfig, recognizer: Recognizer, prepared: PreparedSet, search: Search, workers: int, batch: int
) -> SplitScore:
    """The score by ranks that are threads."""
    together, items = threading.Barrier(workers), [None] * workers
    clips = scored_clips(wanted, prepared, recognizer, "validation")
    options = scoring_options(wanted, recognizer.limits, nbest=2, search=search)

    def run(rank: int) -> SplitScore:
        session = ThreadSession(rank, workers, rank, together, items)
        scorer = Scorer(clips, recognizer, session, cache_bytes=cache_bytes(wanted))
        return scorer.score(replace(options, batch_size=batch))

    with ThreadPoolExecutor(workers) as pool:
        first, *rest = pool.map(run, range(workers))
    assert [each.score for each in rest] == [first.score] * len(rest)
    return first


def test_workers_and_batches_do_not_move_what_a_search_finds(babbling: Any) -> None:
    wanted, recognizer, prepared = babbling
    searcher = recognizer.open_search(wanted.decode, wanted.run.storage_options, ALONE)
    search = Search(searcher, (Weights(0.5, 1.0, 0.5), Weights(2.0, 0.0, 0.0)))
    ways = [(workers, batch) for workers in (1, 2, 3) for batch in (1, 8, 32)]
    results = {way: scored(wanted, recognizer, prepared, search, *way) for way in ways}
    first, scores = results[1, 1], ("score", "greedy", "by_other_settings")
    assert len({item.hypothesis for item in first.utterances}) > 2, "it says too little"
    for way, result in results.items():
        assert [getattr(result, name) for name in scores] == [getattr(first, name) for name in scores], way
        for item, expected in zip(result.utterances, first.utterances, strict=True):
            assert item.hypothesis == expected.hypothesis
            assert item.avg_logprob == pytest.approx(expected.avg_logprob, rel=1e-4)
