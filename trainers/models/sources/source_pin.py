"""What a source was when an attempt began, so that all nodes open the same. Loads no heavy library."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainers.config.parts.model_source import SourceKind

# Fields of the config's model part that name a source.
WEIGHTS = "name_or_path"
TOKENIZER, EXTRACTOR, ENCODER, DECODER = "tokenizer_name", "feature_extractor_name", "encoder", "decoder"
FIELDS = (WEIGHTS, TOKENIZER, EXTRACTOR, ENCODER, DECODER)
# Those whose source holds weights.
WITH_WEIGHTS = (WEIGHTS, ENCODER, DECODER)


@dataclass(frozen=True)
class SourcePin:
    """A source, resolved.

    Attributes:
        field: The one that names it.
        text: As messages and records show it.
        kind: HUB, PATH, STORAGE or HTTPS; a run is where its model is.
        is_file: Whether it is a file, such as an archive, and no folder of files.
        revision: The commit on the Hub. None: elsewhere.
        sha256: Of a file; of a folder's files by name; of a bucket's by name, size and ETag. None: not known, or a
            commit says it.
    """

    field: str
    text: str
    kind: SourceKind
    address: str
    revision: str | None = None
    sha256: str | None = None
    is_file: bool = False

    @property
    def has_weights(self) -> bool:
        return self.field in WITH_WEIGHTS

    @property
    def name(self) -> str:
        """`model.name_or_path: s3://bucket/model`, as messages begin."""
        return f"model.{self.field}: {self.text}"

    @property
    def record(self) -> dict[str, Any]:
        """For the run's record."""
        return {"source": self.text, "revision": self.revision, "sha256": self.sha256}

    def differs_from(self, known: Mapping[str, Any]) -> bool:
        """Whether the same source is known with other content."""
        pairs = ((known.get("revision"), self.revision), (known.get("sha256"), self.sha256))
        return any(None not in pair and pair[0] != pair[1] for pair in pairs)
