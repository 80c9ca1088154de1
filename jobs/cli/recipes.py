"""rayscribe init and recipes: writes a recipe for speech and this machine, and lists shipped ones."""

import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.cli.output import echo, write_file
from trainers.config.loader import read_yaml, shipped_recipes
from trainers.config.locations import path_values, variables_in
from trainers.config.parts.data_part import Quoting
from trainers.errors import ConfigError

if TYPE_CHECKING:
    from jobs.recipes.new_recipe import NewRecipe

# Interval of progress messages. Seconds.
TELL_S = 2.0


def init(  # noqa: PLR0913, PLR0917 -- one parameter per option
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="Folder of recordings or of a corpus, a manifest, or FORMAT:PATH.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The recipe. Default: named after SOURCE, in this folder.")
    ] = None,
    language: Annotated[
        str | None, typer.Option(help="Language of the speech, e.g. Serbian. Default: from the data, if it has it.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="A Whisper model (size, Hub id or folder), or scratch. Default: one that fits."),
    ] = None,
    audio_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of the recordings. Default: by its usual names.")
    ] = None,
    text_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of the transcripts. Default: by its usual names.")
    ] = None,
    speaker_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of the speakers. Default: by its usual names, or none.")
    ] = None,
    ignore_columns: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Column to ignore, such as begin_time; may be repeated."),
    ] = None,
    encoding: Annotated[
        str, typer.Option(metavar="NAME", help="Encoding of tables and transcripts: latin-1, cp1250, utf-16, …")
    ] = "utf-8",
    quoting: Annotated[Quoting, typer.Option(help="Quoting of a .csv; with none, quotes belong to the texts.")] = "csv",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing recipe and manifests.")] = False,
) -> None:
    """Inspect speech and this machine, and write a recipe.

    The recipe fits both. Reads a manifest (path,text), recordings with a .txt next to each, an audio folder with
    metadata.csv, and folders of Common Voice, LibriSpeech and Kaldi. If the data has no splits, clips are split into
    train, validation and test without speaker overlap; SOURCE is never changed.

    Example: rayscribe init recordings/

    Example: rayscribe init speech.csv --language Serbian --out sr.yaml
    """
    # Imported here, since pyarrow and numpy take as long as all other imports.
    from jobs.recipes.found_machine import look_at_machine  # noqa: PLC0415
    from jobs.recipes.found_speech import Columns, find_speech  # noqa: PLC0415
    from jobs.recipes.new_recipe import Wishes, new_recipe, read_given_model, run_name  # noqa: PLC0415
    from jobs.recipes.speech_facts import measure  # noqa: PLC0415

    given = read_given_model(model) if model is not None else None
    tell = Patience()
    columns = Columns(audio_column, text_column, speaker_column, tuple(ignore_columns or ()))
    found = find_speech(source, columns, tell, encoding, quoting)
    out = out if out is not None else Path(f"{run_name(found.name)}.yaml")
    made = new_recipe(found, measure(found, tell), look_at_machine(), Wishes(out, language, given))
    _write(made, force=force)
    _report(made)


def _write(made: "NewRecipe", *, force: bool) -> None:
    there = [str(path) for path in made.texts if path.exists()]
    if there and not force:
        raise ConfigError(f"{', '.join(there)}: already exists: use another file (--out other.yaml), or add --force")
    for path, text in made.texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, text, "--out", force=force)


def _report(made: "NewRecipe") -> None:
    for line in made.messages:
        echo(line)
    echo(f"wrote {', '.join(map(str, made.texts))}")
    recipe = shlex.quote(str(made.recipe))
    typer.echo("next:")
    typer.echo(f"  rayscribe train {recipe} --debug    # two batches through every stage; keeps no files")
    typer.echo(f"  rayscribe train {recipe} --find-lr    # suggests a learning rate, from 60 steps; keeps no run")
    typer.echo(f"  rayscribe train {recipe}")
    typer.echo(f"  rayscribe evaluate {recipe} --model {made.run_folder}    # again, or on another split (--split)")


class Patience:
    """Prints the progress of a long search every two seconds."""

    def __init__(self) -> None:
        self._told_s = time.monotonic()

    def __call__(self, text: str) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= TELL_S:
            self._told_s = now_s
            echo(text, err=True)


def recipes(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Recipe to print.")] = None,
) -> None:
    """List the shipped recipes, or print one.

    Each command with a recipe also accepts a shipped recipe's name, unless the current folder has a file of that name.

    Example: rayscribe recipes

    Example: rayscribe recipes whisper_small_finetune > my.yaml
    """
    if name is not None:
        if name not in shipped_recipes():
            # Raises an error with the nearest shipped recipes, unless the name is a file's.
            read_yaml(Path(name))
            raise ConfigError(f"{name}: not a shipped recipe: `rayscribe recipes` lists them")
        typer.echo(shipped_recipes()[name].read_text(encoding="utf-8"), nl=False)
        return
    for known, path in shipped_recipes().items():
        about = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        typer.echo(f"{known}\n    {about}\n    needs: {'; '.join(_needs(read_yaml(path)))}")


def _needs(content: Mapping[str, Any]) -> Iterator[str]:
    scaling, data = content["scaling"], content["data"]
    workers = scaling["num_workers"]
    if scaling["use_gpu"]:
        yield "1 GPU" if workers == 1 else f"{workers} GPUs"
    else:
        yield "no GPU"
    paths = [value for _, _, value in path_values({"data": data, "run": content["run"]})]
    for variable in dict.fromkeys(name for path in paths for name in variables_in(path)):
        yield f"{variable}=…, a folder or URL"
    if "demo" in data:
        yield "the extra demo"
    from_hub = ["data"] * ("dataset" in data) + ["weights"] * (content["model"]["init"] == "pretrained")
    if from_hub:
        yield f"{' and '.join(from_hub)} from the Hub"
