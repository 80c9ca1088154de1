import bz2
import contextlib
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.data.sources.data_source import ROW_SCHEMA
from trainers.data.sources.manifest import TableRules, read_manifest
from trainers.data.sources.manifest_fields import in_utf_8
from trainers.errors import DataError


def read(text: str, location: str = "/data/train.csv", **columns: Any) -> pa.Table:
    return read_manifest(location, text.encode(), TableRules(**columns))


def refusal(content: str | bytes, location: str = "/data/train.csv", **columns: Any) -> str:
    raw = content.encode() if isinstance(content, str) else content
    with pytest.raises(DataError) as caught:
        read_manifest(location, raw, TableRules(**columns))
    message = str(caught.value)
    assert message.startswith(f"{location}: ")
    return message


@pytest.mark.parametrize(
    ("location", "text"),
    [
        ("/data/test.csv", "accent,path,text\nnorth,a.wav,one\n ,b.wav,two\n"),
        ("/data/test.jsonl", '{"path": "a.wav", "text": "one", "accent": "north"}\n{"path": "b.wav", "text": "two"}\n'),
    ],
)
def test_columns_for_slices_are_taken_where_asked(location: str, text: str) -> None:
    table = read(text, location, slice_columns=["accent", "gender"])
    assert table["slice.accent"].to_pylist() == ["north", None]
    assert table["slice.gender"].to_pylist() == [None, None]
    assert table.select(ROW_SCHEMA.names) == read(text, location)


def test_every_column_arrives_typed_and_in_order() -> None:
    table = read('path,text,speaker,duration,language\nb.wav,"one, ""two""",ana,1.5,sr\na.wav,,,,\n')
    assert table.schema == ROW_SCHEMA
    assert table.to_pylist() == [
        {
            "row": 0,
            "id": "b.wav",
            "audio": "/data/b.wav",
            "text": 'one, "two"',
            "speaker": "ana",
            "duration_s": 1.5,
            "language": "sr",
            "offset_s": None,
        },
        {
            "row": 1,
            "id": "a.wav",
            "audio": "/data/a.wav",
            "text": "",
            "speaker": None,
            "duration_s": None,
            "language": None,
            "offset_s": None,
        },
    ]


@pytest.mark.parametrize(
    ("location", "path", "audio"),
    [
        ("/data/train.csv", "clips/a.wav", "/data/clips/a.wav"),
        ("/data/lists/train.csv", "../clips/./a.wav", "/data/clips/a.wav"),
        ("/train.csv", "a.wav", "/a.wav"),
        ("/data/train.csv", "/else/a.wav", "/else/a.wav"),
        ("/data/train.csv", "s3://bucket/a//b.wav", "s3://bucket/a//b.wav"),
        ("s3://bucket/x/train.csv", "clips/a.wav", "s3://bucket/x/clips/a.wav"),
        ("s3://bucket/x/train.csv", "../a.wav", "s3://bucket/a.wav"),
        ("s3://bucket/train.csv", "a.wav", "s3://bucket/a.wav"),
        ("s3://bucket/x/train.csv", "https://host/a.wav", "https://host/a.wav"),
    ],
)
def test_audio_paths_are_joined_to_the_folder_of_the_manifest(location: str, path: str, audio: str) -> None:
    assert read(f"path,text\n{path},x\n", location)["audio"].to_pylist() == [audio]


def test_a_relative_location_counts_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read("path,text\na.wav,x\n", "lists/train.csv")["audio"][0].as_py() == str(tmp_path / "lists" / "a.wav")


def test_tsv_takes_quotes_as_they_are() -> None:
    table = read('path\tsentence\na.mp3\t"Hello," he said.\n', "/data/train.tsv", text_column_name="sentence")
    assert table["text"].to_pylist() == ['"Hello," he said.']


@pytest.mark.parametrize("extension", ["jsonl", "json"])
def test_json_lines_are_read(extension: str) -> None:
    lines = [
        {"audio_filepath": "a.wav", "text": "živ\u2028o", "duration": 2, "speaker": 7},
        {"audio_filepath": "b.wav", "text": None, "duration": None},
    ]
    text = "\r\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n\n"
    table = read(text, f"/data/train.{extension}", audio_column_name="audio_filepath")
    assert table["text"].to_pylist() == ["živ\u2028o", ""]
    assert table["duration_s"].to_pylist() == [2.0, None]
    assert table["speaker"].to_pylist() == ["7", None]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\r\r\n"])
