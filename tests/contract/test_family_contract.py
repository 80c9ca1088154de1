"""What every family of models keeps, whichever distribution it comes from: the product's three, and three tenants."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file
from torch.multiprocessing.spawn import ProcessExitedException
from transformers import AutoProcessor

from tests.contract.family_cases import CASES, FamilyCase, chosen, class_of, plug_in, write_tiny
from tests.contract.family_runs import SAVE_STEPS, Run, run_of
from tests.trainers.synthetic import config, speechlike, write_corpus
from trainers.config.parts.decode_part import GenerationPart
from trainers.config.parts.training_part import AdaptPart
from trainers.data.features import INT16_RANGE, LENGTHS
from trainers.errors import ConfigError
from trainers.models.adaptation.trained_weights import describe_trained, trained_names
from trainers.models.families import resolve_model
from trainers.models.recognizer import IGNORED_LABEL, Decoding, Recognizer, Target

TEXTS, DURATIONS_S = ["one two", "a", "three four"], [1.0, 0.7, 1.5]
HOW = Decoding(GenerationPart(max_length=20))
SAYINGS = ("a", "one two three four five", "no", "the quick fox", "up")
SPLITS = {"train": 14, "validation": 2, "test": 5}
# A family's runs are made by one process.
GROUPED = [pytest.param(name, marks=pytest.mark.xdist_group(f"contract {name}")) for name in CASES]
STATISTICS = (".running_mean", ".running_var", ".num_batches_tracked")
LONG_METHODS = [
    pytest.param(name, marks=pytest.mark.long) for name in ("freeze_encoder", "decoder_only", "last_n_layers")
]
METHODS = ["lora", *LONG_METHODS]
# Of float32 whose sums are in another order: measured up to 3e-7 of a loss, 1.4e-5 of a norm (the square of many; with
# convolutions over samples), and 5e-7 of weights up to 9. A loss that is a mean over passes is off by more than 1e-3.
LOSS_TOLERANCE, NORM_TOLERANCE, WEIGHT_TOLERANCE = 1e-5, 1e-4, 1e-6
# Workers and the most clips of a pass of each: those that differ in both from the calm run's, and the others.
SPLITS_OF_BATCHES = [(3, 1), *(pytest.param(*each, marks=pytest.mark.long) for each in ((1, 1), (3, 4)))]


@pytest.fixture(scope="module", params=GROUPED)
def case(request: pytest.FixtureRequest) -> Iterator[FamilyCase]:
    with pytest.MonkeyPatch.context() as patch:
        plug_in(patch)
        yield CASES[request.param]


@pytest.fixture(scope="module")
def tiny(case: FamilyCase, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and its processor."""
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(case, folder)
    return folder


@pytest.fixture(scope="module")
def model(case: FamilyCase, tiny: Path) -> dict[str, Any]:
    """What a recipe says of it."""
    return {"name_or_path": str(tiny), **case.model}


