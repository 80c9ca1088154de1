"""Archives of models, hostile ones above all: nothing is written but the files of a complete model."""

import gzip
import io
import itertools
import random
import re
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.trainers.data.sources.archives.damages import headers_of_tar, require_same_or_refused
from trainers.errors import ConfigError, StorageError
from trainers.models.sources import archives
from trainers.models.sources.archives import is_archive, is_checkpoint, unpack_model
from trainers.models.sources.model_files import names_in, refuse_incomplete

FILES = {"config.json": b"{}", "model.safetensors": random.Random(1).randbytes(7000), "tokenizer.json": b"{}"}


def unpacked(file: Path, folder: Path, *, allow_pickle: bool = False) -> dict[str, bytes]:
    """What is written of an archive."""
    folder.mkdir()
    unpack_model(file, folder, "the archive", allow_pickle=allow_pickle)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refused(file: Path, folder: Path, message: str, kind: type[Exception] = ConfigError) -> None:
    """It must be refused, and nothing be written anywhere but in its folder."""
    inside = folder / "deep" / "inside"
    inside.mkdir(parents=True)
    before = sorted(folder.parent.rglob("*"))
    with pytest.raises(kind, match=message):
        unpack_model(file, inside, "the archive", allow_pickle=False)
    assert sorted(path for path in folder.parent.rglob("*") if inside not in path.parents) == before


def zip_of(file: Path, files: dict[str, bytes], change: Callable[[zipfile.ZipInfo], None] = lambda info: None) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            change(info)
            archive.writestr(info, content)
    return file


def tar_of(file: Path, files: dict[str, bytes], *special: tarfile.TarInfo, mode: str = "w") -> Path:
    with tarfile.open(file, mode) as archive:  # type: ignore[call-overload]
        for item in special:
            archive.addfile(item)
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file


