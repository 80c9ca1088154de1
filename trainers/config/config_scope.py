"""What a verb reads of a config: it asks for nothing else, so that a model is scored where its training data is not."""

from dataclasses import dataclass

STORAGE_FIELDS = (("run", "storage_path"), ("data", "cache_dir"))
DATA_FIELDS = (("data", "train"), ("data", "validation"), ("data", "test"))
AUGMENT_FIELDS = (("augment", "noise_manifest"), ("augment", "rir_manifest"))
# What `data.ship` carries along.
SHIPPED_FIELDS = (*DATA_FIELDS, *AUGMENT_FIELDS)
# Of a part that each family has its own of: whatever it names.
ALL = "*"
DECODE_FIELDS = (("decode", ALL),)
_SOURCES = ("name_or_path", "tokenizer_name", "feature_extractor_name", "encoder", "decoder")
SOURCE_FIELDS = tuple(("model", field) for field in _SOURCES)
# Without the files that a family's own fields name, see `ModelPart.files`.
PATH_FIELDS = (*STORAGE_FIELDS, *DATA_FIELDS, *AUGMENT_FIELDS, *DECODE_FIELDS, *SOURCE_FIELDS)


@dataclass(frozen=True)
class ConfigScope:
    """What is read of a config.

    Attributes:
        paths: Part and field of each path that is opened; a variable that another path names need not be set.
        trains: Whether there is to be a training, which needs a training set, weights and a length.
        passed_over: Names of the rules that have found their problems already, see `rule`.
    """

    paths: tuple[tuple[str, str], ...] = PATH_FIELDS
    trains: bool = True
    passed_over: frozenset[str] = frozenset()

    def requires_path(self, part: str, field: str) -> bool:
        """Whether the path of a field is opened; those of the model are where it is trained."""
        return not {(part, field), (part, ALL)}.isdisjoint(self.paths) or (part == "model" and self.trains)

    @classmethod
    def for_scoring(cls, split: str) -> "ConfigScope":
        return cls((*STORAGE_FIELDS, *DECODE_FIELDS, ("data", split)), trains=False)


TRAIN_SCOPE = ConfigScope()
PREPARE_SCOPE = ConfigScope((*STORAGE_FIELDS, *DATA_FIELDS), trains=False)
