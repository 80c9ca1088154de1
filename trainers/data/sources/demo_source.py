"""Data source `demo:`: a corpus that is synthesized on the driver and sent to the nodes with the rows."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from trainers.config.parts.data_part import DataPart
from trainers.data.sources.data_source import SPLITS, DataSource, SourceSplit
from trainers.data.sources.demo_corpus import DemoOptions, corpus_key, make_demo_corpus
from trainers.data.sources.fingerprint import hash_of
from trainers.data.sources.manifest import read_manifest
from trainers.data.sources.recording_readers import FileReader, RowReader
from trainers.storage import Storage
from trainers.storage.own_folder import own_temporary_folder

_RECORDING = "recording"


class DemoSource(DataSource):
    """The demo corpus of a config."""

    splits = SPLITS
    listing_requires_job = "data.demo is synthesized where the job runs; there is no manifest to read"

    def open(self, split: str, fingerprint_cache: Storage | None) -> SourceSplit:
        """Opens a split; its fingerprint is that of the plan and the library, not of the recordings."""
        manifest = self._manifests[split]
        table = read_manifest(str(manifest), manifest.read_bytes())
        recordings = [Path(path).read_bytes() for path in table["audio"].to_pylist()]
        return SourceSplit(
            split,
            f"demo {split}",
            table.append_column(_RECORDING, pa.array(recordings, pa.large_binary())),
            RowReader(_RECORDING, FileReader(self.storage_options)),
            hash_of(corpus_key(self._options), split),
        )

    def truncated(self, counts: Mapping[str, int], folder: Path) -> DataPart:
        assert self.data.demo is not None
        names = {f"{split}_utterances": count for split, count in counts.items()}
        few = {name: min(getattr(self.data.demo, name), count) for name, count in names.items()}
        return self.data.model_copy(update={"demo": self.data.demo.model_copy(update=few)})

    @cached_property
    def _options(self) -> DemoOptions:
        assert self.data.demo is not None
        return DemoOptions(**self.data.demo.model_dump())

    @cached_property
    def _manifests(self) -> Mapping[str, Path]:
        return make_demo_corpus(own_temporary_folder("demo") / corpus_key(self._options), self._options)
