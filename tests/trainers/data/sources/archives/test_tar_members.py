import io
import tarfile
from collections.abc import Callable

import pytest

from trainers.data.sources.archives.tar_members import Member, read_members
from trainers.errors import DataError

CONTENT = {"a.wav": b"x" * 70_000, "a.txt": b"one", "b/" + "long" * 60 + ".wav": b"y" * 1000, "b.json": b"{}"}


def tar_of(change: Callable[[tarfile.TarFile], None] = lambda archive: None, kind: int = tarfile.PAX_FORMAT) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=kind) as archive:
        for name, content in CONTENT.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        change(archive)
    return sink.getvalue()


def members_of(data: bytes) -> list[Member]:
    return list(read_members("corpus.tar", lambda start, length: data[start : start + length]))


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax", "gnu"])
def test_members_are_found_where_they_are(kind: int) -> None:
    data = tar_of(kind=kind)
    found = members_of(data)
    assert {member.name: data[member.offset : member.offset + member.size] for member in found} == CONTENT
    assert {member.name: member.text for member in found if member.text is not None} == {
        "a.txt": b"one",
        "b.json": b"{}",
    }
    assert not any(member.problem for member in found)


def test_recordings_are_skipped() -> None:
    data, read = tar_of(), []

    def read_at(start: int, length: int) -> bytes:
        read.append(length)
        return data[start : start + length]

    assert len(list(read_members("corpus.tar", read_at))) == len(CONTENT)
    assert sum(read) < 70_000 + 1_100_000  # The end is looked at in one block of a megabyte.


def named(name: str, **settings: object) -> Callable[[tarfile.TarFile], None]:
    def add(archive: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        for field, value in settings.items():
            setattr(info, field, value)
        archive.addfile(info, io.BytesIO(b"z" * info.size))

    return add


@pytest.mark.parametrize(
    ("added", "problem"),
    [
        (named("../a.wav", size=5), "leads out"),
        (named("/etc/a.wav", size=5), "leads out"),
        (named("c/../../a.wav", size=5), "leads out"),
        (named("link.wav", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "is a link"),
        (named("link.wav", type=tarfile.LNKTYPE, linkname="a.wav"), "is a link"),
        (named("device.wav", type=tarfile.CHRTYPE), "not a regular file"),
        (named("pipe.wav", type=tarfile.FIFOTYPE), "not a regular file"),
    ],
)
def test_a_member_that_leads_elsewhere_is_listed_with_its_problem(
    added: Callable[[tarfile.TarFile], None], problem: str
) -> None:
    *others, last = members_of(tar_of(added))
    assert problem in last.problem and last.text is None
    assert not any(member.problem for member in others)


def test_a_claim_of_more_than_a_recording_is_a_problem_and_reads_nothing() -> None:
    info = tarfile.TarInfo("huge.wav")
    info.size = 2**40
    data = info.tobuf(tarfile.GNU_FORMAT)
    with pytest.raises(DataError, match="damaged or truncated"):
        members_of(data)
    sparse = data.ljust(4 * 2**20, b"\0")
    assert len(sparse) < 2**40
    read = []

    def read_at(start: int, length: int) -> bytes:
        read.append(length)
        end = 2**40 + 11 * 1024
        return sparse[start : start + length] if start < len(sparse) else bytes(min(length, end - start))

    (member,) = read_members("corpus.tar", read_at)
    assert "claims 1099511627776 bytes" in member.problem and sum(read) < 4 * 2**20


def test_a_header_that_claims_gigabytes_is_refused() -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 2**33
    with pytest.raises(DataError, match="a header claims 8589934592 bytes"):
        list(
            read_members(
                "corpus.tar", lambda start, length: info.tobuf(tarfile.GNU_FORMAT).ljust(start + length, b"a")[start:]
            )
        )


def test_an_archive_that_was_cut_anywhere_is_refused() -> None:
    data = tar_of()
    whole = members_of(data)
    end = max(member.offset + member.size for member in whole)
    for cut in (*range(0, end, 997), *range(512, end, 512)):
        with pytest.raises(DataError, match=r"corpus\.tar: .*(truncated|damaged)"):
            members_of(data[:cut])


def test_a_damaged_header_and_an_archive_behind_the_end_are_no_silent_end() -> None:
    data = bytearray(tar_of())
    data[members_of(bytes(data))[1].offset - 512 + 5] ^= 1
    with pytest.raises(DataError, match="damaged at byte"):
        members_of(bytes(data))
    with pytest.raises(DataError, match="others were joined to it"):
        members_of(tar_of() + tar_of())


def test_a_hole_and_a_download_that_stopped_are_no_end() -> None:
    def archive(archive: tarfile.TarFile) -> None:
        for number in range(40):
            named(f"more{number}.wav", size=100_000)(archive)

    data = tar_of(archive)
    half = len(data) // 2 // 512 * 512
    for damaged in (data[:half] + bytes(2 * 2**20) + data[half + 2 * 2**20 :], data[:half] + bytes(len(data) - half)):
        with pytest.raises(DataError, match=r"corpus\.tar: .*(zeros after byte|damaged)"):
            members_of(damaged)


@pytest.mark.parametrize("size", [-512, 2**62])
def test_a_size_that_no_file_has_ends_with_a_message(size: int) -> None:
    header = bytearray(tarfile.TarInfo("b.wav").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = (b"\xff" if size < 0 else b"\x80") + (size % 2**88).to_bytes(11, "big")
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * ord(" ") + sum(header[156:]))
    data = tar_of()
    end = max(member.offset + -(-member.size // 512) * 512 for member in members_of(data))
    # Python 3.11.2 takes a negative size for the end.
    with pytest.raises(DataError, match="the archive is damaged"):
        members_of(data[:end] + bytes(header) + bytes(10240))


def test_texts_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainers.data.sources.archives.tar_members._MOST_TEXTS_BYTES", 4)
    with pytest.raises(DataError, match="its texts have more than 4 bytes"):
        members_of(tar_of())


def test_what_is_no_tar_is_refused() -> None:
    for data in (b"", b"RIFF" * 300, b"\0" * 100):
        with pytest.raises(DataError, match=r"corpus\.tar: the archive is damaged or truncated"):
            members_of(data)
