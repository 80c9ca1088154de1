"""The language of each clip: a manifest's column `language`, or the config's where it has no value. Loads no torch."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trainers.errors import ConfigError
from trainers.models.label_codec import LabelCodec
from trainers.models.tokenizer_processor import code_or_name

# Of a clip without a value, where the config names no language.
NOT_NAMED = "not named"


def languages_in(table: pa.Table) -> pa.ChunkedArray:
    """The column `language` of a source or of an index; nulls where there is none."""
    if "language" in table.column_names:
        return table["language"]
    return pa.chunked_array([pa.nulls(len(table), pa.string())])


def clip_languages(table: pa.Table, language: str | None) -> list[str] | None:
    """The code of each clip's language, or its name where that has none; None: the index has no such column."""
    if "language" not in table.column_names:
        return None
    own = code_or_name(language) if language is not None else NOT_NAMED
    column = table["language"].to_pylist()
    codes = {None: own, **{name: code_or_name(name) for name in set(column) if name is not None}}
    return [codes[name] for name in column]


def language_tokens(
    codec: LabelCodec, processor: Any, languages: pa.ChunkedArray, language: str | None
) -> dict[str, int]:
    """The first label id of each language of clips (`languages_in`), without those that the config's labels have.

    Raises:
        ConfigError: the model has no token for some; the text names them, and how many clips they have.
    """
    counts = {item["values"]: item["counts"] for item in pc.value_counts(languages.drop_null()).to_pylist()}
    own = code_or_name(language) if language is not None else None
    tokens: dict[str, int] = {}
    problems = []
    for name in sorted(counts):
        if code_or_name(name) == own:
            continue
        try:
            token = codec.language_token(processor, name)
        except ConfigError as error:
            problems.append(f"{counts[name]} clips have the language {name!r} ({error})")
        else:
            if token is not None:
                tokens[name] = token
    if problems:
        raise ConfigError(
            f"column language: {', '.join(problems)}: correct the column or take the clips out, or give all clips "
            "model.language (--set data.use_language_column=false)"
        )
    return tokens
