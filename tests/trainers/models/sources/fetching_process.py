"""A process that opens the source that is its argument: says that it begins, then the hash of the weights there."""

import sys

from trainers.config.parts.model_source import ModelSource
from trainers.config.storage_location import DEFAULT_STORAGE_OPTIONS
from trainers.models.sources.source_reader import SourceReader
from trainers.storage import sha256_of

if __name__ == "__main__":
    reader = SourceReader("/nowhere", DEFAULT_STORAGE_OPTIONS, allow_pickle=False)
    print("begins", flush=True)
    folder = reader.folder(reader.pin("name_or_path", ModelSource.parse(sys.argv[1])), weights=True)
    print(sha256_of(folder / "model.safetensors"), flush=True)
