"""Speech from each source, prepared on a Ray: from disk, a bucket and a web server, and where a fifth of calls fail."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset
from lhotse import CutSet, Recording
from lhotse.cut import MonoCut
from lhotse.supervision import SupervisionSegment

from tests.folder_server import web_server
from tests.integration import prepare_sources
from tests.integration.driver_process import RayHead
from tests.s3 import FaultProxy, serving
from tests.trainers.data.sources.archives.made_archives import recording, text, wave, write_tar
from tests.trainers.synthetic import RATE_HZ
from trainers.config.storage_location import StorageOptions
from trainers.storage import open_storage

COUNT = 12
NUMBERS = range(COUNT)
ROOT = Path(__file__).parents[2]


def words(number: int) -> str:
    # Common Voice's clips without a sentence are left out.
    return text(number) or "prazno"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same clips in every format."""
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def write_corpus(root: Path) -> Path:
    (root / "clips").mkdir()
    for number in NUMBERS:
        (root / "clips" / f"{number}.flac").write_bytes(recording(number))
    manifest = "path\ttext\n" + "".join(f"clips/{number}.flac\t{words(number)}\n" for number in NUMBERS)
    (root / "train.tsv").write_text(manifest)
    members = [(f"clips/{number}.flac", recording(number)) for number in NUMBERS]
    write_tar(root / "corpus.tar", [("train.tsv", manifest.encode()), *members])
    write_tar(root / "corpus.tar.gz", [("train.tsv", manifest.encode()), *members], "w:gz")
    with webdataset.ShardWriter(str(root / "shard-%02d.tar"), maxcount=5, verbose=0) as writer:
        for number in NUMBERS:
            writer.write({"__key__": f"u{number:02d}", "flac": recording(number), "txt": words(number)})
    write_lhotse(root)
    write_nemo(root)
    write_kaldi_and_speechbrain(root)
    write_common_voice(root)
    write_librispeech(root)
    write_data_sets(root)
    return root


def write_lhotse(root: Path) -> None:
    cuts = []
    for number in NUMBERS:
        heard = Recording.from_file(root / "clips" / f"{number}.flac")
        spoken = SupervisionSegment(f"s{number}", heard.id, 0, heard.duration, text=words(number))
        cuts.append(MonoCut(f"c{number:02d}", 0, heard.duration, 0, recording=heard, supervisions=[spoken]))
    cut_set = CutSet.from_cuts(cuts)
    cut_set.to_file(root / "cuts.jsonl.gz")
    (root / "shar").mkdir()
    cut_set.to_shar(str(root / "shar"), fields={"recording": "flac"}, shard_size=5)