@pytest.mark.parametrize(("extension", "separator"), [("csv", ","), ("csv", ";"), ("tsv", "\t")])
def test_the_same_rows_in_another_normal_form_are_the_same_table(end: str, extension: str, separator: str) -> None:
    lines = ["path,text,duration,offset", "a.wav,živ o,1.50,0", "a.wav,two,,1.5"]
    plain = read("\n".join(lines))
    lines = ["", " path ,\u00a0text,duration,offset", *lines[1:], "", ""]
    text = end.join(lines).replace(",", separator)
    assert read_manifest(f"/data/train.{extension}", text.encode("utf-8-sig")) == plain
    rows = [
        '{"path": "a.wav", "text": "\\u017eiv o", "duration": 1.5}',
        '{"offset": "1.5", "text": "two", "path": "a.wav", "duration": null}',
    ]
    if end.endswith("\n"):
        assert read_manifest("/data/train.jsonl", end.join(rows).encode("utf-8-sig")) == plain


def test_repeated_paths_are_numbered() -> None:
    table = read("path,text\na,1\na,2\na#2,3\na,4\n")
    assert table["id"].to_pylist() == ["a", "a#3", "a#2", "a#4"]


def test_ids_of_the_manifest_are_kept() -> None:
    assert read("id,path,text\nu1,a,x\nu2,a,y\n")["id"].to_pylist() == ["u1", "u2"]


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("", ["no rows"]),
        ("path,text\n", ["no rows"]),
        (b"path,text\na.wav,caf\xe9\n", ["byte 19", "line 2", "UTF-8"]),
        ("path,text\na.wav,x\n ,y\n", ["line 3", "'path'"]),
        ("path,text\na.wav,x,y\n", ["line 2 has 3 fields", "header has 2"]),
        ('path,text\na.wav,"x\ny"\nb.wav\n', ["line 4 has 1 fields"]),
        ('path,text\na.wav,"x\n', ["line 2", "close every quote"]),
        ("path,text,duration\na.wav,x,long\n", ["line 2", "'long'"]),
        ("path,text,duration\na.wav,x,-1\n", ["line 2", "'-1'"]),
        ("path,text,offset\na.wav,x,-1\n", ["line 2: offset '-1'"]),
        ("path,text,channel\na.wav,x,2\n", ["the column 'channel'", "recording of its own"]),
        ("path,text,start,end\na.wav,x,1,2\n", ["the column 'start'", "'offset' and 'duration'"]),
        ("path,text,Start,End\na.wav,x,1,2\n", ["the column 'Start'", "'offset' and 'duration'"]),
        ("path,text,offset_s\na.wav,x,1\n", ["the column 'offset_s'", "'offset' and 'duration'"]),
        ("path,text,Offset,Duration\na.wav,x,1,2\n", ["the column 'Offset'", "'offset' and 'duration'"]),
        ("path,text,offset,Duration\na.wav,x,1,2\n", ["the column 'Duration'", "'offset' and 'duration'"]),
        ("path,text\na.wav,x\0y\n", ["byte 17 (line 2) is NUL", "UTF-8"]),
        ("path,text\na.wav,x\n".encode("utf-16-le"), ["byte 1 (line 1) is NUL", "UTF-8"]),
        ("path,text,duration\na.wav,x,nan\n", ["line 2", "'nan'"]),
        ("id,path,text\nu1,a,x\nu2,b,x\nu1,c,x\n", ["1 ids", "'u1'"]),
        ("id,path,text\nu1,a,x\n,b,x\n", ["line 3", "'id'"]),
        ("path,path,text\na,b,x\n", ["'path' is listed twice"]),
        (
            "path,sentence\na,x\n",
            ["no column 'text' among path, sentence", "data.text_column_name to 'sentence'"],
        ),
        ("pahts,text\na,x\n", ["no column 'path'", "data.audio_column_name to 'pahts'"]),
        ("File Name,text\na,x\n", ["no column 'path'", "data.audio_column_name to 'File Name'"]),
        ("a/b.WAV,x\nc.wav,y\n", ["its first line (a/b.WAV, x) is not a header: add one, e.g. path,text"]),
        ("path|text\na|x\n", ["no column 'path' among path|text: separate columns by commas"]),
        ("path;text\na;x;y\n", ["line 2 has 3 fields", "quote a field with ';'"]),
        ("PATH,text\na,x\n", ["no column 'path' among PATH, text", "data.audio_column_name to 'PATH'"]),
        ("path,Sentence\na,x\n", ["no column 'text'", "data.text_column_name to 'Sentence'"]),
        ("path,text,Language\na,x,sr\n", ["the column 'Language' is not read: rename it to 'language'"]),
        ("qqq,text\na,x\n", ["no column 'path' among qqq, text", "data.audio_column_name"]),
    ],
)
def test_a_wrong_csv_is_refused_by_line_and_fix(content: str | bytes, parts: list[str]) -> None:
    message = refusal(content)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ('{"path": "a", "text": "x"}\n{"path": \n', ["line 2 is not JSON"]),
        ('{"path": "a", "text": "x", "text": "y"}', ["line 1 is not JSON (duplicate key 'text' in one object"]),
        ('[{"path": "a"}]', ["line 1 is not a JSON object"]),
        ('{"path": "a", "text": 5}', ["line 1", "'text' is 5"]),
        ('{"path": "a", "text": "x"}\n{"text": "y"}', ["line 2", "'path'"]),
        ('{"path": "a", "transcription": "y"}', ["data.text_column_name to 'transcription'"]),
        ('{"path": "a", "text": "x", "duration": NaN}', ["line 1", "'nan'"]),
        ('{"path": "a", "text": "x", "duration": true}', ["line 1", "duration"]),
        ('{"path": "a", "text": "x"}\n{"path": "a", "text": "x", "end": 2}', ["the column 'end'"]),
        ('{"path": "a", "text": "x", " Offset": 2}', ["the column ' Offset'"]),
        ('{"path": "a", "text": "\\ud83d"}', ["line 1: 'text' is '\\ud83d'", "not text: fix it"]),
        ('{"path": "\\u0000", "text": "\\u00e9"}', ["line 1: 'path' is '\\x00'", "not text: fix it"]),
    ],
)
def test_wrong_json_lines_are_refused_by_line_and_fix(content: str, parts: list[str]) -> None:
    message = refusal(content, "s3://bucket/train.jsonl")
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    "name", ["start-time", "Seg_Start", "audio start (s)", "t_end", "tmin", "clipBegin", "wav.stop"]
)
def test_a_bound_of_a_segment_is_refused_however_it_is_written(name: str) -> None:
    assert f"the column {name!r} says which part" in refusal(f"path,text,{name}\na.wav,x,1\n")


