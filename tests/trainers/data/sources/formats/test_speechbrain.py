import contextlib
import csv
import io
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.data.sources.data_source import ROW_SCHEMA
from trainers.data.sources.formats.speechbrain import read_speechbrain
from trainers.errors import DataError

JSON, CSV = "/data/train.json", "/data/train.csv"


def opened(content: str | bytes, location: str = JSON, data_root: str | None = None) -> pa.Table:
    raw = content.encode() if isinstance(content, str) else content
    return read_speechbrain(location, raw, data_root=data_root)


def of_one(**values: Any) -> str:
    return json.dumps({"u1": {"wav": "a.wav", "wrd": "x"} | values})


def refusal(content: str | bytes, location: str) -> str:
    with pytest.raises(DataError) as caught:
        opened(content, location)
    message = str(caught.value)
    assert message.startswith(f"{location}: ")
    return message


def test_json_and_both_forms_of_csv_give_the_same_table() -> None:
    utterances = {
        "u1": {"wav": "a.wav", "length": 1.5, "words": "one, two", "spk_id": 7},
        "u2": {"wav": {"file": "/else/b.wav"}, "transcript": "", "n_phones": 3},
    }
    table = opened(json.dumps(utterances).encode("utf-8-sig"))
    assert table.schema == ROW_SCHEMA
    first = {"audio": "/data/a.wav", "text": "one, two", "speaker": "7", "duration_s": 1.5}
    second = {"audio": "/else/b.wav", "text": "", "speaker": None, "duration_s": None}
    nothing = {"language": None, "offset_s": None}
    assert table.to_pylist() == [{"row": 0, "id": "u1"} | first | nothing, {"row": 1, "id": "u2"} | second | nothing]
    assert table == opened('ID,duration,wav,spk_id,wrd\nu1,1.5,a.wav,7,"one, two"\nu2,,/else/b.wav,,\n', CSV)
    older = "ID, duration, wav, wav_format, wav_opts, spk_id, spk_id_format, wrd\n\n"
    rows = 'u1, 1.50, a.wav, wav, channels:1, 7, string, "one, two"\nu2, , /else/b.wav, wav, , , string,\n'
    assert table == opened(older + rows, CSV)


@pytest.mark.parametrize("placeholder", ["{data_root}", "$data_root", "${data_root}"])
@pytest.mark.parametrize(
    ("data_root", "audio"),
    [
        ("/corpus", "/corpus/a.wav"),
        ("/corpus/", "/corpus/a.wav"),
        ("/", "/a.wav"),
        ("../corpus", "/corpus/a.wav"),
        ("s3://bucket/corpus/", "s3://bucket/corpus/a.wav"),
    ],
)
def test_data_root_is_put_in_paths(placeholder: str, data_root: str, audio: str) -> None:
    for wav in (f"{placeholder}/a.wav", {"file": f"{placeholder}/a.wav"}):
        assert opened(of_one(wav=wav), JSON, data_root)["audio"].to_pylist() == [audio]
    row = f"ID,wav,wrd\nu1,{placeholder}/a.wav,{placeholder}\n"
    table = opened(row, CSV, data_root)
    assert (table["audio"].to_pylist(), table["text"].to_pylist()) == ([audio], [placeholder])


@pytest.mark.parametrize("path", ["ca$h.wav", "{x}.wav", "s3://bucket/$5/a.wav"])
def test_other_paths_stay_as_they_are(path: str) -> None:
    table = opened(of_one(wav=path), "s3://bucket/x/train.json", "/corpus")
    assert table["audio"].to_pylist() == [path if "://" in path else f"s3://bucket/x/{path}"]


