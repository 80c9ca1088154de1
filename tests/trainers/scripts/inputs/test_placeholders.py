"""Placeholders in a script's arguments: known names are resolved, and all else in braces is the script's own."""

import re
from pathlib import Path

import pytest

from trainers.errors import ConfigError
from trainers.scripts.inputs.placeholders import Known, problems_of, resolve

KNOWN = Known("s3://bucket/runs/sr", 2, Path("/node/data"))


def fetch(url: str) -> Path:
    return Path("/cache") / url.rstrip("/").rpartition("/")[2]


def resolved(word: str) -> str:
    """A word as an argument, and as the value of a variable."""
    (argument,), variables = resolve([word], {"NAME": word}, KNOWN, fetch)
    assert variables == {"NAME": argument}
    return argument


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--output_dir={run_folder}/out-{attempt}", "--output_dir=s3://bucket/runs/sr/out-2"),
        ("{data}", "/node/data"),
        ("{s3:b/train.csv}", "/cache/train.csv"),
        ("{s3://b/train.csv}", "/cache/train.csv"),
        ("--files={gs:b/a.csv},{az:c/b.csv}", "--files=/cache/a.csv,/cache/b.csv"),
        ("{https:host:8080/c.csv?sig=a/b=}", "/cache/b="),
        ("{s3:b/corpus/}/dev.csv", "/cache/corpus/dev.csv"),
        (
            '{"train": "{s3:b/my train.csv}", "dir": {"d":{data}}}',
            '{"train": "/cache/my train.csv", "dir": {"d":/node/data}}',
        ),
        ("{{data}} {{s3:b/k}}", "{data} {s3:b/k}"),
    ],
)
def test_known_placeholders_are_resolved_anywhere_in_a_word(word: str, expected: str) -> None:
    assert problems_of([word]) == []
    assert resolved(word) == expected


@pytest.mark.parametrize(
    "word",
    [
        '{"a": 1}',
        '{"s3": "x", "b": {"data": null}}',
        "{{lr}}",
        "{{ data }}",
        "{}",
        "{epoch:02d}-{val_loss:.2f}",
        "{time:%Y/%m/%d}",
        "{name:facebook/wav2vec2,cos:0.5}",
        "{a: {b: c}}",
        "{s3: value}",
        "{data_root}/a.wav",
        "${data}",
        "{rank}",
    ],
)
def test_other_braces_are_the_script_s_own(word: str) -> None:
    assert problems_of([word]) == []
    assert problems_of([word], prepares=False) == []
    assert resolved(word) == word


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--csv", "{s3:bucket}"], "--csv: {s3:bucket} names no file: write {s3:bucket/key}"),
        (["--csv={s3:/key}"], "--csv: {s3:/key} names no file"),
        (["train.py", "{hdfs:a/b}"], "argument 2: {hdfs:a/b}: inputs are not fetched from hdfs: .*double the braces"),
        (["--csv={S3:bucket/key}"], r"--csv: {S3:bucket/key}: inputs are not fetched from S3: write {s3:bucket/key}"),
        (["x={sftp2://host/key}"], "x: .*inputs are not fetched from sftp2"),
        (["CSV={s3:b/../k}"], "CSV: {s3:b/../k}: .* without '..'"),
        (["--a", "b", "{https:me:secret@host/k}"], "argument 3: .*contains a user name"),
    ],
)
def test_what_cannot_be_fetched_is_refused_with_argument_and_fix(words: list[str], problem: str) -> None:
    (found,) = problems_of(words)
    assert "secret" not in found
    assert re.match(problem.replace("{", r"\{").replace("}", r"\}"), found)
    with pytest.raises(ConfigError):
        resolve(words, {}, KNOWN, fetch)


def test_each_input_is_fetched_once() -> None:
    asked: list[str] = []

    def counted(url: str) -> Path:
        asked.append(url)
        return fetch(url)

    resolve(["{s3:b/a}", "{s3://b/a}"], {"A": "{s3:b/a}", "B": "{s3:b/b}"}, KNOWN, counted)
    assert asked == ["s3://b/a", "s3://b/b"]


def test_the_prepared_folder_is_refused_where_nothing_is_prepared() -> None:
    (problem,) = problems_of(["train.py", "--data={data}/train.csv"], prepares=False)
    assert problem.startswith("{data} is what script.prepare writes")
    assert problems_of(["{{data}}", "{s3:b/data}"], prepares=False) == []
