"""The config's data part: the source of utterances, and how they are prepared. See `schema`."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from trainers.config.parts.data_location import rows_in
from trainers.config.parts.part import (
    Location,
    NotNegative,
    Part,
    Positive,
    PositiveFloat,
    RowsLocation,
    Settings,
    refuse_url,
    rule,
    trains,
)
from trainers.config.parts.run_part import NAME
from trainers.config.storage_location import is_absolute

# Fields that name the data source of a member of a mix.
MEMBER_SOURCES = ("train", "demo", "dataset", "source")
# "csv": quotes enclose fields of CSV; "none": quotes are part of the fields.
Quoting = Literal["csv", "none"]
Normalizer = Literal["none", "basic", "whisper_basic", "whisper_english"]


def _refuse_always_sliced(name: str) -> str:
    if name in ("language", "duration", "speaker"):
        raise ValueError(f"{name} is a slice of every report: leave it out")
    return name


Column = Annotated[str, Field(min_length=1), AfterValidator(_refuse_always_sliced)]


class DemoPart(Part):
    """A spoken corpus that is synthesized on the node that runs the job, so that a recipe works on any cluster."""

    train_utterances: Positive = Field(1500, description="Utterances to train on.")
    validation_utterances: Positive = Field(100, description="Utterances that choose the best model.")
    test_utterances: Positive = Field(150, description="Utterances of unseen voices and word sequences.")
    seed: NotNegative = Field(0, description="Seed of texts and voices.")


class HubDatasetPart(Part):
    """A data set on the Hub, or a folder that every node reads: one that `datasets` opens, or `save_to_disk` wrote."""

    name: str = Field(description="Hub id, e.g. google/fleurs, or a folder.")
    config_name: str | None = Field(
        None,
        description="The set's language config, e.g. sr_rs; a unique beginning (sr) is enough. null: the default.",
    )
    revision: str | None = Field(None, description="Git revision on the Hub. null: its newest.")
    train_split: str = Field("train", description="Split to train on; train+validation joins two.")
    validation_split: str | None = Field(
        "validation", description="Split that chooses the best model. null: none, in a mix alone."
    )
    test_split: str | None = Field("test", description="Split of the final score. null: none.")

    @field_validator("name")
    @classmethod
    def _opened_by_datasets(cls, name: str) -> str:
        return name if name.startswith("hf://") else refuse_url(name, "a Hub id, or a folder that every node reads")


class SourcePart(Part):
    """A data source of another distribution, which is installed on the nodes that run the job."""

    name: str = Field(description="Its entry point in the group rayscribe.sources.")
    options: Settings = Field({}, description="Its own options, which it checks when it is opened.")


class MixMember(Part):
    """A set of a mix, with its own data source: a manifest, `demo`, `dataset` or `source`."""

    name: str = Field(pattern=NAME, description="Its name in reports; ids of its clips begin with it.")
    weight: PositiveFloat | None = Field(
        None,
        description="Its share of what is trained on, relative to the other members'; with mix_temperature, of what "
        "is trained on in its language. All members have one, or none has. null: as many as it has utterances.",
    )
    language: str | None = Field(
        None, description="Language of its clips that name none of their own. null: model.language."
    )
    train: RowsLocation | None = Field(None, description="As data.train. null: another data source.")
    validation: RowsLocation | None = Field(
        None, description="Part of the validation set, where data.validation is null. null: none."
    )
    test: RowsLocation | None = Field(None, description="Part of the test set, where data.test is null. null: none.")
    demo: DemoPart | None = Field(None, description="As data.demo. null: another data source.")
    dataset: HubDatasetPart | None = Field(None, description="As data.dataset. null: another data source.")
    source: SourcePart | None = Field(None, description="As data.source. null: another data source.")
    audio_column_name: str | None = Field(None, description="null: data.audio_column_name.")
    text_column_name: str | None = Field(None, description="null: data.text_column_name.")

    @rule
    def _one_source(self) -> Self:
        sources = [name for name in MEMBER_SOURCES if getattr(self, name) is not None]
        if len(sources) != 1:
            raise ValueError(
                f"{self.name} names {' and '.join(sources) or 'no data'}: give one of {', '.join(MEMBER_SOURCES)}"
            )
        return self

    @property
    def has_validation(self) -> bool:
        """True if the member may have a validation set: of manifests, only one that is named."""
        if self.dataset is not None:
            return self.dataset.validation_split is not None
        return self.train is None or self.validation is not None


def is_encoding(name: str) -> bool:
    """Returns True if Python has a text encoding of this name."""
    try:
        "".encode(name)
    except (LookupError, UnicodeError):
        return False
    return True


class DataPart(Part):
    """The data source and how it is prepared. Set exactly one of manifests, `demo`, `dataset`, `source` and `mix`."""

    train: RowsLocation | None = Field(
        None,
        description="Manifest (CSV, TSV, JSONL) to train on: a path or a URL; or FORMAT:PATH of data in another "
        "format, e.g. common_voice:/data/cv/sr?split=train. null: another data source.",
    )
    validation: RowsLocation | None = Field(
        None, description="The same, which chooses the best model. null: another data source."
    )
    test: RowsLocation | None = Field(None, description="The same of the final score. null: no final score.")
    demo: DemoPart | None = Field(
        None, description="Data source `demo:`, a corpus synthesized where the job runs. null: another data source."
    )
    dataset: HubDatasetPart | None = Field(
        None, description="Data source `dataset:`, opened by datasets.load_dataset. null: another data source."
    )
    source: SourcePart | None = Field(
        None, description="Data source `source:`, of another distribution. null: another data source."
    )
    mix: tuple[MixMember, ...] = Field(
        (),
        description="Data source `mix:`, several sets that are joined, each with a name and a weight. Empty: another "
        "data source.",
    )
    mix_temperature: PositiveFloat | None = Field(
        None,
        description="Languages of a mix have shares in the ratio of their utterances to the power of 1 / temperature: "
        "1 leaves them as they are, 5 gives small ones more, infinity would make them equal. null: the members' "
        "shares alone count.",
    )
    audio_column_name: str = Field("path", description="Column with the path of the recording.")
    text_column_name: str = Field("text", description="Column with the transcript.")
    encoding: str = Field(
        "utf-8",
        description="Encoding of tables and transcripts, by Python's name for it: utf-8 (with or without a byte "
        "order mark), utf-16, cp1250, cp1251, latin-1 and others.",
    )
    quoting: Quoting = Field(
        "csv",
        description="csv: fields of a .csv may stand in quotes, which are doubled inside. none: quotes are characters "
        "like any other, as in a .tsv, for a file that was written without quoting.",
    )
    ignore_columns: tuple[str, ...] = Field(
        (),
        description="Columns of tables that are not looked at, such as [begin_time, end_time] of a data set whose "
        "recordings were cut already: they would be refused, as each row would be its complete recording.",
    )
    path_prefix: dict[Location, Location] = Field(
        {},
        description="Beginnings of recordings' paths in manifests, and what stands in place of each where the job "
        "runs: {/home/me/speech/: s3://bucket/speech/}. Relative paths count from their manifest first. The longest "
        "that fits counts.",
    )
    ship: bool = Field(
        False,
        description="Whether `rayscribe submit` puts manifests that are files of its machine into the job's package, "
        "with the recordings that they name; the package is limited to 100 MiB. Only submit reads it: rayscribe train "
        "and task.py read the files where they are.",
    )
    use_language_column: bool | None = Field(
        None,
        description="Whether each clip has the language of its manifest's column `language`; one without a value has "
        "model.language. false: all clips have model.language. null: true; a run that began without the column goes "
        "on without.",
    )
    slice_columns: tuple[Column, ...] = Field(
        (),
        max_length=8,
        description="Columns of the validation and test manifests by whose values the run's report slices the scores, "
        "such as [accent, gender], next to language, duration and speaker.",
    )
    do_lower_case: bool = Field(False, description="Lower-case the transcripts that are trained on and scored.")
    do_remove_punctuation: bool = Field(False, description="Remove punctuation from the transcripts.")
    chars_to_ignore: tuple[str, ...] = Field((), description="Remove these characters from the transcripts.")
    normalizer: Normalizer | None = Field(
        None,
        description="How reference and hypothesis are normalized before they are compared. none: not at all. basic: no "
        "case, no punctuation; every letter and mark of every script stays. whisper_basic: as published Whisper scores "
        "were made; it turns the marks of Hindi, Thai, Arabic and others into spaces. whisper_english: Whisper's, for "
        "English only. null: basic; a run that began with whisper_basic or whisper_english keeps it.",
    )
    do_normalize_eval: bool = Field(True, description="false is short for normalizer: none.")
    fingerprint: Literal["auto", "content", "metadata", "manifest"] | None = Field(
        None,
        description="What decides, next to the manifest, whether recordings are prepared again. content: their bytes, "
        "read once. metadata: where they are, their sizes and times. manifest: where they are. auto: content for a "
        "manifest in a folder; for one in a bucket, where they are, and sizes and ETags as a listing has "
        "them (of up to 200000 recordings). null: auto; a run that began with another keeps it.",
    )
    min_duration_s: float = Field(
        0.1, ge=0, description="Shorter clips are left out of training, and counted. Seconds."
    )
    max_duration_s: PositiveFloat = Field(
        30.0, description="Longer clips are left out of training, and counted. Seconds."
    )
    max_bad_fraction: float = Field(
        0.05, ge=0, le=1, description="Stop when more than this fraction of a manifest cannot be decoded."
    )
    too_long_eval: Literal["refuse", "skip"] = Field(
        "refuse",
        description="What is done with evaluation utterances that are longer than the model takes, in seconds or in "
        "label tokens. skip: they are not scored, and every score says how many.",
    )
    cache_dir: Location | None = Field(
        None, description="Where prepared data is kept and found again. null: <storage_path>/prepared."
    )
    local_cache_gb: PositiveFloat = Field(
        20.0, description="Bound of a node's cache of prepared shards that are read from a bucket. Gigabytes."
    )

    @property
    def source_name(self) -> str:
        """Name of the data source, see `trainers.data.sources.known_sources`."""
        if self.source is not None:
            return self.source.name
        if self.mix:
            return "mix"
        return next((name for name in ("demo", "dataset") if getattr(self, name) is not None), "manifests")

    def of_member(self, member: MixMember) -> "DataPart":
        """Returns the data part that a member of the mix would have if it were used alone."""
        columns = ("audio_column_name", "text_column_name")
        named = {name: getattr(member, name) for name in columns if getattr(member, name) is not None}
        own = {name: getattr(member, name) for name in (*MEMBER_SOURCES, "validation", "test")}
        return self.model_copy(update={**own, **named, "mix": (), "mix_temperature": None})

    @property
    def normalizer_name(self) -> str:
        """The normalizer of a config whose fields are resolved."""
        assert self.normalizer is not None, "the run's beginning gives it a value"
        return self.normalizer

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, name: str) -> str:
        if not is_encoding(name):
            raise ValueError(f"{name!r} is no encoding of text that Python knows: give utf-8, cp1251, …")
        return name

    @field_validator("path_prefix")
    @classmethod
    def _whole_folders(cls, prefixes: dict[str, str]) -> dict[str, str]:
        for old, new in prefixes.items():
            for prefix in (old, new):
                if not is_absolute(prefix) or not prefix.endswith("/"):
                    raise ValueError(f"{prefix} is no absolute folder or URL that ends with /")
        return prefixes

    @rule
    def _one_source(self, info: ValidationInfo) -> Iterator[str]:
        names = (*MEMBER_SOURCES, "mix")
        sources = [name for name in names if getattr(self, name) not in (None, ())]
        if len(sources) > 1:
            yield (
                f"names {' and '.join(sources)}: keep one of {', '.join(names[:-1])} and {names[-1]}, "
                "set the others to null"
            )
        yield from self._mix_problems()
        if not self.do_normalize_eval and self.normalizer not in (None, "none"):
            yield (f"do_normalize_eval is false and normalizer is {self.normalizer}: set do_normalize_eval: true")
        if self.min_duration_s >= self.max_duration_s:
            yield f"min_duration_s {self.min_duration_s} must be below max_duration_s {self.max_duration_s}"
        if not trains(info):
            return
        if not sources:
            yield (
                "names no data: set data.train and data.validation to manifests (--set data.train=my.csv, or "
                "--s3_bucket and --s3_train_csv_key)"
            )
        if self.train is not None and self.validation is None:
            yield (
                "validation is missing: the best model is chosen on it (--set data.validation=valid.csv, or "
                "--s3_valid_csv_key)"
            )
        if self.dataset is not None and self.dataset.validation_split is None:
            yield "dataset.validation_split is null: name the split that the best model is chosen on"
        if self.mix and self.validation is None and not any(member.has_validation for member in self.mix):
            yield (
                "validation is missing: the best model is chosen on it (--set data.validation=valid.csv, or give "
                "members of the mix a validation)"
            )
        given = {"train": self.train, "validation": self.validation, "test": self.test}
        rows = {split: rows_in(text, split) for split, text in given.items() if text is not None}
        if "test" in rows and list(rows.values()).count(rows["test"]) > 1:
            yield (f"test is {self.test}, which is also trained on or chooses the model: give a set of its own")
        if self.train is not None and rows["train"] == rows.get("validation"):
            yield f"train and validation are both {self.train}: give a validation set of its own"

    def _mix_problems(self) -> Iterator[str]:
        names = [member.name for member in self.mix]
        if twice := next((name for name in names if names.count(name) > 1), None):
            yield f"mix has two members {twice}: give each a name of its own"
        without = [member.name for member in self.mix if member.weight is None]
        if without and len(without) < len(names):
            yield f"mix gives {', '.join(without)} no weight, but others: give each a weight, or none"
        named = [member.name for member in self.mix if member.language is not None]
        if named and self.use_language_column is False:
            yield (f"use_language_column is false, but {', '.join(named)} of the mix names a language: leave one out")
        if self.mix_temperature is not None and not self.mix:
            yield "mix_temperature is set, and there is no mix: set it to null, or name members of a mix"