def write_nemo(root: Path) -> None:
    rows = []
    for shard in range(2):
        mine = [number for number in NUMBERS if number // 6 == shard]
        write_tar(root / "nemo" / f"audio_{shard}.tar", [(f"c{number}.flac", recording(number)) for number in mine])
        rows += [
            {"audio_filepath": f"c{number}.flac", "text": words(number), "shard_id": shard, "duration": seconds(number)}
            for number in mine
        ]
    (root / "nemo" / "manifest.json").write_text("\n".join(map(json.dumps, rows)))


def write_kaldi_and_speechbrain(root: Path) -> None:
    (root / "kaldi").mkdir()
    (root / "kaldi" / "wav.scp").write_text("".join(f"u{n:02d} ../clips/{n}.flac\n" for n in NUMBERS))
    (root / "kaldi" / "text").write_text("".join(f"u{number:02d} {words(number)}\n" for number in NUMBERS))
    content = {
        f"u{n}": {"wav": f"{{data_root}}/clips/{n}.flac", "wrd": words(n), "duration": seconds(n)} for n in NUMBERS
    }
    (root / "speechbrain.json").write_text(json.dumps(content))


def write_common_voice(root: Path) -> None:
    table = "client_id\tpath\tsentence\n" + "".join(f"ana\t{n:02d}.flac\t{words(n)}\n" for n in NUMBERS)
    clips = {f"cv/sr/clips/{number:02d}.flac": recording(number) for number in NUMBERS}
    for name, content in {**clips, "cv/sr/train.tsv": table.encode()}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    write_tar(root / "cv.tar.gz", [("cv/sr/train.tsv", table.encode()), *clips.items()], "w:gz")


def write_librispeech(root: Path) -> None:
    lines = [f"{84 + n // 6}-7-{n:04d} {words(n)}\n" for n in NUMBERS]
    members = {f"LibriSpeech/dev/{84 + n // 6}/7/{84 + n // 6}-7-{n:04d}.flac": recording(n) for n in NUMBERS}
    for speaker in (84, 85):
        mine = "".join(line for line in lines if line.startswith(f"{speaker}-"))
        members[f"LibriSpeech/dev/{speaker}/7/{speaker}-7.trans.txt"] = mine.encode()
    write_tar(root / "dev.tar.gz", members.items(), "w:gz")
    for name, content in members.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def write_data_sets(root: Path) -> None:
    rows = {
        "audio": [{"bytes": recording(number), "path": f"{number}.flac"} for number in NUMBERS],
        "text": list(map(words, NUMBERS)),
    }
    decoded_here = datasets.Audio(decode=False)
    datasets.Dataset.from_dict(rows).cast_column("audio", decoded_here).save_to_disk(str(root / "arrow"))
    (root / "parquet").mkdir()
    pq.write_table(pa.table(rows), root / "parquet" / "train.parquet")
    folder = root / "audiofolder" / "train"
    folder.mkdir(parents=True)
    for number in NUMBERS:
        (folder / f"{number}.flac").write_bytes(recording(number))
    lines = ["file_name,text", *(f"{number}.flac,{words(number)}" for number in NUMBERS)]
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")


def seconds(number: int) -> float:
    return len(wave(number)) / RATE_HZ


def locations(root: str, *, lists: bool) -> dict[str, str]:
    """Where each format's training split is below a folder or URL; one that lists no folders has the files named."""
    return {
        "manifest": f"{root}/train.tsv",
        "archive": f"{root}/corpus.tar/train.tsv",
        "compressed archive": f"{root}/corpus.tar.gz/train.tsv",
        "webdataset": f"webdataset:{root}/shard-{{00..02}}.tar",
        "shar": f"shar:{root}/shar" + ("" if lists else "/cuts.{000000..000002}.jsonl.gz"),
        "nemo": f"nemo:{root}/nemo/manifest.json?tars=audio__OP_0..1_CL_.tar",
        "kaldi": f"kaldi:{root}/kaldi",
        "speechbrain": f"speechbrain:{root}/speechbrain.json?data_root={root}",
        "common voice": f"common_voice:{root}/cv?language=sr&split=train",
        "common voice's archive": f"common_voice:{root}/cv.tar.gz",
        "librispeech's archive": f"librispeech:{root}/dev.tar.gz",
        **({"librispeech": f"librispeech:{root}/LibriSpeech/dev"} if lists else {}),
    }


def data_of(location: str) -> dict[str, Any]:
    return {"train": location, "validation": "/nowhere.csv"}


def data_set(folder: Path) -> dict[str, Any]:
    part = {"name": str(folder), "test_split": None}
    return {"dataset": part, "audio_column_name": "audio", "text_column_name": "text"}


@pytest.fixture
def prepare_all(ray_head: RayHead, tmp_path: Path) -> Callable[..., dict[str, dict[str, Any]]]:
    """Prepares data parts by name on the session's Ray, in one driver."""

    def run(parts: Mapping[str, dict[str, Any]], cache: str, endpoint: str | None) -> dict[str, dict[str, Any]]:
        work = {name: (part, cache, endpoint) for name, part in parts.items()}
        done = subprocess.run(
            [sys.executable, "-m", prepare_sources.__name__, json.dumps(work)],
            env={**os.environ, "RAY_ADDRESS": ray_head.address},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found = map(json.loads, (line for line in done.stdout.splitlines() if line.startswith("{")))
        return {each.pop("name"): each for each in found}

    return run


def require_all(found: Mapping[str, dict[str, Any]]) -> None:
    for name, each in found.items():
        assert each["texts"] == list(map(words, NUMBERS)), name
        assert each["durations_s"] == list(map(seconds, NUMBERS)), name
        assert each["quarantine"] == [], name


@pytest.fixture
def bucket(corpus: Path, s3_bucket: str, s3_endpoint: str) -> str:
    open_storage(s3_bucket, StorageOptions(s3_endpoint)).upload_folder(corpus, "corpus")
    return f"{s3_bucket}/corpus"


@pytest.fixture
def faults() -> Iterator[Callable[[str], str]]:
    """The URL of a service as it is reached through a proxy that lets a fifth of the requests fail."""
    with ExitStack() as stack:

        def through(upstream: str) -> str:
            proxy = FaultProxy(upstream)
            proxy.fail_share(0.2, seed=7)
            stack.enter_context(serving(proxy.server))
            return proxy.url

        yield through


@pytest.mark.timeout(900)
@pytest.mark.long
def test_each_source_gives_every_clip_once_wherever_it_lies_and_whatever_fails_on_the_way(
    corpus: Path,
    bucket: str,
    s3_endpoint: str,
    tmp_path: Path,
    prepare_all: Callable[..., dict[str, dict[str, Any]]],
    faults: Callable[[str], str],
) -> None:
    on_disk = {name: data_of(location) for name, location in locations(str(corpus), lists=True).items()}
    on_disk["lhotse"] = data_of(f"lhotse:{corpus}/cuts.jsonl.gz")
    on_disk |= {name: data_set(corpus / name) for name in ("arrow", "parquet", "audiofolder")}
    found = prepare_all(on_disk, str(tmp_path / "prepared"), None)
    assert found.keys() == on_disk.keys()
    require_all(found)
    with web_server(corpus) as url:
        for how, root, server in (("web", "", url), ("bucket", bucket, s3_endpoint)):
            through = faults(server)
            parts = {
                name: data_of(location) for name, location in locations(root or through, lists=how == "bucket").items()
            }
            # A second cache: nothing is found there that was prepared without failures.
            cache = f"{bucket}-prepared" if how == "bucket" else str(tmp_path / "from the web")
            remote = prepare_all(parts, cache, through if how == "bucket" else None)
            require_all(remote)
            same = ("texts", "durations_s", "sha256")
            for name, each in remote.items():
                # Ids of plain manifests are paths as they are written, so the stored bytes are equal, too.
                assert [each[key] for key in same] == [found[name][key] for key in same], (how, name)
