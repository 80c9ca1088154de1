"""A small corpus in the layout of Common Voice, with clips as MP3."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import soundfile

from tests.trainers.synthetic import speechlike

RATE_HZ = 32_000
COLUMNS = ("client_id", "path", "sentence_id", "sentence", "up_votes", "down_votes", "age", "gender", "locale")
# Speaker and sentence of each clip, by table.
SENTENCES: Mapping[str, Sequence[tuple[str, str]]] = {
    "train": [("ana", 'Rekao je: "Dobar dan'), ("ana", "  čaj  i  kafa "), ("iva", ""), ("ivo", "Đak uči.")],
    "dev": [("ivo", "Dobro jutro."), ("mia", "Đak uči.")],
    "test": [("mia", "Laku noć."), ("zoe", "Vidimo se.")],
    "other": [("ana", "Još jednom."), ("zoe", "Nikad.")],
}


def write_corpus(folder: Path, sentences: Mapping[str, Sequence[tuple[str, str]]] = SENTENCES) -> Path:
    """Writes tables and clips of half a second and more; gives the folder."""
    (folder / "clips").mkdir(parents=True)
    durations, number = ["clip\tduration[ms]"], 0
    for table, rows in sentences.items():
        lines = ["\t".join(COLUMNS)]
        for speaker, sentence in rows:
            name, number = f"common_voice_sr_{number}.mp3", number + 1
            wave = speechlike(0.5 + 0.1 * number, seed=number).astype(np.float32) / 32768
            soundfile.write(folder / "clips" / name, np.repeat(wave, 2), RATE_HZ, format="MP3")
            durations.append(f"{name}\t{500 + 100 * number}")
            gender = "female_feminine" if speaker == "ana" else ""
            lines.append("\t".join((speaker, name, "x", sentence, "2", "0", "", gender, "sr")))
        (folder / f"{table}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "clip_durations.tsv").write_text("\n".join(durations) + "\n", encoding="utf-8")
    return folder