@pytest.fixture(scope="module")
def recognizer(model: dict[str, Any]) -> Recognizer:
    resolved, family = resolve_model(config({"model": model}))
    loaded = family.load_recognizer(resolved.model, None, seed=1)
    loaded.model.eval()
    return loaded


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labels and clips of very different lengths; those of training fill no number of global batches."""
    folder = tmp_path_factory.mktemp("corpus")
    for split, count in SPLITS.items():
        durations_s = [0.8 + 0.07 * (number * 5 % 14) for number in range(count)]
        write_corpus(folder, [SAYINGS[number % 5] for number in range(count)], durations_s=durations_s, name=split)
    return folder


@pytest.fixture(scope="module")
def runs(case: FamilyCase, model: dict[str, Any], corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("runs")
    return lambda name, **changes: run_of(folder, corpus, model, name, decode=dict(case.decode), **changes)


@pytest.fixture(scope="module")
def calm(runs: Any) -> Run:
    """The run of one worker, with batches of four, that nobody disturbs."""
    run: Run = runs("calm")
    run.here()
    return run


def clips() -> list[torch.Tensor]:
    return [torch.from_numpy(speechlike(seconds)) for seconds in DURATIONS_S]


@torch.no_grad()
def loss_of(
    recognizer: Recognizer,
    rows: list[list[int]],
    samples: list[torch.Tensor],
    count: int | None,
    edge_s: float | None = None,
) -> float:
    """By the seam, as training computes it."""
    given = inputs_of(recognizer, samples, edge_s)
    lengths = given.pop(LENGTHS, None)
    collated = recognizer.collate_labels(rows, [len(clip) for clip in samples])
    labels = collated.pop("labels")
    with recognizer.with_input_length(given):
        outputs = recognizer.model(**given, **collated)
    return float(recognizer.loss(outputs, Target(labels, lengths), count))


def inputs_of(recognizer: Recognizer, samples: list[torch.Tensor], edge_s: float | None = None) -> dict[str, Any]:
    """Of one batch; where outputs depend on its length, that is the edge's, or the longest clip's."""
    limits = recognizer.limits
    return recognizer.new_features().inputs(samples, None if limits.masks_padding else edge_s or max(DURATIONS_S))


def test_the_loss_is_the_one_of_transformers(case: FamilyCase, tiny: Path, recognizer: Recognizer) -> None:
    processor = AutoProcessor.from_pretrained(tiny)
    for clip, text, seconds in zip(clips(), TEXTS, DURATIONS_S, strict=True):
        wave, edge_s = clip.numpy().astype(np.float32) / INT16_RANGE, seconds
        if recognizer.limits.full_context:
            edge_s = recognizer.limits.context_s
        stock = recognizer.model(**case.stock_inputs(processor, wave, text)).loss.item()
        ours = loss_of(recognizer, recognizer.encode_labels([text]), [clip], None, edge_s)
        assert ours == pytest.approx(stock, rel=1e-5)


def test_parts_of_a_batch_add_to_the_loss_of_it_and_a_filler_costs_nothing(recognizer: Recognizer) -> None:
    rows, samples = recognizer.encode_labels(TEXTS), clips()
    together = loss_of(recognizer, rows, samples, 3)
    apart = sum(loss_of(recognizer, [row], [clip], 3) for row, clip in zip(rows, samples, strict=True))
    assert apart == pytest.approx(together, rel=1e-5)
    filler = loss_of(recognizer, [rows[0], [IGNORED_LABEL] * 2], samples[:2], 1)
    assert filler == pytest.approx(loss_of(recognizer, rows[:1], samples[:1], 1), rel=1e-5)


def test_an_utterance_is_recognized_alike_alone_and_in_a_batch(recognizer: Recognizer) -> None:
    rows = recognizer.encode_labels(TEXTS)
    together = recognizer.recognize(inputs_of(recognizer, clips()), rows, HOW)
    for found, row, clip in zip(together, rows, clips(), strict=True):
        (alone,) = recognizer.recognize(inputs_of(recognizer, [clip]), [row], HOW)
        assert alone.text == found.text != ""
        assert alone.loss == pytest.approx(found.loss, rel=1e-4)
        assert alone.avg_logprob == pytest.approx(found.avg_logprob, rel=1e-4)


@pytest.mark.integration
@pytest.mark.parametrize(("workers", "batch"), SPLITS_OF_BATCHES)
def test_losses_weights_and_counts_do_not_depend_on_workers_and_batches(
    calm: Run, runs: Any, workers: int, batch: int
) -> None:
    sizes = {f"training__per_device_{kind}_batch_size": batch for kind in ("train", "eval")}
    run = runs(f"{workers}x{batch}", scaling__num_workers=workers, **sizes)
    run.in_ranks()
    numbers, expected = run.numbers(), calm.numbers()
    assert numbers.keys() == expected.keys()
    for (step, name), value in expected.items():
        tolerance = NORM_TOLERANCE if name == "grad_norm" else LOSS_TOLERANCE
        assert numbers[step, name] == pytest.approx(value, rel=tolerance), (step, name)
    theirs, ours = calm.weights(), run.weights()
    for name, weight in theirs.items():
        assert torch.allclose(ours[name], weight, rtol=0, atol=WEIGHT_TOLERANCE), name
    assert run.counts() == calm.counts()
    assert run.hypotheses() == calm.hypotheses()


@pytest.mark.integration
def test_a_killed_run_goes_on_bit_for_bit(calm: Run, runs: Any, capfd: pytest.CaptureFixture[str]) -> None:
    run: Run = runs("killed", scaling__num_workers=1)
    with pytest.raises(ProcessExitedException, match="SIGKILL"):
        run.in_ranks(dies=True)
    run.here()
    assert f"resuming from checkpoint-{SAVE_STEPS}-" in capfd.readouterr().out
    assert run.hashes() == calm.hashes()
    assert run.numbers() == calm.numbers()
    assert run.counts() == calm.counts()
    assert all(torch.equal(run.weights()[name], weight) for name, weight in calm.weights().items())


@pytest.mark.integration
def test_an_export_is_opened_by_the_auto_classes_and_gives_the_same_words(
    case: FamilyCase, calm: Run, corpus: Path
) -> None:
    folder = calm.path / "model"
    processor = AutoProcessor.from_pretrained(folder)
    network = class_of(folder).from_pretrained(folder)
    hypotheses = calm.hypotheses()
    assert len(set(hypotheses.values())) > 1
    for name, hypothesis in hypotheses.items():
        wave, _ = soundfile.read(corpus / name, dtype="float32")
        assert case.stock_words(processor, network, wave).strip() == hypothesis


@pytest.mark.integration
def test_a_training_of_all_weights_trains_all_that_are_not_frozen(case: FamilyCase, tiny: Path, calm: Run) -> None:
    pattern = case.trained["full"]
    assert pattern is not None
    weights = load_file(tiny / "model.safetensors")
    moved = moved_by(calm, tiny)
    assert moved == chosen((name for name in weights if not name.endswith(STATISTICS)), pattern)
    assert calm.moments() == sum(weights[name].numel() for name in moved)


@pytest.mark.integration
@pytest.mark.parametrize("method", METHODS)
def test_a_method_trains_exactly_what_it_names(
    case: FamilyCase, tiny: Path, recognizer: Recognizer, runs: Any, capfd: pytest.CaptureFixture[str], method: Any
) -> None:
    pattern, n = case.trained[method], 1 if method == "last_n_layers" else None
    if pattern is None:
        pytest.skip("it is refused")
    steps = {"training__max_steps": 2, "training__save_steps": 2, "data__test": None}
    run: Run = runs(method, adapt={"method": method, "n": n}, training__learning_rate=1e-2, **steps)
    run.here()
    moved, sizes = moved_by(run, tiny), {name: each.numel() for name, each in recognizer.model.named_parameters()}
    assert moved == chosen(sizes, pattern)
    resolved, family = resolve_model(run.config)
    reported = describe_trained(run.config.adapt, resolved.model, family)
    if method == "lora":
        named = reported.removeprefix("adapters next to ").removesuffix(" are trained").replace(" and ", ", ")
        assert set(named.split(", ")) == {name.split(".")[-2] for name in moved}
    else:
        assert trained_names(recognizer.model, run.config.adapt) == moved
        trained = sum(sizes[name] for name in moved)
        weights = f"{trained:,} of {sum(sizes.values()):,} weights"
        assert reported == f"{weights} are trained" and f"train: {weights}" in capfd.readouterr().out
        assert run.moments() == trained, "the optimizer has states for what is trained only"


def test_a_method_for_a_part_that_a_model_lacks_is_refused(case: FamilyCase, recognizer: Recognizer) -> None:
    for method in (name for name, pattern in case.trained.items() if pattern is None):
        with pytest.raises(ConfigError, match=f"adapt.method {method}"):
            trained_names(recognizer.model, AdaptPart(method=method))


def moved_by(run: Run, tiny: Path) -> set[str]:
    """Names of all that the run's model stores otherwise than the one that it began with."""
    before, after = load_file(tiny / "model.safetensors"), run.weights()
    assert before.keys() == after.keys()
    return {name for name, weight in before.items() if not torch.equal(weight, after[name])}
