"""Reads the recordings of me/set on the Hub at HF_ENDPOINT, or of files of it that are named; prints JSON."""

import json
import sys

from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.sources.known_sources import open_sources
from trainers.errors import RayscribeError

if __name__ == "__main__":
    part = {"name": "me/set", "test_split": None}
    named = {"train": sys.argv[1], "validation": "/nowhere.csv"} if len(sys.argv) > 1 else {"dataset": part}
    data = DataPart.model_validate({**named, "audio_column_name": "audio", "text_column_name": "sentence"})
    try:
        (source,) = open_sources(data, storage_options=StorageOptions(), splits=("train",))
    except RayscribeError as error:
        print(json.dumps({"error": str(error)}))
    else:
        rows = source.table.to_pylist()
        print("opened", flush=True)
        read = [str(each) if isinstance(each, Exception) else len(each) for each in source.reader.read(rows)]
        print(json.dumps({"texts": source.table["text"].to_pylist(), "read": read}))