def test_with_one_offset_every_row_is_a_segment() -> None:
    utterances = {"u1": {"wav": "a", "wrd": "x"}, "u2": {"wav": "a", "wrd": "y", "offset": 1.5, "duration": 2}}
    assert opened(json.dumps(utterances))["offset_s"].to_pylist() == [0.0, 1.5]


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ('{"u1": {"wav": "a", "wrd": "x"}, "u1": {}}', ["duplicate key 'u1'", "keep one of them"]),
        ('{\n"u1": ', ["not JSON", "line 2"]),
        ("[]", ["not a JSON object", "no list"]),
        ("{}", ["no rows"]),
        ('{"u1": "a.wav"}', ["utterance 'u1' is 'a.wav'", "write an object"]),
        ('{"u1": {"wrd": "x"}}', ["utterance 'u1' has no 'wav'"]),
        ('{"u1": {"wav": "a"}}', ["utterance 'u1' has no transcript: add it as 'wrd'"]),
        ('{" ": {"wav": "a", "wrd": "x"}}', ["utterance ' ' has an empty 'id'"]),
        ('{"\\ud800": {"wav": "a", "wrd": "x"}}', ["'id' is '\\ud800', which is not text"]),
        (of_one(wav=" "), ["utterance 'u1' has an empty 'wav'"]),
        (of_one(wav=None), ["has an empty 'wav'"]),
        (of_one(wav=["a", "b"]), ["'wav' is ['a', 'b']: write it as a string"]),
        (of_one(wav={"files": ["a", "b"]}), ["'wav' is {'files': ['a', 'b']}: give the path of one recording"]),
        (of_one(wav={"file": "a", "start": 0, "stop": 9}), ["'start' or 'stop'", "samples", "'offset' and 'duration'"]),
        (of_one(start=0, stop=9), ["'start'", "'offset' and 'duration'"]),
        (of_one(channel=1), ["'channel'", "a recording of its own"]),
        (of_one(wav="$data_root/a"), ["utterance 'u1'", f"speechbrain:{JSON}?data_root=/path"]),
        (of_one(wav="{ROOT}/a"), ["'{ROOT}/a'", "{ROOT} is not known", "write {data_root}"]),
        (of_one(wrd=5), ["'wrd' is 5: write it as a string"]),
        (of_one(words="y"), ["'wrd' and 'words' have different values", "keep the one"]),
        (of_one(duration=1, length=2), ["'duration' and 'length' have different values"]),
        (of_one(length=-1), ["'-1' is not a number of seconds"]),
        (of_one(duration=float("nan")), ["'nan' is not a number of seconds"]),
    ],
)
def test_wrong_json_is_refused_by_id_and_fix(content: str, parts: list[str]) -> None:
    message = refusal(content, JSON)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("ID,wav,wrd\nu1,a,x\nu1,b,y\n", ["1 ids occur more than once ('u1')", "make them unique"]),
        ("ID,wav,wrd\n ,a,x\n", ["line 2 has an empty 'id'"]),
        ("ID,wav,wrd\nu1,a\n", ["line 2 has 2 fields where the header has 3"]),
        ("ID,wav,wrd,duration\nu1,a,x,long\n", ["line 2: duration 'long' is not a number of seconds"]),
        ("id,wav,wrd\nu1,a,x\n", ["no column 'ID' among id, wav, wrd"]),
        ("ID,path,wrd\nu1,a,x\n", ["the header has no 'wav'"]),
        ("ID,wav,phn\nu1,a,x\n", ["the header has no transcript"]),
        ("ID,wav,start,stop,wrd\nu1,a,0,9,x\n", ["'start'", "'offset' and 'duration'"]),
        ("ID,wav,wav_opts,wrd\nu1,a,start:0 stop:9,x\n", ["line 2: 'wav_opts' is 'start:0 stop:9'", "'offset'"]),
        ("ID,wav,wrd\n", ["no rows"]),
        (b"ID,wav,wrd\nu1,a,caf\xe9\n", ["byte 19 (line 2) is not UTF-8"]),
        ("ID,wav,wrd\nu1,a,x\0\n", ["byte 17 (line 2) is NUL"]),
    ],
)
def test_a_wrong_csv_is_refused_by_line_and_fix(content: str | bytes, parts: list[str]) -> None:
    message = refusal(content, CSV)
    assert all(part in message for part in parts), message


def test_another_extension_is_refused() -> None:
    assert "name it .json or .csv" in refusal("{}", "/data/train.yaml")


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(st.dictionaries(texts.filter(str.strip), texts, min_size=1), st.booleans())
def test_ids_and_texts_come_back_as_they_were(utterances: dict[str, str], is_json: bool) -> None:
    file = io.StringIO(newline="")
    csv.writer(file, quoting=csv.QUOTE_ALL).writerows(
        [("ID", "wav", "wrd"), *((name, "a.wav", text) for name, text in utterances.items())]
    )
    content = json.dumps({name: {"wav": "a.wav", "wrd": text} for name, text in utterances.items()})
    table = opened(content if is_json else file.getvalue(), JSON if is_json else CSV)
    assert dict(zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True)) == utterances


@given(st.binary(max_size=200), st.sampled_from([JSON, CSV]))
def test_any_bytes_give_a_table_or_a_data_error(content: bytes, location: str) -> None:
    with contextlib.suppress(DataError):
        opened(b"ID,wav,wrd\n" * (location == CSV) + content, location)


def test_quotes_in_two_texts_never_swallow_the_rows_between() -> None:
    text = b'ID,wav,wrd\nu1,1.wav,one\nu2,2.wav,"two\nu3,3.wav,three\nu4,4.wav,four"\n'
    with pytest.raises(DataError, match="the quote that opens in line 3 closes in line 5"):
        read_speechbrain("/data/train.csv", text, data_root=None)
    table = read_speechbrain("/data/train.csv", text, data_root=None, quoting="none")
    assert table["text"].to_pylist() == ["one", '"two', "three", 'four"']
