"""Manifests name other recordings, and are the same otherwise, byte for byte."""

import csv
import io
import json
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.scripts.inputs.manifests import NamedPaths, read_paths


def changed(manifest: NamedPaths) -> str:
    """The manifest with each recording below /new."""
    paths = {each.path: f"/new/{PurePosixPath(each.path).name}" for each in manifest.references}
    return manifest.with_paths(paths).decode(manifest.encoding, "surrogateescape")


SPEECHBRAIN = (
    "ID, duration, wav, wav_format, wav_opts, spk_id, wrd\n"
    'a, 1.5, $data_root/clips/a.wav, wav, , s1, "SAID, ""SO"""\n\n'
    'b, 2.0,"{data_root}/clips/b.wav", wav, , s2, SAID\n'
)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("train.csv", "path,text\nclips/a.wav,one\n", "path,text\n/new/a.wav,one\n"),
        ("a.csv", '\ufefftext,"path"\r\n"a ""b"",\nc","x/a.wav"', '\ufefftext,"path"\r\n"a ""b"",\nc","/new/a.wav"'),
        ("a.csv", "file;text\nx/a.mp3;one, two\n", "file;text\n/new/a.mp3;one, two\n"),
        (
            "a.TSV",
            'path\tsentence\nx/a.mp3\t"so\nb.mp3\tsaid"\n',
            'path\tsentence\n/new/a.mp3\t"so\n/new/b.mp3\tsaid"\n',
        ),
        (
            "sb.csv",
            SPEECHBRAIN,
            SPEECHBRAIN.replace("$data_root/clips", "/new").replace("{data_root}/clips", "/new"),
        ),
        ("mix.csv", "ID,mix_wav,s1_wav\na,x/m.wav,x/s.wav\n", "ID,mix_wav,s1_wav\na,/new/m.wav,/new/s.wav\n"),
        (
            "nemo.json",
            '{"audio_filepath": "x/a.wav", "text": "\\u0061"}\n\n{"text":"b" , "audio_filepath":"x\\/b.wav"}\n',
            '{"audio_filepath": "/new/a.wav", "text": "\\u0061"}\n\n{"text":"b" , "audio_filepath":"/new/b.wav"}\n',
        ),
        (
            "sb.json",
            '{"a": {"wav": "{data_root}/a.wav", "length": 1.50},\n "b": {"wav": {"file": "x/b.wav", "start": 3}}}',
            '{"a": {"wav": "/new/a.wav", "length": 1.50},\n "b": {"wav": {"file": "/new/b.wav", "start": 3}}}',
        ),
        (
            "sb.json",
            '{"a": {"wav": {"files": ["x/l.wav", "x/r.wav"]}}}',
            '{"a": {"wav": {"files": ["/new/l.wav", "/new/r.wav"]}}}',
        ),
        (
            "hf.json",
            '{"data": [{"audio": {"path": "x/a.flac"}, "n": 1e3}]}',
            '{"data": [{"audio": {"path": "/new/a.flac"}, "n": 1e3}]}',
        ),
        (
            "cuts.jsonl",
            '{"id": 1, "recording": {"sources": [{"type": "file", "source": "x/a.wav"}]}}\n',
            '{"id": 1, "recording": {"sources": [{"type": "file", "source": "/new/a.wav"}]}}\n',
        ),
    ],
)
def test_recordings_are_replaced_and_nothing_else(name: str, text: str, expected: str) -> None:
    assert changed(read_paths(name, text.encode())) == expected


def test_the_encoding_stays() -> None:
    for encoding in ("utf-16", "cp1251"):
        content = "path,text\nклип/a.wav,здраво\n".encode(encoding)
        manifest = read_paths("a.csv", content)
        assert manifest.with_paths({each.path: each.path for each in manifest.references}) == content
        assert len(manifest.references) == 1
    moved = read_paths("a.csv", "path,text\nx/a.wav,здраво\n".encode("cp1251"))
    assert moved.with_paths({"x/a.wav": "/b.wav"}) == "path,text\n/b.wav,здраво\n".encode("cp1251")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("vocab.json", '{"path": 17, "file": 3}'),
        ("config.json", '{"path": "models/base", "layers": [{"file": "weights.bin"}]}'),
        ("plain.csv", "path,label\nimages/a.png,cat\n"),
        ("scores.csv", "name,score\na.wav,3\n"),
        ("damaged.json", '{"path": "a.wav"'),
        ("empty.csv", ""),
        ("empty.jsonl", "\n"),
    ],
)
def test_what_names_no_recordings_is_no_manifest(name: str, text: str) -> None:
    assert read_paths(name, text.encode()).references == ()


def test_each_recording_has_its_row_for_messages() -> None:
    def places(name: str, text: str) -> list[str]:
        return [each.place for each in read_paths(name, text.encode()).references]

    assert places("a.csv", 'text,path\n"a\nb",a.wav\n\nc,b.wav\n') == ["line 2", "line 5"]
    assert places("a.jsonl", '{"path": "a.wav"}\n\n{"path": "b.wav"}') == ["line 1", "line 3"]
    assert places("a.json", '[{"path": "a.wav"}, {"audio": {"path": "b.wav"}}]') == ["row 1", "row 2"]
    assert places("a.json", '{"x": {"wav": "a.wav"}}') == ["utterance 'x'"]


@given(
    rows=st.lists(
        st.tuples(st.text("a\"',;\n é", max_size=5), st.sampled_from(["a.wav", "b/c.wav", 'd,"e.wav'])), max_size=5
    ),
    is_quoted=st.booleans(),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_csv_that_python_writes_is_read_and_written_alike(
    rows: list[tuple[str, str]], is_quoted: bool, end: str
) -> None:
    file = io.StringIO(newline="")
    writer = csv.writer(file, quoting=csv.QUOTE_ALL if is_quoted else csv.QUOTE_MINIMAL, lineterminator=end)
    writer.writerows([("text", "path"), *rows])
    content = file.getvalue().encode()
    manifest = read_paths("a.csv", content)
    assert [each.path for each in manifest.references] == [path for _, path in rows]
    assert manifest.with_paths({path: path for _, path in rows}) == content
    moved = manifest.with_paths({path: f'/n,"/{path}' for _, path in rows}).decode()
    read = list(csv.reader(io.StringIO(moved, newline="")))
    assert read[1:] == [[text, f'/n,"/{path}'] for text, path in rows]


json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text('ab"\\', max_size=3), inner, max_size=3),
    max_leaves=4,
)


@given(
    rows=st.lists(st.tuples(json_values, st.text(max_size=4)), max_size=4),
    indent=st.sampled_from([None, 1]),
    is_ascii=st.booleans(),
)
def test_json_keeps_what_is_not_a_recording(rows: list[tuple[object, str]], indent: int | None, is_ascii: bool) -> None:
    content = [{"other": other, "path": f"{name}.wav"} for other, name in rows]
    text = json.dumps(content, indent=indent, ensure_ascii=is_ascii)
    manifest = read_paths("a.json", text.encode("utf-8", "surrogatepass"))
    moved = json.loads(manifest.with_paths({f"{name}.wav": f"/new/{name}.wav" for _, name in rows}))
    assert moved == [{"other": other, "path": f"/new/{name}.wav"} for other, name in rows]