def named(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("home", ["", "model/", "./a/b/"])
@pytest.mark.parametrize("mode", ["zip", "w", "w:gz"])
def test_a_model_is_written_wherever_it_lies_in_the_archive(tmp_path: Path, home: str, mode: str) -> None:
    files = {f"{home}{name}": content for name, content in FILES.items()}
    more = {f"{home}README.md": b"words", f"{home}runs/events.json": b"{}", f"{home}pytorch_model.bin": b"pickle"}
    file = tmp_path / "archive"
    if mode == "zip":
        zip_of(file, files | more)
    else:
        tar_of(file, files | more, mode=mode)
    assert is_archive(file)
    assert not is_checkpoint(file)
    assert unpacked(file, tmp_path / "to") == FILES


PATHS = ["../config.json", "/etc/config.json", "a/../../config.json", "C:/config.json", "..\\config.json"]


@pytest.mark.parametrize("name", PATHS)
def test_a_path_that_leads_out_of_it_is_refused(tmp_path: Path, name: str) -> None:
    refused(zip_of(tmp_path / "a.zip", {**FILES, name: b""}), tmp_path / "zip", "a path outside of the archive")
    refused(tar_of(tmp_path / "a.tar", {**FILES, name: b""}), tmp_path / "tar", "a path outside of the archive")


@pytest.mark.parametrize(
    "special",
    [
        named("model/link.json", tarfile.SYMTYPE, "/etc/passwd"),
        named("model/link.json", tarfile.LNKTYPE, "model/config.json"),
        named("model/device.json", tarfile.CHRTYPE),
        named("model/pipe.json", tarfile.FIFOTYPE),
        named("model/sparse.json", tarfile.GNUTYPE_SPARSE),
    ],
    ids=lambda info: str(info.type),
)
def test_what_is_no_plain_file_is_refused(tmp_path: Path, special: tarfile.TarInfo) -> None:
    files = {f"model/{name}": content for name, content in FILES.items()}
    refused(
        tar_of(tmp_path / "a.tar", files, special),
        tmp_path / "to",
        "not a regular file|truncated or damaged",
        Exception,
    )


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    def link(info: zipfile.ZipInfo) -> None:
        info.external_attr = (stat.S_IFLNK | 0o777) << 16

    refused(zip_of(tmp_path / "a.zip", {"config.json": b"/etc/passwd"}, link), tmp_path / "to", "not a regular file")


def test_a_name_twice_is_refused(tmp_path: Path) -> None:
    file = zip_of(tmp_path / "a.zip", FILES)
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("config.json", b"other")
    refused(file, tmp_path / "to", "holds 'config.json' twice")


def test_huge_claims_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    info = tarfile.TarInfo("model.safetensors")
    info.size = archives.MAX_BYTES + 1
    file = tmp_path / "a.tar.gz"
    with gzip.open(file, "wb") as stream:
        stream.write(info.tobuf())
        stream.write(bytes(2**20))
    refused(file, tmp_path / "to", "claims more than 10000 files or 100 GiB")


def test_a_header_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, 2**31
    file = tmp_path / "a.tar.gz"
    with gzip.open(file, "wb") as stream:
        stream.write(info.tobuf())
        stream.write(bytes(2**25))
    refused(file, tmp_path / "to", "a header claims 2147483648 bytes", StorageError)


def test_many_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_MEMBERS", 2)
    refused(zip_of(tmp_path / "a.zip", FILES), tmp_path / "to", "claims more than 2 files")


def test_a_description_of_weights_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_DESCRIPTION_BYTES", 100)
    files = {**FILES, "tokenizer.json": bytes(101)}
    refused(zip_of(tmp_path / "a.zip", files), tmp_path / "to", "tokenizer.json claims 101 bytes")


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("kind", ["zip", "w", "w:gz"])
def test_one_that_is_cut_is_no_archive(tmp_path: Path, kind: str, kept: float) -> None:
    file = tmp_path / "a"
    _ = zip_of(file, FILES) if kind == "zip" else tar_of(file, FILES, mode=kind)
    size = 512 * 3 + sum(-(-len(content) // 512) * 512 for content in FILES.values()) if kind == "w" else None
    content = file.read_bytes()[:size]
    file.write_bytes(content[: round(len(content) * kept)])
    (tmp_path / "to").mkdir()
    with pytest.raises(StorageError, match=r"truncated|damaged at byte"):
        unpack_model(file, tmp_path / "to", "the archive", allow_pickle=False)


def test_a_tar_that_is_cut_between_two_members_is_no_archive(tmp_path: Path) -> None:
    files = {"config.json": b"{}", "model.safetensors": b"weights"}
    file = tar_of(tmp_path / "a", {**files, "tokenizer.json": b"{}"})
    file.write_bytes(file.read_bytes()[: 4 * 512])
    refused(file, tmp_path / "to", "without an end mark: it is truncated", StorageError)


def test_content_that_does_not_fit_its_checksum_is_damage(tmp_path: Path) -> None:
    file = zip_of(tmp_path / "a.zip", FILES)
    weights = FILES["model.safetensors"]
    file.write_bytes(file.read_bytes().replace(weights, weights[::-1]))
    refused(file, tmp_path / "to", "truncated or damaged .*Bad CRC", StorageError)


@pytest.mark.parametrize("mode", ["zip", "deflated zip", "w", "w:gz"])
def test_a_damaged_archive_gives_the_model_that_it_was_made_of_or_none(tmp_path: Path, mode: str) -> None:
    # Weights are a tenth, so that most bits are of headers; a damaged name must not make a tokenizer be passed over.
    files = {f"model/{name}": content[:900] * 2 for name, content in FILES.items()}
    file, to = tmp_path / "archive", tmp_path / "to"
    if "zip" in mode:
        kind = zipfile.ZIP_DEFLATED if mode.startswith("deflated") else zipfile.ZIP_STORED
        zip_of(file, files, lambda info: setattr(info, "compress_type", kind))
    else:
        tar_of(file, files, mode=mode)

    def read(data: bytes) -> dict[str, bytes]:
        file.write_bytes(data)
        shutil.rmtree(to, ignore_errors=True)
        if not is_archive(file):
            raise ConfigError("is no zip, no tar")
        return unpacked(file, to)

    data = file.read_bytes()
    require_same_or_refused(
        data, read, (ConfigError, StorageError), places=headers_of_tar(data) if mode == "w" else None
    )


def test_a_wrong_length_in_the_directory_of_a_zip_leaves_no_file_out(tmp_path: Path) -> None:
    files = {**FILES, "generation_config.json": b"{}"}
    data = zip_of(tmp_path / "a", files).read_bytes()
    starts = [found.start() for found in re.finditer(b"PK\1\2", data)]
    places = [start + offset for start in starts for offset in range(28, 34)]
    for place, bit in itertools.product(places, range(8)):
        (tmp_path / "a").write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
        shutil.rmtree(tmp_path / "to", ignore_errors=True)
        with suppress(StorageError, ConfigError):
            assert unpacked(tmp_path / "a", tmp_path / "to") == files


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("large", [False, True])
def test_a_member_that_the_directory_does_not_name_is_damage(tmp_path: Path, streamed: bool, large: bool) -> None:
    class Stream(io.BytesIO):
        """As a pipe, which nothing is written to again: sizes are behind members."""

        def seekable(self) -> bool:
            return not streamed

    with zipfile.ZipFile(stream := Stream(), "w") as archive:
        for name, content in FILES.items():
            with archive.open(name, "w", force_zip64=large) as member:
                member.write(content)
    (tmp_path / "a").write_bytes(stream.getvalue())
    assert unpacked(tmp_path / "a", tmp_path / "whole") == FILES
    for number in range(len(FILES)):
        changed = io.BytesIO((tmp_path / "a").read_bytes())
        with zipfile.ZipFile(changed, "a") as archive:
            archive.filelist.pop(number)
            archive.comment = b"written again"
        (tmp_path / "b").write_bytes(changed.getvalue())
        refused(tmp_path / "b", tmp_path / str(number), "there is data before", StorageError)


def test_a_tar_whose_last_file_is_a_zip_is_a_tar(tmp_path: Path) -> None:
    inner = zip_of(tmp_path / "inner", {"archive/data.pkl": b"pickle", "archive/version": b"3"}).read_bytes()
    file = tar_of(tmp_path / "archive", {**FILES, "pytorch_model.bin": inner})
    assert is_archive(file) and not is_checkpoint(file)
    assert unpacked(file, tmp_path / "to") == FILES


def test_a_compressed_archive_may_be_of_several_parts(tmp_path: Path) -> None:
    plain = tar_of(tmp_path / "plain", FILES).read_bytes()
    parts = [gzip.compress(plain[start : start + 3000]) for start in range(0, len(plain), 3000)]
    (tmp_path / "joined").write_bytes(b"".join(parts) + bytes(512))
    assert unpacked(tmp_path / "joined", tmp_path / "to") == FILES
    parts[-1] = bytes([parts[-1][0] ^ 1]) + parts[-1][1:]
    (tmp_path / "joined").write_bytes(b"".join(parts))
    refused(tmp_path / "joined", tmp_path / "other", "truncated", StorageError)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.txt": b""}, "holds no config.json"),
        ({"config.json": b"{}"}, "holds no weights"),
        ({"config.json": b"{}", "pytorch_model.bin": b""}, r"other files \(pytorch_model.bin\) can run code"),
        ({"config.json": b"{}", "tf_model.h5": b"", "flax_model.msgpack": b""}, r"flax_model.msgpack, tf_model.h5\)"),
        ({f"{home}/{name}": b"" for home in "ab" for name in FILES}, r"holds several models \(a, b\)"),
    ],
)
def test_what_is_no_model_is_refused_by_its_name(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    refused(zip_of(tmp_path / "a.zip", files), tmp_path / "to", message)


def test_pickled_weights_are_written_where_they_are_allowed(tmp_path: Path) -> None:
    files = {"config.json": b"{}", "pytorch_model.bin": b"pickle"}
    assert unpacked(zip_of(tmp_path / "a.zip", files), tmp_path / "to", allow_pickle=True) == files


def test_pickled_weights_with_a_changed_bit_are_refused_although_torch_would_load_them(tmp_path: Path) -> None:
    weights = random.Random(2).randbytes(5000)
    zip_of(
        tmp_path / "pytorch_model.bin", {"archive/data.pkl": b"pickle", "archive/version": b"3", "archive/0": weights}
    )
    refuse_incomplete(tmp_path, names_in(tmp_path), "the model")
    data = (tmp_path / "pytorch_model.bin").read_bytes()
    changed = data.replace(weights, weights[:2500] + bytes([weights[2500] ^ 1]) + weights[2501:])
    (tmp_path / "pytorch_model.bin").write_bytes(changed)
    with pytest.raises(
        StorageError, match=r"pytorch_model\.bin: is damaged \(Bad CRC-32 or name of archive/0\): copy it"
    ):
        refuse_incomplete(tmp_path, names_in(tmp_path), "the model")
    # They are not opened where there are others.
    (tmp_path / "model.safetensors").write_bytes(b"")
    refuse_incomplete(tmp_path, names_in(tmp_path), "the model")
