"""Manifests of the free spoken digit data set: a CSV and a JSON file for each split.

python fsdd_prepare.py data_folder save_folder
"""

import csv
import json
import sys
from pathlib import Path

SPLITS = ("train", "valid", "test")
COLUMNS = ("ID", "duration", "wav", "spk_id", "wrd")


def prepare_fsdd(data_folder: str, save_folder: str, skip_prep: bool = False) -> None:
    """Writes the manifests that are not there yet; their paths begin with the data folder.

    Raises:
        FileNotFoundError: the data folder has no such data set.
    """
    if skip_prep:
        return
    for split in SPLITS:
        source = Path(data_folder) / f"{split}.csv"
        if not source.is_file():
            raise FileNotFoundError(f"{source}: data_folder must be the folder of fsdd")
        with source.open(newline="", encoding="utf-8") as file:
            rows = [_described(row, data_folder) for row in csv.DictReader(file)]
        Path(save_folder).mkdir(parents=True, exist_ok=True)
        _write_once(Path(save_folder) / f"{split}.csv", _csv_of(rows))
        _write_once(Path(save_folder) / f"{split}.json", _json_of(rows))


def _described(row: dict[str, str], data_folder: str) -> dict[str, str]:
    path = Path(row["path"])
    return {
        "ID": path.stem,
        "duration": row["duration"],
        "wav": str(Path(data_folder) / path),
        "spk_id": row["speaker"],
        "wrd": row["text"].upper(),
    }


def _csv_of(rows: list[dict[str, str]]) -> str:
    lines = [",".join(COLUMNS), *(",".join(row[column] for column in COLUMNS) for row in rows)]
    return "\n".join(lines) + "\n"


def _json_of(rows: list[dict[str, str]]) -> str:
    entries = {
        row["ID"]: {"wav": row["wav"], "length": float(row["duration"]), "spk_id": row["spk_id"], "words": row["wrd"]}
        for row in rows
    }
    return json.dumps(entries, indent=2)


def _write_once(path: Path, text: str) -> None:
    if path.is_file():
        print(f"{path} is there already", flush=True)
        return
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    prepare_fsdd(sys.argv[1], sys.argv[2])
