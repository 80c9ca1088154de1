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
# What is compared to find out that recordings have changed.
FingerprintKind = Literal["content", "metadata", "manifest"]
Normalizer = Literal["none", "basic", "whisper_basic", "whisper_english"]


def _refuse_always_sliced(name: str) -> str:
    if name in ("language", "duration", "speaker"):
        raise ValueError(f"{name} is always a slice of the report: leave it out")
    return name


Column = Annotated[str, Field(min_length=1), AfterValidator(_refuse_always_sliced)]


class DemoPart(Part):
    """A speech corpus that is synthesized on the node that runs the job, so that a recipe works on any cluster."""

    train_utterances: Positive = Field(1500, description="Utterances to train on.")
    # Each has one of 47,280 word sequences to itself.
    validation_utterances: Positive = Field(100, le=10_000, description="Utterances that select the best model.")
    test_utterances: Positive = Field(
        150, le=10_000, description="Utterances of the final score, with other voices and word sequences."
    )
    seed: NotNegative = Field(0, description="Seed of texts and voices.")


class HubDatasetPart(Part):
    """A data set on the Hub, or a folder on every node that `datasets` can open or `save_to_disk` has written."""

    name: str = Field(description="Hub id, e.g. google/fleurs, or a folder.")
    config_name: str | None = Field(
        None,
        description="The set's language config, e.g. sr_rs, or a unique beginning of it (sr). null: the default.",
    )
    revision: str | None = Field(None, description="Git revision on the Hub. null: the newest.")
    train_split: str = Field("train", description="Split to train on; train+validation joins two.")
    validation_split: str | None = Field(
        "validation", description="Split that selects the best model. null: none, which only a mix allows."
    )
    test_split: str | None = Field("test", description="Split of the final score. null: none.")

    @field_validator("name")
    @classmethod
    def _opened_by_datasets(cls, name: str) -> str:
        return name if name.startswith("hf://") else refuse_url(name, "a Hub id, or a folder on every node")


class SourcePart(Part):
    """A data source of another distribution, which is installed on the nodes that run the job."""

    name: str = Field(description="Name of its entry point in the group rayscribe.sources.")
    options: Settings = Field({}, description="Its options, which it checks when it is opened.")


