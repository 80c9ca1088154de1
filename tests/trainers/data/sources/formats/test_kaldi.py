import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.data.sources.data_source import ROW_SCHEMA
from trainers.data.sources.formats.kaldi import read_kaldi
from trainers.errors import DataError, NotHereError

Files = dict[str, str | bytes]
ONE: Files = {"wav.scp": "u1 a.wav\n", "text": "u1 one\n"}
CALL: Files = {"wav.scp": "r1 call.wav\n", "text": "u1 one\nu2 two\n", "segments": "u1 r1 0 1\nu2 r1 1 -1\n"}


def opened(files: Files, folder: str = "/data/train") -> tuple[pa.Table, bytes]:
    contents = {name: text.encode() if isinstance(text, str) else text for name, text in files.items()}
    return read_kaldi(folder, contents.get)


def refusal(files: Files) -> str:
    with pytest.raises(DataError) as caught:
        opened(files)
    message = str(caught.value)
    assert message.startswith("/data/train")
    return message


def test_recordings_are_rows_in_the_order_of_text() -> None:
    files: Files = {
        "wav.scp": "u1 a.wav\nu2\tb c.wav \n",
        "text": "u2 two  words\n\nu1\n",
        "utt2spk": "u1 eva\nu2 ana\n",
    }
    table, _ = opened(files)
    assert table.schema == ROW_SCHEMA
    nothing = {"duration_s": None, "language": None, "offset_s": None}
    assert table.to_pylist() == [
        {"row": 0, "id": "u2", "audio": "/data/train/b c.wav", "text": "two  words", "speaker": "ana", **nothing},
        {"row": 1, "id": "u1", "audio": "/data/train/a.wav", "text": "", "speaker": "eva", **nothing},
    ]


def test_segments_are_parts_of_recordings() -> None:
    table, _ = opened(CALL | {"segments": "u1 r1 0.25 1.5\nu2 r1 1.5 -1\n"})
    assert table["audio"].to_pylist() == ["/data/train/call.wav"] * 2
    assert table["offset_s"].to_pylist() == [0.25, 1.5]
    assert table["duration_s"].to_pylist() == [1.25, None]
    assert table["speaker"].to_pylist() == [None, None]


@pytest.mark.parametrize(
    ("folder", "path", "audio"),
    [
        ("/data/train/", "../a.wav", "/data/a.wav"),
        ("/", "a.wav", "/a.wav"),
        ("/data/train", "/else/a.wav", "/else/a.wav"),
        ("/data/train", "s3://bucket/a.wav", "s3://bucket/a.wav"),
        ("s3://bucket/train", "a.wav", "s3://bucket/train/a.wav"),
    ],
)
def test_relative_paths_count_from_the_data_folder(folder: str, path: str, audio: str) -> None:
    table, _ = opened(ONE | {"wav.scp": f"u1 {path}\n"}, folder)
    assert table["audio"].to_pylist() == [audio]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_and_byte_order_marks_are_no_content(end: str) -> None:
    written = {name: end.join(str(text).split("\n")).encode("utf-8-sig") for name, text in CALL.items()}
    assert opened({**written})[0] == opened(CALL)[0]


def test_every_file_that_is_read_decides_the_fingerprint_and_no_other() -> None:
    files = CALL | {"utt2spk": "u1 eva\nu2 ana\n"}
    contents = {opened(files | {name: str(files[name]).replace("\n", " \n", 1)})[1] for name in files}
    assert len({opened(files)[1], *contents}) == 5
    assert opened(files | {"utt2dur": "u1 1\n", "reco2dur": "x"}) == opened(files)