@pytest.mark.parametrize(
    "name", ["start_date", "end_of_call", "channels", "sample_rate", "length_class", "tender", "frames"]
)
def test_other_columns_are_passed_over(name: str) -> None:
    assert read(f"path,text,{name}\na.wav,x,1\n")["offset_s"].to_pylist() == [None]


def test_a_column_that_is_asked_for_is_read_whatever_its_name() -> None:
    table = read("channel,end\na.wav,x\n", audio_column_name="channel", text_column_name="end")
    assert table["text"].to_pylist() == ["x"]


def test_with_one_offset_every_row_is_a_segment() -> None:
    rows = ('{"path": "a", "text": "x"}', '{"path": "a", "text": "y", "offset": 1.5, "duration": 2}')
    assert read("\n".join(rows), "/train.jsonl")["offset_s"].to_pylist() == [0.0, 1.5]
    assert read(rows[0], "/train.jsonl")["offset_s"].to_pylist() == [None]


def test_a_column_that_is_not_read_because_of_its_case_is_told() -> None:
    told: list[str] = []
    text = "path,text,Text,ID,speaker,SPEAKER,Duration,Language,notes\na.wav,x,X,1,ana,eva,2,sr,n\n"
    table = read_manifest("/t.csv", text.encode(), TableRules(use_languages=False), warn=told.append)
    assert table["speaker"].to_pylist() == ["ana"]
    assert told == [
        "/t.csv: the column 'Text' is not read: 'text' is",
        "/t.csv: the column 'ID' is not read: rename it to 'id'",
        "/t.csv: the column 'SPEAKER' is not read: 'speaker' is",
        "/t.csv: the column 'Duration' is not read: rename it to 'duration'",
        "/t.csv: the column 'Language' is not read: rename it to 'language'",
    ]