class MixMember(Part):
    """A set of a mix, with its own data source: a manifest, `demo`, `dataset` or `source`."""

    name: str = Field(pattern=NAME, description="Its name in reports, with which the ids of its clips begin.")
    weight: PositiveFloat | None = Field(
        None,
        description="Its share of the training data, relative to the other members; with mix_temperature, its share of "
        "its language. Set it for all members or for none. null: its number of utterances.",
    )
    language: str | None = Field(
        None, description="Language of its clips that have none of their own. null: model.language."
    )
    train: RowsLocation | None = Field(None, description="As data.train. null: another data source.")
    validation: RowsLocation | None = Field(
        None, description="Its part of the validation set, if data.validation is null. null: none."
    )
    test: RowsLocation | None = Field(None, description="Its part of the test set, if data.test is null. null: none.")
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
                f"{self.name} has {' and '.join(sources) or 'no data'}: set exactly one of {', '.join(MEMBER_SOURCES)}"
            )
        return self

    @property
    def has_validation(self) -> bool:
        """True if the member may have a validation set; a member with manifests must name it."""
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
        description="Manifest (CSV, TSV, JSONL) to train on: a path or a URL; or FORMAT:PATH for another format, e.g. "
        "common_voice:/data/cv/sr?split=train. null: another data source.",
    )
    validation: RowsLocation | None = Field(
        None, description="Manifest of the validation set, which selects the best model. null: another data source."
    )
    test: RowsLocation | None = Field(None, description="Manifest of the test set. null: no final score.")
    demo: DemoPart | None = Field(
        None, description="A corpus that is synthesized where the job runs. null: another data source."
    )
    dataset: HubDatasetPart | None = Field(
        None, description="A data set that `datasets` opens. null: another data source."
    )
    source: SourcePart | None = Field(
        None, description="A data source of another distribution. null: another data source."
    )
    mix: tuple[MixMember, ...] = Field(
        (),
        description="Several sets to train on together, each with a name and a weight. []: another data source.",
    )
    mix_temperature: PositiveFloat | None = Field(
        None,
        description="Sets the shares of a mix's languages in proportion to their numbers of utterances to the power of "
        "1 / temperature: 1 keeps these numbers, and 5 gives small languages more. null: shares by weight only.",
    )
    audio_column_name: str = Field("path", description="Column with the path of the recording.")
    text_column_name: str = Field("text", description="Column with the transcript.")
    encoding: str = Field(
        "utf-8",
        description="Encoding of tables and transcripts, by its name in Python: utf-8 (with or without a byte order "
        "mark), utf-16, cp1250, cp1251, latin-1 and others.",
    )
    quoting: Quoting = Field(
        "csv",
        description="csv: quotes enclose fields of a .csv, and are doubled inside. none: quotes are part of the text, "
        "as they always are in a .tsv.",
    )
    ignore_columns: tuple[str, ...] = Field(
        (),
        description="Columns of tables to ignore, such as [begin_time, end_time] of recordings that are split into "
        "segments already; otherwise each row would be refused.",
    )
    path_prefix: dict[Location, Location] = Field(
        {},
        description="Replaces the beginnings of recordings' paths in manifests, for the machines that run the job: "
        "{/home/me/speech/: s3://bucket/speech/}. The longest one that fits is used. Relative paths are first made "
        "absolute, from their manifest.",
    )
    ship: bool = Field(
        False,
        description="`rayscribe submit` copies manifests on its machine, and the recordings that they name, into the "
        "job's package, of at most 100 MiB. No other command uses this field.",
    )
    use_language_column: bool | None = Field(
        None,
        description="Take the language of each clip from its manifest's column `language`, where that has a value. "
        "false: all clips have model.language. null: true; a run that was started without the column continues without "
        "it.",
    )
    slice_columns: tuple[Column, ...] = Field(
        (),
        max_length=8,
        description="Columns of the validation and test manifests, such as [accent, gender], by which the report "
        "slices scores, in addition to language, duration and speaker.",
    )
    do_lower_case: bool = Field(False, description="Convert transcripts to lower case, for training and scoring.")
    do_remove_punctuation: bool = Field(False, description="Remove punctuation from the transcripts.")
    chars_to_ignore: tuple[str, ...] = Field((), description="Remove these characters from the transcripts.")
    normalizer: Normalizer | None = Field(
        None,
        description="Normalization of reference and hypothesis before scoring. none: not at all. basic: removes case "
        "and punctuation, and keeps every letter and mark of every script. whisper_basic: as for published Whisper "
        "scores; it turns the marks of Hindi, Thai, Arabic and others into spaces. whisper_english: Whisper's, for "
        "English only. null: basic; a started run keeps its normalizer.",
    )
    do_normalize_eval: bool = Field(True, description="false: short for normalizer: none.")
    fingerprint: FingerprintKind = Field(
        "content",
        description="What, besides the manifest, shows that recordings must be prepared again. content: their bytes. "
        "metadata: their sizes and times. Both: the sizes and ETags of up to 200000 recordings in buckets, from a "
        "listing. manifest: only their paths.",
    )
    min_duration_s: float = Field(0.1, ge=0, description="Shorter clips are left out of training and counted. Seconds.")
    max_duration_s: PositiveFloat = Field(
        30.0, description="Longer clips are left out of training and counted. Seconds."
    )
    empty_text: Literal["leave_out", "train"] = Field(
        "leave_out",
        description="Training clips without a text. leave_out: they are left out, and counted. train: the model learns "
        "to write nothing for them, for example for recordings of noise. Not for CTC models.",
    )
    pack_segments_s: PositiveFloat | None = Field(
        None,
        description="Join consecutive segments of a training recording (rows with an offset and a duration) into clips "
        "of up to this length, whose labels can have their times (training.keep_timestamps). Segments with more than a "
        "second between them are not joined, and clips of up to 30 s have at most the 448 label tokens that Whisper "
        "takes, as estimated by script. Seconds. null: each segment is a clip.",
    )
    max_bad_fraction: float = Field(
        0.05, ge=0, le=1, description="Stop if more than this fraction of a manifest's recordings cannot be decoded."
    )
    too_long_eval: Literal["refuse", "skip"] = Field(
        "refuse",
        description="Validation and test utterances that are too long for the model, in seconds or label tokens. "
        "refuse: they stop the run. skip: they are not scored, and every score states their number.",
    )
    cache_dir: Location | None = Field(
        None, description="Folder or URL of prepared data, which later runs use again. null: <storage_path>/prepared."
    )
    local_cache_gb: PositiveFloat = Field(
        20.0, description="Maximum size of a node's cache of prepared shards from a bucket. Gigabytes."
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

    def of_other_set(self, location: str) -> "DataPart":
        """Returns the data part of a manifest that is only scored, as its test split; all options stay the same."""
        others = dict.fromkeys((*MEMBER_SOURCES, "validation", "mix_temperature"))
        return self.model_copy(update={**others, "mix": (), "test": location})

    @property
    def normalizer_name(self) -> str:
        """The normalizer, in the config of a run that has started."""
        assert self.normalizer is not None, "it is resolved when the run begins"
        return self.normalizer

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, name: str) -> str:
        if not is_encoding(name):
            raise ValueError(f"{name!r} is not a text encoding of Python: give utf-8, cp1251, …")
        return name

    @field_validator("path_prefix")
    @classmethod
    def _whole_folders(cls, prefixes: dict[str, str]) -> dict[str, str]:
        for old, new in prefixes.items():
            for prefix in (old, new):
                if not is_absolute(prefix) or not prefix.endswith("/"):
                    raise ValueError(f"{prefix} is not an absolute folder or a URL that ends with /")
        return prefixes

    @rule
    def _one_source(self, info: ValidationInfo) -> Iterator[str]:
        names = (*MEMBER_SOURCES, "mix")
        sources = [name for name in names if getattr(self, name) not in (None, ())]
        if len(sources) > 1:
            yield f"names {' and '.join(sources)}: keep one of these data sources, and set the others to null"
        yield from self._mix_problems()
        if not self.do_normalize_eval and self.normalizer not in (None, "none"):
            yield f"do_normalize_eval is false, but normalizer is {self.normalizer}: set do_normalize_eval: true"
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
                "validation is missing, which selects the best model: --set data.validation=valid.csv, or "
                "--s3_valid_csv_key"
            )
        if self.dataset is not None and self.dataset.validation_split is None:
            yield "dataset.validation_split is null: name the split that selects the best model"
        if self.mix and self.validation is None and not any(member.has_validation for member in self.mix):
            yield (
                "validation is missing, which selects the best model: --set data.validation=valid.csv, or give "
                "members of the mix a validation"
            )
        given = {"train": self.train, "validation": self.validation, "test": self.test}
        rows = {split: rows_in(text, split) for split, text in given.items() if text is not None}
        if "test" in rows and list(rows.values()).count(rows["test"]) > 1:
            yield f"test is {self.test}, which is also train or validation: give a test set of its own"
        if self.train is not None and rows["train"] == rows.get("validation"):
            yield f"train and validation are both {self.train}: give a validation set of its own"

    def _mix_problems(self) -> Iterator[str]:
        names = [member.name for member in self.mix]
        if twice := next((name for name in names if names.count(name) > 1), None):
            yield f"mix has two members named {twice}: give each its own name"
        without = [member.name for member in self.mix if member.weight is None]
        if without and len(without) < len(names):
            yield f"mix has members without a weight ({', '.join(without)}): give all members a weight, or none"
        named = [member.name for member in self.mix if member.language is not None]
        if named and self.use_language_column is False:
            yield f"use_language_column is false, but members of the mix have a language ({', '.join(named)}): keep one"
        if self.mix_temperature is not None and not self.mix:
            yield f"mix_temperature is {self.mix_temperature}, but there is no mix: set it to null, or set mix"
