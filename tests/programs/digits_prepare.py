"""Makes the manifests of train.py from the CSV files of a folder: python digits_prepare.py data manifests"""

import csv
import json
import sys
from pathlib import Path

import soundfile

SPLITS = ("train", "valid", "test")


def prepare_digits(data_folder: str, manifest_folder: str, skip_prep: bool = False) -> None:
    """Writes a JSON file for each split, whose paths begin with {data_root}; keeps those that are there."""
    if skip_prep:
        return
    folder = Path(manifest_folder)
    folder.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        if (folder / f"{split}.json").is_file():
            continue
        with (Path(data_folder) / f"{split}.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        manifest = {
            Path(row["audio"]).stem: {
                "wav": "{data_root}/" + row["audio"],
                "length": soundfile.info(Path(data_folder) / row["audio"]).duration,
                "words": row["text"],
            }
            for row in rows
        }
        (folder / f"{split}.json").write_text(json.dumps(manifest, indent=2), encoding="utf-8")
        print(f"{folder / split}.json has {len(manifest)} utterances", flush=True)


if __name__ == "__main__":
    prepare_digits(sys.argv[1], sys.argv[2])
