"""Averages the models of several runs, or the checkpoints of one, and writes the model into a folder."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from trainers.config.schema import TrainConfig
from trainers.config.storage_location import in_home, is_absolute
from trainers.distributed.console import show
from trainers.distributed.console.events import Stage
from trainers.errors import ConfigError
from trainers.models.adaptation.lora import ADAPTER, merge_folder
from trainers.models.families import family_of_folder
from trainers.models.recognizer import Recognizer
from trainers.models.sources.opened_model import open_sources, pin_sources, with_model
from trainers.models.sources.run_models import address_of, find_model
from trainers.models.weights import Weights, weighted_mean
from trainers.pipeline.transcription.transcription_request import TranscriptionRequest, transcription_config
from trainers.run_folder.checkpoints import REFUSED, fetch, fetch_base, model_of
from trainers.run_folder.journal import Checkpoint, Journal
from trainers.run_folder.layout import CHECKPOINTS, RunFolder
from trainers.storage import open_storage
from trainers.storage.json_files import to_json
from trainers.training.arguments import silence_libraries
from trainers.training.base.interpolation import WEIGHT_FILES
from trainers.training.scoring_worker import downloaded_model
from trainers.training.worker import NOT_EXPORTED

RECIPE, CARD = "average.json", "README.md"


@dataclass(frozen=True)
class Ingredient:
    """A model in an average.

    Attributes:
        name: What the user calls it: the argument, and the name of the checkpoint, if it is one of a run.
        model: Where it is: a folder, a URL, or a Hub id.
        config: The config of its run, with which it is opened; the defaults for others.
        checkpoint: The checkpoint, if it is one of a run.
    """

    name: str
    model: str
    config: TrainConfig
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True)
class Averaged:
    """An average that was written.

    Attributes:
        models: The share of each model, by its name.
    """

    folder: str
    models: Mapping[str, float]


def average(
    models: Sequence[str], output: str, shares: Sequence[float] | None = None, sets: Sequence[str] = ()
) -> Averaged:
    """Writes the average of models into a new folder.

    Args:
        models: Run folders, folders or URLs of models, or Hub ids; a single run stands for its checkpoints.
        output: A folder of this machine, which is empty or does not exist yet.
        shares: The share of each model, which sum to 1; None for equal shares.
        sets: Overrides of the config with which models are opened, such as `run.s3_endpoint_url=…`.

    Raises:
        ConfigError: a model cannot be opened, or models differ in architecture or vocabulary; nothing is written.
        StorageError: a model cannot be read.
    """
    silence_libraries()
    ingredients = _ingredients(models, sets)
    parts = shares or [1 / len(ingredients)] * len(ingredients)
    target = in_home(output).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    done = Averaged(str(target), {each.name: share for each, share in zip(ingredients, parts, strict=True)})
    with (
        _opened(ingredients[0]) as folder,
        TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as temporary,
    ):
        recognizer = family_of_folder(folder).open_exported(folder)
        recognizer.model.load_state_dict(weighted_mean(_weights(ingredients, recognizer), parts))
        written = Path(temporary) / target.name
        _write(recognizer, folder, written, done, is_checkpoint=ingredients[0].checkpoint is not None)
        if target.exists():
            target.rmdir()
        written.rename(target)
    return done


def _ingredients(models: Sequence[str], sets: Sequence[str]) -> list[Ingredient]:
    found = []
    for model in models:
        config = transcription_config(TranscriptionRequest(model, (), sets))
        if len(models) == 1:
            return _checkpoints(model, config)
        found.append(Ingredient(model, find_model(model, config.run.storage_options, "RUN"), config))
    if len({each.model for each in found}) < len(found):
        raise ConfigError("RUN: a model is named twice: name each once, and set --shares for more of one")
    return found


def _checkpoints(run: str, config: TrainConfig) -> list[Ingredient]:
    """Returns the checkpoints of a run that checkpoint.refuse_if does not refuse."""
    address, known = address_of(run), list[Checkpoint]()
    if address is not None:
        state = Journal(RunFolder(open_storage(address, config.run.storage_options))).read()
        known = [*state.checkpoints]
    passed = [each for each in known if not each.metrics.get(REFUSED)]
    if len(passed) < 2:
        lacks = "fewer than two checkpoints that checkpoint.refuse_if does not refuse"
        raise ConfigError(
            f"RUN {run}: an average needs two models, and this is {f'a run with {lacks}' if known else 'one model'}: "
            "name a second one, or a run with more (checkpoint.num_to_keep)"
        )
    folder = f"{address}/{CHECKPOINTS}"
    return [Ingredient(f"{run}, {each.name}", f"{folder}/{each.name}", config, each) for each in passed]


@contextmanager
def _opened(ingredient: Ingredient) -> Iterator[Path]:
    """Makes the files of a model available in a local folder while the block runs."""
    show(Stage("model", f"loading {ingredient.name}"))
    config, checkpoint = ingredient.config, ingredient.checkpoint
    if checkpoint is not None:
        with TemporaryDirectory(prefix="rayscribe-model-") as temporary:
            parent, local = ingredient.model.rpartition("/")[0], Path(temporary) / "model"
            storage = open_storage(parent, config.run.storage_options)
            fetch(storage, model_of(checkpoint), local)
            fetch_base(storage, local, trains=False)
            yield merge_folder(local)
    elif is_absolute(ingredient.model):
        with downloaded_model(ingredient.model, config.run.storage_options) as local:
            yield local
    else:
        source = with_model(config, ingredient.model)
        opened = open_sources(source, pin_sources(source), weights=True)
        assert opened.folder is not None
        yield opened.folder


def _weights(ingredients: Sequence[Ingredient], first: Recognizer) -> Iterator[Weights]:
    """Yields the weights of each model, opened one at a time; raises ConfigError if one does not match the first."""
    known = first.model.state_dict()
    yield known
    for each in ingredients[1:]:
        with _opened(each) as folder:
            other = family_of_folder(folder).open_exported(folder)
        weights = other.model.state_dict()
        problem = _difference(known, weights)
        if problem is None and other.processor.tokenizer.get_vocab() != first.processor.tokenizer.get_vocab():
            problem = "its tokens are others, or have other numbers"
        if problem is not None:
            raise ConfigError(
                f"RUN {each.name}: {problem}, unlike {ingredients[0].name}: name models that were trained from the "
                "same weights"
            )
        yield weights


def _difference(first: Weights, second: Weights) -> str | None:
    """Returns the first difference of the second model's weights in number, name or shape; None if there is none."""
    counts = [sum(weight.numel() for weight in weights.values()) for weights in (second, first)]
    if counts[0] != counts[1]:
        return f"it has {counts[0]:,} weights, not {counts[1]:,}"
    for name in dict.fromkeys([*first, *second]):
        if name not in second:
            return f"it has no {name}"
        if name not in first:
            return f"it has a {name}"
        if first[name].shape != second[name].shape:
            return f"its {name} has the shape {[*second[name].shape]}, not {[*first[name].shape]}"
    return None


def _write(recognizer: Recognizer, first: Path, folder: Path, done: Averaged, *, is_checkpoint: bool) -> None:
    """Writes the averaged model, with the other files of the first model, which may be a checkpoint."""
    left_out = shutil.ignore_patterns(*WEIGHT_FILES, *NOT_EXPORTED, ADAPTER, ".*")
    shutil.copytree(first, folder, ignore=left_out)
    if is_checkpoint:
        family_of_folder(folder).export_processor(folder)
    recognizer.model.save_pretrained(folder)
    (folder / RECIPE).write_text(to_json({"models": done.models}, RECIPE, indent=1), encoding="utf-8")
    (folder / CARD).write_text(_card(done), encoding="utf-8")


def _card(done: Averaged) -> str:
    lines = "".join(f"- {share:g} of {model}\n" for model, share in done.models.items())
    return (
        "---\nlibrary_name: transformers\npipeline_tag: automatic-speech-recognition\n---\n\n"
        f"# {Path(done.folder).name}\n\nThe weighted average of the weights of these models, made with Rayscribe:\n\n"
        f"{lines}\nIt has not been scored: `rayscribe evaluate RECIPE --model FOLDER` does this.\n"
    )
