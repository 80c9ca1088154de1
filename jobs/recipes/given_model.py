"""The model that a user has named for a new recipe, and about how large it is."""

import json
import posixpath
from pathlib import Path
from typing import Any

from jobs.recipes.recipe_choices import SCRATCH, SIZES, GivenModel
from trainers.config.family_table import family_parts
from trainers.errors import ConfigError

# The vocabulary of all released Whispers, about.
TOKENS = 51_865


def read_given_model(text: str) -> GivenModel:
    """Takes `--model`: scratch, a folder of a Whisper, a Hub id, or the name of a size.

    Raises:
        ConfigError: it is no Whisper, as far as can be told.
    """
    if text == SCRATCH:
        return GivenModel(SCRATCH, SIZES[0].weights)
    folder = Path(text).expanduser()
    if folder.is_dir():
        return GivenModel(posixpath.normpath(folder.absolute()), _weights_in(folder))
    whisper = family_parts()["whisper"]
    name = whisper.released.get(text, text)
    size = next((size for size in sorted(whisper.released, key=len, reverse=True) if size in name), None)
    if size is None or "whisper" not in name.lower():
        raise ConfigError(
            f"--model {text}: give scratch, a folder of a Whisper, its id on the Hub (openai/whisper-small) or a size "
            f"({', '.join(whisper.released)}); of other models, the recipe wav2vec2_finetune is an example (`rayscribe "
            "recipes`)"
        )
    released = whisper.model_construct(init="pretrained", name_or_path=whisper.released[size])
    return GivenModel(name, released.size.weights)


def _weights_in(folder: Path) -> float:
    """About how many weights the Whisper in a folder has, by its config."""
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ConfigError(f"--model {folder}: no config.json that can be read: name a folder of a Whisper") from None
    if config.get("model_type") != "whisper":
        kind = config.get("model_type", "of an unknown type")
        raise ConfigError(f"--model {folder}: the model is {kind}, and init writes recipes of Whispers: name one")
    width = config.get("d_model", 384)
    # A layer of the encoder has an attention and a feed-forward part, one of the decoder two attentions.
    layers = 12 * config.get("encoder_layers", 4) + 16 * config.get("decoder_layers", 4)
    return float(layers * width**2 + config.get("vocab_size", TOKENS) * width)
