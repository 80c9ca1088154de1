"""Hypotheses that a causal language model scores again."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from tests.trainers.models.decoding.ngrams import random_logprobs, tokenizer_of
from tests.trainers.run_folder.test_checkpoint_parts import ThreadSession
from trainers.distributed.session import LocalSession
from trainers.errors import ConfigError
from trainers.models.ctc.ctc_decode_part import CtcDecodePart, Weights
from trainers.models.ctc.decoding import beam_search
from trainers.models.ctc.decoding.beam_search import BeamSearch, CausalScorer
from trainers.models.ctc.decoding.decode_files import DecodeFiles, open_tokenizer

ALONE, CPU = LocalSession(0, 1, 0), torch.device("cpu")
TEXTS = ["", "a", "ab ba ab", "b a"]


def write_model(folder: Path, end: str | None = "<e>") -> Path:
    """A new GPT-2 of two layers whose tokenizer knows the letters a and b."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learner.train_from_iterator(["ab ba"], trainers.BpeTrainer(vocab_size=300, special_tokens=["<e>"]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=learner, eos_token=end)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "initializer_range": 0.5}
    GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("gpt"))


def test_a_text_s_score_is_the_sum_over_its_tokens_and_its_end(folder: Path) -> None:
    scorer, tokenizer = CausalScorer.open(str(folder), ALONE, CPU), open_tokenizer(str(folder))
    network = GPT2LMHeadModel.from_pretrained(folder).eval()
    wanted = []
    for text in TEXTS:
        ids = tokenizer.ids(text)
        assert ids[0] == ids[-1] == tokenizer.tokenizer.eos_token_id and len(ids) >= 2
        with torch.no_grad():
            each = [
                network(torch.tensor([ids[:end]])).logits[0, -1].log_softmax(-1)[ids[end]] for end in range(1, len(ids))
            ]
        wanted.append(float(torch.stack(each).sum()))
    assert scorer.logprobs(TEXTS) == pytest.approx(wanted, abs=1e-4)
    assert scorer.logprobs([]) == []


def test_texts_are_computed_together_as_far_as_their_logits_have_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = CausalScorer.open(str(folder), ALONE, CPU)
    wanted, sizes, forward = scorer.logprobs(TEXTS), [], GPT2LMHeadModel.forward

    def counted(self: Any, **inputs: Any) -> Any:
        sizes.append(inputs["input_ids"].numel())
        return forward(self, **inputs)

    monkeypatch.setattr(GPT2LMHeadModel, "forward", counted)
    monkeypatch.setattr(beam_search, "LOGITS_AT_ONCE", 8 * GPT2Config.from_pretrained(folder).vocab_size)
    assert scorer.logprobs(TEXTS) == pytest.approx(wanted, abs=1e-4)
    assert len(sizes) > 1 and max(sizes) <= 8


def test_ranks_open_one_commit_of_the_hub_and_the_same_weights(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(beam_search, "revision_of", lambda name: f"commit-{len(opened)}")
    load = AutoModelForCausalLM.from_pretrained

    def from_pretrained(name: str, *, revision: str, **options: Any) -> Any:
        opened.append(revision)
        return load(name, **options)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", from_pretrained)
    together, items = threading.Barrier(2), [None, None]
    other = write_model(tmp_path / "other")
    changed = GPT2LMHeadModel.from_pretrained(other)
    torch.nn.init.zeros_(changed.transformer.wte.weight)
    changed.save_pretrained(other)

    def node(rank: int, path: Path) -> CausalScorer:
        return CausalScorer.open(str(path), ThreadSession(rank, 2, rank, together, items), CPU)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(node, range(2), (folder, folder))
        assert first.describe() == second.describe() and opened == ["commit-0"] * 2
        for each in [pool.submit(node, rank, path) for rank, path in enumerate((folder, other))]:
            with pytest.raises(ConfigError, match="differ between ranks: give a folder that all nodes share"):
                each.result()


def test_its_weight_ranks_the_hypotheses_of_the_beam(folder: Path) -> None:
    tokenizer, scorer = tokenizer_of("ab ba"), CausalScorer.open(str(folder), ALONE, CPU)
    part = CtcDecodePart(method="beam", rescoring_model=str(folder), beam_size=20)
    search = BeamSearch(tokenizer, part, DecodeFiles(None, None), len(tokenizer), scorer)
    logprobs = random_logprobs(8, len(tokenizer), 0)
    without, words, heavy = search.search(logprobs, [Weights(), Weights(word=3.0), Weights(rescoring=50.0)])
    assert {each.text for each in without} == {each.text for each in words} == {each.text for each in heavy}
    assert without == sorted(without, key=lambda each: -each.acoustic)
    scores = dict(
        zip(sorted(each.text for each in without), scorer.logprobs(sorted(e.text for e in without)), strict=True)
    )
    assert {each.text: each.rescoring for each in heavy} == scores
    assert heavy == sorted(heavy, key=lambda each: -(each.acoustic + 50 * each.rescoring))
    assert heavy[0] != without[0]
    assert len(words[0].text.split()) == max(len(each.text.split()) for each in words)


def test_the_record_names_the_model_by_its_weights(folder: Path, tmp_path: Path) -> None:
    said = CausalScorer.open(str(folder), ALONE, CPU).describe()
    assert said["name_or_path"] == str(folder) and said["revision"] is None
    changed = GPT2LMHeadModel.from_pretrained(folder)
    with torch.no_grad():
        changed.transformer.wte.weight[0, 0] += 1
    changed.save_pretrained(tmp_path)
    open_tokenizer(str(folder)).tokenizer.save_pretrained(tmp_path)
    assert CausalScorer.open(str(tmp_path), ALONE, CPU).describe()["sha256"] != said["sha256"]


def test_what_is_no_causal_language_model_or_has_no_beginning_is_refused(tmp_path: Path) -> None:
    for name, wanted in (
        (str(tmp_path / "nowhere"), "cannot be opened"),
        (str(write_model(tmp_path / "endless", end=None)), "neither bos_token nor eos_token"),
    ):
        with pytest.raises(ConfigError, match=rf"decode\.rescoring_model: .*{wanted}"):
            open_tokenizer(name)
    (tmp_path / "ctc").mkdir()
    (tmp_path / "ctc/config.json").write_text('{"model_type": "wav2vec2"}')
    with pytest.raises(ConfigError, match="model_type wav2vec2, which AutoModelForCausalLM does not open"):
        open_tokenizer(str(tmp_path / "ctc"))
