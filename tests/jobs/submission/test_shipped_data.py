"""`data.ship`: what a job finds in its package is what the manifests named where it was submitted."""

import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.submission.assemble import Bundle, collect_bundle, pack_bundle, run_request_of
from jobs.submission.job_spec import JobSpec, load_spec
from runtime_env import package
from tests.jobs.sample import CONTENT
from tests.jobs.submission.test_job_spec import training_of
from trainers.config.parts.data_location import SHIPPED
from trainers.config.parts.data_part import DataPart
from trainers.config.schema import TrainConfig
from trainers.config.storage_location import StorageOptions
from trainers.config.submitted import CONFIG_VARIABLE, config_text, read_submitted
from trainers.data.preparation import prepared_key
from trainers.data.sources.data_source import SourceSplit
from trainers.data.sources.known_sources import open_sources
from trainers.data.sources.manifest_source import open_mixed_sources
from trainers.errors import ConfigError, DataError, RayscribeError

NOW = datetime(2026, 11, 20, tzinfo=UTC)
NAMES = ("a", "b", "č")


@pytest.fixture
def laptop(tmp_path: Path) -> Path:
    """A folder with recordings in `clips`, and valid.csv."""
    folder = tmp_path / "laptop"
    (folder / "clips").mkdir(parents=True)
    for name in (*NAMES, "v"):
        (folder / "clips" / f"{name}.wav").write_bytes(f"recording {name}".encode())
    (folder / "valid.csv").write_text("path,text\nclips/v.wav,vrednost\n")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A working directory."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "task.py").write_text("print('trains')\n")
    return folder


def load(root: Path, data: dict[str, Any], **content: Any) -> JobSpec:
    recipe = root / "sr.yaml"
    recipe.write_text(yaml.safe_dump({**CONTENT, "data": {"ship": True, **data}, **content}))
    return load_spec(recipe, (), here=root, environment={}, now=NOW)


def unpacked(spec: JobSpec, bundle: Bundle, folder: Path) -> TrainConfig:
    """The config as the job has it, whose package is unpacked to a folder."""
    package = pack_bundle(bundle, folder.parent / "packages")
    with zipfile.ZipFile(package.path) as archive:
        archive.extractall(folder)
    config = run_request_of(spec, bundle, package.sha256).config
    submitted = read_submitted({CONFIG_VARIABLE: config_text(config)}, folder)
    assert isinstance(submitted, TrainConfig)
    return submitted


def opened(data: DataPart) -> SourceSplit:
    (source,) = open_sources(data, storage_options=StorageOptions(), splits=("train",))
    return source


def utterances(source: SourceSplit) -> list[tuple[Any, ...]]:
    """What is known of each utterance, with its recording."""
    rows = source.table.to_pylist()
    columns = ("id", "text", "speaker", "language", "duration_s", "offset_s")
    return [
        (*(row[name] for name in columns), recording)
        for row, recording in zip(rows, source.reader.read(rows), strict=True)
    ]


def relative_paths(laptop: Path) -> dict[str, Any]:
    lines = [f"clips/{name}.wav,tekst {name}" for name in NAMES]
    (laptop / "train.csv").write_text("\n".join(["path,text", *lines]))
    return {"train": f"{laptop}/train.csv"}


def paths_elsewhere(laptop: Path) -> dict[str, Any]:
    (laptop.parent / "disk").mkdir()
    (laptop / "clips" / "a.wav").rename(laptop.parent / "disk" / "a.wav")
    (laptop / "train.csv").write_text(f"path,text\n{laptop.parent}/disk/a.wav,jedan\n../disk/a.wav,dva\n")
    return {"train": f"{laptop}/train.csv"}


def segments(laptop: Path) -> dict[str, Any]:
    rows = ("clips/a.wav\tjedan\t0.5\t1.25\tana\tsr", "clips/a.wav\tdva\t2\t\t\thr", 'clips/b.wav\t"tri\t0\t1\tbob\t')
    (laptop / "train.tsv").write_text("\n".join(["path\ttext\toffset\tduration\tspeaker\tlanguage", *rows]))
    return {"train": f"{laptop}/train.tsv"}