@pytest.mark.parametrize(
    ("files", "parts"),
    [
        (
            ONE | {"wav.scp": "u1 sox a.mp3 -t wav - |\n"},
            ["/wav.scp: line 1: ", "of 'u1'", "a command", "to files first"],
        ),
        (ONE | {"wav.scp": "u1 | cat a.wav\n"}, ["/wav.scp: line 1: ", "of 'u1'", "a command"]),
        (ONE | {"wav.scp": "u1 data.ark:1234\n"}, ["/wav.scp: line 1: ", "of 'u1'", "'data.ark:1234'", "archive"]),
        (ONE | {"wav.scp": "u1 data.ark:12[0:9]\n"}, ["archive"]),
        (ONE | {"wav.scp": "u1\n"}, ["/wav.scp: line 1: ", "of 'u1'", "no path"]),
        (ONE | {"text": "u1 a\nu2 b\nu1 c\n"}, ["/text: line 3: 'u1' is in line 1, too", "keep one"]),
        (ONE | {"text": "\n"}, ["/text: the file is empty"]),
        (ONE | {"text": b"u1 x\nu2 caf\xe9\n"}, ["/text: byte 11 (line 2) is not UTF-8"]),
        (ONE | {"wav.scp": b"u1 a.wav\0"}, ["/wav.scp: byte 8 (line 1) is NUL"]),
        (ONE | {"utt2spk": "u1 ana maria\n"}, ["/utt2spk: line 1: 'u1'", "'ana maria'", "one word"]),
        (ONE | {"utt2spk": "u1\n"}, ["/utt2spk: line 1: 'u1'", "one word"]),
        (ONE | {"utt2spk": "u2 ana\n"}, ["1 ids of text are not in utt2spk ('u1'), and 1 ids of utt2spk", "('u2')"]),
        (
            {"wav.scp": "u1 a\n", "text": "u2 x\n"},
            ["of text are not in wav.scp ('u2'), and", "wav.scp are not in text"],
        ),
        (
            CALL | {"segments": "u1 r1 0 1\n"},
            ["1 ids of text are not in segments ('u2')", "fix_data_dir.sh /data/train"],
        ),
        (CALL | {"segments": "u1 r1 0 1\nu2 r2 1 2\n"}, ["1 ids of segments are not in wav.scp ('r2')"]),
        (CALL | {"wav.scp": "r1 a\nr2 b\n"}, ["1 ids of wav.scp are not in segments ('r2')"]),
        (CALL | {"segments": "u1 r1 0 1\nu2 r1 2 1.5\n"}, ["/segments: line 2: 'u2' starts at 2 s and ends at 1.5 s"]),
        (CALL | {"segments": "u1 r1 0 x\n"}, ["/segments: line 1: 'u1'", "'x' is not a number of seconds"]),
        (CALL | {"segments": "u1 r1 -1 2\n"}, ["'-1' is not a number of seconds"]),
        (CALL | {"segments": "u1 r1 0 1 B\n"}, ["/segments: line 1: 'u1'", "'r1 0 1 B'", "each channel"]),
    ],
)
def test_a_wrong_folder_is_refused_by_file_line_and_fix(files: Files, parts: list[str]) -> None:
    message = refusal(files)
    assert all(part in message for part in parts), message


def test_what_lacks_audio_is_counted_and_the_first_five_are_named() -> None:
    message = refusal(ONE | {"text": "".join(f"u{number} x\n" for number in range(1, 8))})
    assert (
        "6 ids of text are not in wav.scp ('u2', 'u3', 'u4', 'u5', 'u6' and others): run utils/fix_data_dir" in message
    )


def test_a_folder_that_is_elsewhere_is_told_from_one_that_is_incomplete() -> None:
    with pytest.raises(NotHereError, match=re.escape("no wav.scp and no text")):
        opened({})
    incomplete: list[tuple[Files, str]] = [({}, "s3://bucket/train"), ({"text": "u1 x\n"}, "/data/train")]
    for files, folder in incomplete:
        with pytest.raises(DataError, match=re.escape("no wav.scp")) as caught:
            opened(files, folder)
        assert not isinstance(caught.value, NotHereError)


def text_without(characters: str) -> st.SearchStrategy[str]:
    return st.text(st.characters(exclude_categories=["Cs"], exclude_characters=f"\0\r\n\ufeff{characters}"))


@given(st.dictionaries(text_without(" \t\v\f").filter(bool), text_without(""), min_size=1))
def test_ids_and_texts_come_back_as_they_were(texts: dict[str, str]) -> None:
    wav_scp = "".join(f"{name} {number}.wav\n" for number, name in enumerate(texts))
    table, _ = opened({"wav.scp": wav_scp, "text": "".join(f"{name} {text}\n" for name, text in texts.items())})
    assert table["id"].to_pylist() == list(texts)
    assert table["text"].to_pylist() == [text.strip(" \t\v\f") for text in texts.values()]
