"""The fields of a config that a verb reads: no others are required, so a model is scored without its training data."""

from dataclasses import dataclass

STORAGE_FIELDS = (("run", "storage_path"), ("data", "cache_dir"))
DATA_FIELDS = (("data", "train"), ("data", "validation"), ("data", "test"))
AUGMENT_FIELDS = (("augment", "noise_manifest"), ("augment", "rir_manifest"))
# The paths whose files `data.ship` carries along.
SHIPPED_FIELDS = (*DATA_FIELDS, *AUGMENT_FIELDS)
# Stands for all fields of a part whose fields depend on the family.
ALL = "*"
DECODE_FIELDS = (("decode", ALL),)
_SOURCES = ("name_or_path", "tokenizer_name", "feature_extractor_name", "encoder", "decoder")
SOURCE_FIELDS = tuple(("model", field) for field in _SOURCES)
# Without the paths in a family's own fields, see `ModelPart.files`.
PATH_FIELDS = (*STORAGE_FIELDS, *DATA_FIELDS, *AUGMENT_FIELDS, *DECODE_FIELDS, *SOURCE_FIELDS)


@dataclass(frozen=True)
class ConfigScope:
    """The part of a config that a verb reads.

    Attributes:
        paths: Part and field of each path that is opened; variables in other paths need not be set.
        trains: True if the verb trains, which requires a training set, weights and a length.
        passed_over: Names of the rules whose problems are reported already, see `rule`.
    """

    paths: tuple[tuple[str, str], ...] = PATH_FIELDS
    trains: bool = True
    passed_over: frozenset[str] = frozenset()

    def requires_path(self, part: str, field: str) -> bool:
        """Returns True if the path of a field is opened; those of the model are opened by every verb that trains."""
        return not {(part, field), (part, ALL)}.isdisjoint(self.paths) or (part == "model" and self.trains)

    @classmethod
    def for_scoring(cls, split: str) -> "ConfigScope":
        return cls((*STORAGE_FIELDS, *DECODE_FIELDS, ("data", split)), trains=False)


TRAIN_SCOPE = ConfigScope()
PREPARE_SCOPE = ConfigScope((*STORAGE_FIELDS, *DATA_FIELDS), trains=False)