# Quotes of two texts, in files that were written without quoting; and the lines of these two.
SWALLOWED = [
    pytest.param("path,text", 'c/1.mp3,one|c/2.mp3,"two he|c/3.mp3,three|c/4.mp3,four"|c/5.mp3,five', 3, 5, id="last"),
    pytest.param("path,text", 'c/1.mp3,one|c/2.mp3,"two he|c/3.mp3,three"|c/4.mp3,four', 3, 4, id="next"),
    pytest.param("text,path", 'one,c/1.mp3|"two he,c/2.mp3|three,c/3.mp3|four",c/4.mp3', 3, 5, id="first"),
    pytest.param("path,text,n", 'c/1.mp3,one,x|c/2.mp3,"two,x|c/3.mp3,three",x', 3, 4, id="between"),
    pytest.param("path,text", 'clip-1,one|clip-2,"two he|clip-30,three|clip-4,four"', 3, 5, id="no endings"),
    pytest.param("path,text", 'f3c/a1,one|07d/b2,"two he|bb9e/c,three|c4/d51,four"', 3, 5, id="unlike names"),
    pytest.param("text,path", 'one,f3ca1|"two he,07db2|three,bb9ec|four",c4d51', 3, 5, id="unlike names last"),
    pytest.param("path,text", 'f3c.mpga,one|07d.mpga,"two he|bb9e.mpga,three|c4.mpga,"', 3, 5, id="another ending"),
    pytest.param("path,text", 'h://f/1.wav?s=b.c,1|h://f/x?a,"2|h://f/q.wav?s=b.d#e.f,3"', 3, 4, id="query"),
    pytest.param("path,text", 'a.wav,"one\rtwo"|c/2.mp3,"two|c/3.mp3,three, and|c/4.mp3,"', 4, 6, id="comma"),
]


@pytest.mark.parametrize(("header", "lines", "opens", "closes"), SWALLOWED)
@pytest.mark.parametrize(("end", "separator"), [("\n", ","), ("\r\n", ";"), ("\r", ",")])
def test_quotes_in_two_texts_never_swallow_the_rows_between(
    header: str, lines: str, opens: int, closes: int, end: str, separator: str
) -> None:
    text = end.join([header, *lines.split("|")]).replace(",", separator)
    message = refusal(text)
    assert f"the quote that opens in line {opens} closes in line {closes}, and what is between" in message
    assert "double quotes inside quotes; if the file has no quotes around fields, set data.quoting to none" in message


def test_without_quoting_quotes_are_part_of_the_texts() -> None:
    lines = ["path,text", "c/1.mp3,one", 'c/2.mp3,"two he', 'c/3.mp3,"', 'c/4.mp3,four"', '"c/5.mp3",five']
    table = read_manifest("/data/train.csv", "\n".join(lines).encode(), quoting="none")
    assert table["text"].to_pylist() == ["one", '"two he', '"', 'four"', "five"]
    assert table["audio"][4].as_py() == '/data/"c/5.mp3"'
    with pytest.raises(DataError, match="line 2 has 3 fields where the header has 2"):
        read_manifest("/data/train.csv", b'path,text\na.wav,"one, two"\n', quoting="none")


@pytest.mark.parametrize(
    "text",
    [
        "one\ntwo",
        "one\n\nthree, four\nfive",
        "a list:\n1, one\n2, two",
        "one\r\ntwo, and three\r\n",
        "\n,\n",
        "of\n1,000 m\n",
    ],
)
@pytest.mark.parametrize("header", ["path,text", "text,path", "path,text,speaker"])
@pytest.mark.parametrize("name", ["clips/1.wav", "clips/1", "7f3a-41", "clips/1.mpga", "https://h/1?signed=a.b"])
def test_line_breaks_within_quotes_are_part_of_a_text(text: str, header: str, name: str) -> None:
    values = {"path": name, "text": text, "speaker": "7"}
    file = io.StringIO(newline="")
    csv.writer(file).writerows([header.split(","), [values[name] for name in header.split(",")]])
    assert read(file.getvalue())["text"].to_pylist() == [text]


def test_a_quote_that_nothing_closes_is_named_by_the_line_it_opens_in() -> None:
    message = refusal('path,text\na.wav,one\nb.wav,"two\nc.wav,three\n')
    assert "line 3 to 4: unexpected end of data: close every quote" in message


@pytest.mark.parametrize(("location", "quote"), [("/data/train.csv", '"'), ("/data/train.tsv", "")])
def test_a_cell_is_as_long_as_in_json(location: str, quote: str) -> None:
    long, separator = "word " * 40_000, "," if quote else "\t"
    rows = [f"path{separator}text{separator}more", f"a.wav{separator}one{separator}{quote}{long}{quote}"]
    assert read("\n".join(rows), location)["text"].to_pylist() == ["one"]
    rows = [f"path{separator}text", f"a.wav{separator}{quote}{long}{quote}"]
    assert read("\n".join(rows), location)["text"].to_pylist() == [long]