def other_columns(laptop: Path) -> dict[str, Any]:
    rows = [{"id": f"utterance {name}", "wav": f"clips/{name}.wav", "sentence": name, "duration": 1} for name in NAMES]
    (laptop / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    columns = {"audio_column_name": "wav", "text_column_name": "sentence"}
    (laptop / "valid.csv").write_text("wav,sentence\nclips/v.wav,vrednost\n")
    return {"train": f"{laptop}/train.jsonl", **columns}


def another_encoding(laptop: Path) -> dict[str, Any]:
    (laptop / "train.csv").write_bytes("path,text\nclips/č.wav,češće\n".encode("cp1250"))
    return {"train": f"{laptop}/train.csv", "encoding": "cp1250"}


def kaldi(laptop: Path) -> dict[str, Any]:
    (laptop / "wav.scp").write_text("".join(f"r-{name} clips/{name}.wav\n" for name in NAMES))
    (laptop / "text").write_text("".join(f"{name} tekst {name}\n" for name in NAMES))
    (laptop / "segments").write_text("".join(f"{name} r-{name} 0.5 1.5\n" for name in NAMES))
    (laptop / "utt2spk").write_text("".join(f"{name} ana\n" for name in NAMES))
    return {"train": f"kaldi:{laptop}"}


def data_root(laptop: Path) -> dict[str, Any]:
    (laptop / "lists").mkdir()
    rows = {name: {"wav": f"{{data_root}}/{name}.wav", "words": name, "length": 2.5} for name in NAMES}
    (laptop / "lists" / "train.json").write_text(json.dumps(rows))
    return {"train": f"speechbrain:{laptop}/lists/train.json?data_root={laptop}/clips"}


def path_prefix(laptop: Path) -> dict[str, Any]:
    (laptop / "train.csv").write_text("path,text\n/mnt/speech/a.wav,jedan\n")
    return {"train": f"{laptop}/train.csv", "path_prefix": {"/mnt/speech/": f"{laptop}/clips/"}}


def archive(laptop: Path, name: str = "corpus.tar", mode: str = "w") -> dict[str, Any]:
    data = relative_paths(laptop)
    with tarfile.open(laptop / name, mode) as file:  # type: ignore[call-overload]
        for path in ("train.csv", "clips"):
            file.add(laptop / path, path)
    shutil.rmtree(laptop / "clips")
    (laptop / "valid.csv").write_text(f"path,text\n{laptop}/{name}/clips/v.wav,vrednost\n")
    return {**data, "train": f"{laptop}/{name}/train.csv"}


def compressed_archive(laptop: Path) -> dict[str, Any]:
    return archive(laptop, "corpus.tar.gz", "w:gz")


def mix(laptop: Path) -> dict[str, Any]:
    (laptop / "mine.csv").write_text("file,text\nclips/a.wav,jedan\nclips/b.wav,dva\n")
    members = [
        {"name": "mine", "train": f"{laptop}/mine.csv", "audio_column_name": "file", "language": "Serbian"},
        {"name": "theirs", "train": relative_paths(laptop)["train"]},
    ]
    return {"mix": members}


FORMS: tuple[Callable[[Path], dict[str, Any]], ...] = (
    relative_paths,
    paths_elsewhere,
    segments,
    other_columns,
    another_encoding,
    kaldi,
    data_root,
    path_prefix,
    archive,
    compressed_archive,
    mix,
)


@pytest.mark.parametrize("form", FORMS)
def test_the_job_has_the_same_utterances_when_the_folder_is_gone(
    form: Callable[[Path], dict[str, Any]], laptop: Path, root: Path, tmp_path: Path
) -> None:
    spec = load(root, {"validation": f"{laptop}/valid.csv", **form(laptop)})
    expected = utterances(opened(training_of(spec).data))
    bundle = collect_bundle(spec)
    config = unpacked(spec, bundle, tmp_path / "node")
    shutil.rmtree(laptop)
    shutil.rmtree(tmp_path / "disk", ignore_errors=True)
    assert utterances(opened(config.data)) == expected
    (validation,) = open_sources(config.data, storage_options=StorageOptions(), splits=("validation",))
    assert [row[-1] for row in utterances(validation)] == [b"recording v"]


def test_recordings_that_are_mixed_into_clips_are_shipped_too(laptop: Path, root: Path, tmp_path: Path) -> None:
    (laptop / "noise.csv").write_text("path\nclips/a.wav\n")
    data = {**relative_paths(laptop), "validation": f"{laptop}/valid.csv"}
    spec = load(root, data, augment={"noise_manifest": f"{laptop}/noise.csv"})
    config = unpacked(spec, collect_bundle(spec), tmp_path / "node")
    shutil.rmtree(laptop)
    assert config.augment.noise_manifest is not None
    (noise,) = open_mixed_sources(
        config.data, {"augment.noise_manifest": config.augment.noise_manifest}, storage_options=StorageOptions()
    )
    assert [Path(path).read_bytes() for path in noise.table["audio"].to_pylist()] == [b"recording a"]


@pytest.mark.parametrize("kind", ["content", "manifest"])
def test_what_is_shipped_again_has_the_key_of_before_wherever_it_was_and_is_unpacked(
    kind: str | None, laptop: Path, root: Path, tmp_path: Path
) -> None:
    def key(session: str, package: str) -> str:
        data = {**relative_paths(laptop), "validation": f"{laptop}/valid.csv", "fingerprint": kind}
        spec = load(root, data)
        folder = tmp_path / session / "working_dir_files" / f"_ray_pkg_{package}"
        config = unpacked(spec, collect_bundle(spec), folder)
        return prepared_key(opened(config.data), config.data)

    before = key("session_1", "0a")
    laptop = laptop.rename(tmp_path / "moved")
    (root / "task.py").write_text("print('trains better')\n")
    assert key("session_2", "0b") == before
    (laptop / "clips" / "a.wav").write_bytes(b"another recording")
    assert key("session_3", "0c") != before


def test_what_other_machines_have_stays_there(laptop: Path, root: Path) -> None:
    (laptop / "train.csv").write_text("path,text\ns3://bucket/a.wav,jedan\nclips/b.wav,dva\n")
    spec = load(root, {"train": f"{laptop}/train.csv", "validation": "s3://bucket/valid.csv"})
    bundle = collect_bundle(spec)
    config = run_request_of(spec, bundle, "ab" * 32).config
    assert (config["data"]["train"], config["data"]["validation"]) == (
        f"{SHIPPED}/train.jsonl",
        "s3://bucket/valid.csv",
    )
    manifest = bundle.extra[f"{SHIPPED}/train.jsonl"]
    assert isinstance(manifest, bytes)
    first, second = (json.loads(line)["path"] for line in manifest.splitlines())
    assert first == "s3://bucket/a.wav"
    assert bundle.extra[f"{SHIPPED}/{second}"] == laptop / "clips" / "b.wav"


def test_recordings_of_the_working_directory_are_packaged_once(laptop: Path, root: Path, tmp_path: Path) -> None:
    shutil.copytree(laptop, root / "speech")
    relative_paths(root / "speech")
    spec = load(root, {"train": "speech/train.csv", "validation": "speech/valid.csv"})
    bundle = collect_bundle(spec)
    assert {name for name in bundle.extra if name.startswith(SHIPPED)} == {
        f"{SHIPPED}/train.jsonl",
        f"{SHIPPED}/validation.jsonl",
    }
    config = unpacked(spec, bundle, tmp_path / "node")
    assert utterances(opened(config.data))[0][-1] == b"recording a"


def test_a_recording_that_two_manifests_name_is_packaged_once(laptop: Path, root: Path) -> None:
    shutil.copy(laptop / "clips" / "a.wav", laptop / "clips" / "b.wav")
    noise = {"noise_manifest": relative_paths(laptop)["train"]}
    spec = load(root, {**relative_paths(laptop), "validation": f"{laptop}/valid.csv"}, augment=noise)
    files = collect_bundle(spec).extra
    assert sorted(name.rpartition(".")[2] for name in files if name.startswith(SHIPPED)) == [
        *["jsonl"] * 3,
        *["wav"] * 3,
    ]


def test_the_home_folder_is_this_user_s(laptop: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    relative_paths(laptop)
    monkeypatch.setenv("HOME", str(laptop))
    spec = load(root, {"train": "~/train.csv", "validation": "~/valid.csv"})
    assert training_of(spec).data.train == f"{laptop}/train.csv"
    with pytest.raises(ConfigError, match=r"data\.train: ~/train\.csv is another folder on each machine"):
        load(root, {"ship": False, "train": "~/train.csv", "validation": "~/valid.csv"})


def test_what_is_not_read_of_a_manifest_is_told(laptop: Path, root: Path) -> None:
    (laptop / "train.csv").write_text("path,text,Speaker\nclips/a.wav,jedan,ana\n")
    spec = load(root, {"train": f"{laptop}/train.csv", "validation": f"{laptop}/valid.csv"})
    shipment = collect_bundle(spec).shipment
    assert shipment is not None
    (warning,) = shipment.warnings
    assert "the column 'Speaker' is not read: rename it to 'speaker'" in warning


def missing(laptop: Path) -> dict[str, Any]:
    (laptop / "train.csv").write_text("path,text\nclips/a.wav,jedan\nclips/gone.wav,dva\nclips,tri\n")
    return {"train": f"{laptop}/train.csv"}


def missing_member(laptop: Path) -> dict[str, Any]:
    data = archive(laptop)
    (laptop / "corpus.csv").write_text(f"id,path,text\nclips/gone.wav,{laptop}/corpus.tar/clips/gone.wav,jedan\n")
    return {**data, "train": f"{laptop}/corpus.csv"}


def secret(laptop: Path) -> dict[str, Any]:
    (laptop / "id_rsa").write_text("key")
    (laptop / "train.csv").write_text("path,text\nid_rsa,jedan\n")
    return {"train": f"{laptop}/train.csv"}


def folder_of_datasets(laptop: Path) -> dict[str, Any]:
    return {"mix": [{"name": "saved", "dataset": {"name": str(laptop)}}]}


REFUSED: dict[str, tuple[Callable[[Path], dict[str, Any]], str]] = {
    "missing recordings": (
        missing,
        r"data\.train: \S+/train\.csv: .* of 3 recordings 2 cannot be packaged: 'clips/gone\.wav' \(\S+/gone\.wav: no "
        r"such file on this machine\), 'clips' \(",
    ),
    "missing member": (missing_member, r"'clips/gone\.wav' \(\S+/corpus\.tar/clips/gone\.wav: no such member of the"),
    "missing manifest": (lambda laptop: {"train": f"{laptop}/gone.csv"}, r"data\.train: \S+/gone\.csv: no such file"),
    "secret": (secret, r"'id_rsa' \(\S+/id_rsa: looks like a secret\)"),
    "folder of datasets": (folder_of_datasets, r"data\.mix: saved\.dataset\.name is the folder "),
    "plug-in": (
        lambda laptop: {"mix": [{"name": "tar", "source": {"name": "tar"}}]},
        r"data\.mix: tar\.source is tar, but data\.ship is for manifests",
    ),
    "variable of the nodes": (
        lambda laptop: {"train": "${SPEECH}/train.csv"},
        r"data\.train names SPEECH, which only the nodes know: write its value",
    ),
    "times": (
        lambda laptop: relative_paths(laptop) | {"fingerprint": "metadata"},
        r"data\.fingerprint is metadata, but .*: set it to content",
    ),
    "prefixes for the nodes": (
        lambda laptop: {"train": "s3://bucket/train.csv", "path_prefix": {"/home/": "/mnt/"}},
        r"data\.train is s3://bucket/train\.csv, .* data\.path_prefix is for paths of this machine: remove it",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_carried_is_refused_by_name(name: str, laptop: Path, root: Path) -> None:
    form, message = REFUSED[name]
    job = {"runtime_env": {"env_vars": {"SPEECH": "/there"}}}
    with pytest.raises(RayscribeError, match=message):
        collect_bundle(load(root, {"validation": f"{laptop}/valid.csv", **form(laptop)}, job=job))


def test_an_error_in_a_mix_names_the_member(laptop: Path, root: Path) -> None:
    data = {"mix": [{"name": "mine", "train": f"{laptop}/gone.csv"}], "validation": f"{laptop}/valid.csv"}
    with pytest.raises(DataError, match=r"^data\.mix: mine: data\.train: \S+/gone\.csv: no such file"):
        collect_bundle(load(root, data))


def test_a_set_over_the_limit_is_refused_with_its_largest_recordings(
    laptop: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package, "LIMIT_BYTES", 3 * package.MIB)
    (laptop / "clips" / "b.wav").write_bytes(os.urandom(4 * package.MIB))
    bundle = collect_bundle(load(root, {**relative_paths(laptop), "validation": f"{laptop}/valid.csv"}))
    with pytest.raises(ConfigError) as refused:
        pack_bundle(bundle, tmp_path / "packages")
    for part in (
        "Limits are 3 MiB as a zip",
        f"Largest: {laptop}/clips/b.wav 4.0 MiB, ",
        "including 4 of data.ship (4.0 MiB)",
        "set data.ship: false",
        "excludes: [/sr.yaml]",
    ):
        assert part in str(refused.value)


def test_a_set_that_no_package_could_hold_is_refused_before_it_is_read(laptop: Path, root: Path) -> None:
    os.truncate(laptop / "clips" / "b.wav", 2**33)
    spec = load(root, {**relative_paths(laptop), "validation": f"{laptop}/valid.csv"})
    with pytest.raises(ConfigError, match=r"Largest: \S+/clips/b\.wav 8192\.0 MiB, .*set data\.ship: false"):
        collect_bundle(spec)