@pytest.mark.parametrize("first", ["sep=;", '"sep=;"', "SEP=; "])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_the_first_line_of_excel_says_what_separates(first: str, end: str) -> None:
    lines = [first, "path;text;duration", "a.wav;one, two;1", "b.wav;three;x"]
    assert "line 4: duration 'x'" in refusal(end.join(lines))
    table = read(end.join(["\ufeff" + first, *lines[1:3]]))
    assert table["text"].to_pylist() == ["one, two"]
    assert read(f"sep=|{end}path|text{end}a.wav|one; two, three")["text"].to_pylist() == ["one; two, three"]


def test_a_json_file_may_be_a_list_and_names_the_lines_of_its_rows() -> None:
    rows = [{"path": "a.wav", "text": "0042, [x]"}, {"path": "b.wav", "text": "null"}]
    for indent in (None, 1):
        assert read(json.dumps(rows, indent=indent), "/data/train.json")["text"].to_pylist() == ["0042, [x]", "null"]
    text = '[\n{"path": "a.wav", "text": "x"},\n\n{"path": "b.wav",\n"text": 5}]'
    assert "line 4: 'text' is 5" in refusal(text, "/data/train.json")
    assert "line 3 is not a JSON object" in refusal('[{"path": "a", "text": "b"}\n,\n7]', "/data/train.json")
    assert "it is not a list in JSON" in refusal('[{"path": "a"}, ', "/data/train.json")


def test_a_column_that_says_which_part_is_meant_may_be_ignored_by_name() -> None:
    text = "path,text,begin_time,end_time,speaker\na.wav,one,1,2,ana\n"
    assert "or name it in data.ignore_columns where recordings were cut already" in refusal(text)
    table = read(text, ignore_columns=("begin_time", "end_time", "speaker"))
    assert (table["offset_s"].to_pylist(), table["speaker"].to_pylist()) == ([None], [None])


@pytest.mark.parametrize(
    ("compress", "what"),
    [
        (gzip.compress, r"\(gzip\): unpack it with gunzip"),
        (bz2.compress, r"\(bzip2\): unpack it with bunzip2"),
        (lzma.compress, r"\(xz\): unpack it with unxz"),
        (lambda content: pa.Codec("zstd").compress(content).to_pybytes(), r"\(zstd\): unpack it with unzstd"),
        (lambda content: b"PK\3\4" + content, r"is a zip, as spreadsheets are \(.xlsx\): .* or save it as CSV"),
    ],
)
def test_a_compressed_table_is_named_as_that_and_not_as_another_encoding(
    compress: Callable[[bytes], bytes], what: str
) -> None:
    content = compress(b"path,text\na.wav,a\n")
    for encoding in ("utf-8", "utf-16", "cp1250"):
        with pytest.raises(DataError, match=what):
            read_manifest("/data/train.csv", in_utf_8("/data/train.csv", content, encoding))


def test_an_unknown_extension_is_refused() -> None:
    assert "'.xlsx'" in refusal("path,text\na,x\n", "/data/train.xlsx")


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(st.lists(st.tuples(texts.filter(str.strip), texts), min_size=1))
def test_whatever_csv_quotes_comes_back_as_it_was(rows: list[tuple[str, str]]) -> None:
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(["path", "text"])
    writer.writerows(rows)
    table = read(file.getvalue())
    assert table["text"].to_pylist() == [text for _, text in rows]
    assert len(set(table["id"].to_pylist())) == len(rows)


@given(st.binary(max_size=200), st.sampled_from(["csv", "tsv", "jsonl"]))
def test_any_bytes_give_a_table_or_a_data_error(content: bytes, extension: str) -> None:
    with contextlib.suppress(DataError):
        read_manifest(f"/data/train.{extension}", b"path,text\n" * (extension == "csv") + content)


@pytest.mark.parametrize("name", ["odd_audio/manifest.csv", "fsdd/train.csv", "ljspeech_mini/train.csv"])
def test_recorded_sets_are_read(speech_data: Path, name: str) -> None:
    manifest = speech_data / name
    table = read_manifest(str(manifest), manifest.read_bytes())
    assert all(Path(audio).is_file() for audio in table["audio"].to_pylist())
    assert table["duration_s"].null_count == 0
