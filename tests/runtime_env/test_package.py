import hashlib
import io
import os
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_env import package
from runtime_env.package import Package, import_package, pack, package_size, verify
from runtime_env.tree import list_tree
from tests.runtime_env.test_tree import grow
from tests.settings import examples
from trainers.errors import ConfigError

PARTS = st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="/\\:"), min_size=1, max_size=8)
PATHS = st.lists(PARTS.filter(lambda part: part not in (".", "..")), min_size=1, max_size=3).map("/".join)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return grow(tmp_path / "root", {"task.py": "print('hello')\n", "a/b.txt": "b" * 1000, "go.sh": "true\n"})


def packed(root: Path, extra: dict[str, bytes] | None = None) -> Package:
    return pack(list_tree(root, []), root.parent / "packages", extra)


def content_of(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_the_same_content_is_the_same_package_whatever_its_times(root: Path) -> None:
    first = packed(root)
    for path in root.rglob("*"):
        os.utime(path, (1, 1))
    again = packed(root)
    assert again == first
    assert first.path == root.parent / "packages" / f"{first.sha256}.zip"
    assert first.size_bytes == first.path.stat().st_size
    assert list(first.path.parent.iterdir()) == [first.path]
    (root / "task.py").write_text("print('other')\n")
    assert packed(root).sha256 != first.sha256


def unpack(path: Path, target: Path) -> None:
    """Unpacks as Ray does: with the modes that the zip says."""
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            Path(archive.extract(info, target)).chmod(info.external_attr >> 16)


def test_what_may_be_run_still_may_after_unpacking(root: Path) -> None:
    plain = packed(root).sha256
    (root / "go.sh").chmod(0o700)
    made = packed(root)
    assert made.sha256 != plain
    unpack(made.path, root.parent / "out")
    assert stat.S_IMODE((root.parent / "out" / "go.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((root.parent / "out" / "task.py").stat().st_mode) == 0o644


def test_the_computed_size_is_the_package_s(root: Path) -> None:
    extra = {".rayscribe/recipe.yaml": b"run: {}\n"}
    made, size = packed(root, extra), package_size(list_tree(root, []), extra)
    assert size.fits
    assert (size.zip_bytes, size.files) == (made.size_bytes, made.files)


@settings(max_examples=examples(60), deadline=None)
@given(st.dictionaries(PATHS, st.binary(max_size=3000), max_size=8), st.dictionaries(PATHS, st.binary(), max_size=2))
def test_what_was_packed_is_unpacked(files: dict[str, bytes], extra: dict[str, bytes]) -> None:
    with TemporaryDirectory() as name:
        base = Path(name).resolve()
        root = grow(base / "root", {"task.py": ""})
        for path, content in files.items():
            target = root / path
            if not any(part.is_file() for part in target.parents) and not target.is_dir():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
        listed = list_tree(root, [])
        here = {file.path: (root / file.path).read_bytes() for file in listed.files}
        extra = {f".rayscribe/{number}": content for number, content in enumerate(extra.values())}
        made = pack(listed, base / "packages", extra)
        unpack(made.path, base / "out")
        assert content_of(base / "out") == {**here, **extra}
        assert made.files == len(here) + len(extra)


def test_too_large_a_tree_is_refused_with_its_largest_file(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "LIMIT_BYTES", 5000)
    (root / "weights.bin").write_bytes(os.urandom(6000))
    with pytest.raises(ConfigError, match=r"too large a working directory.*Largest: weights\.bin"):
        packed(root)
    assert list((root.parent / "packages").iterdir()) == []


def test_a_bomb_in_the_tree_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "MAX_UNPACKED_BYTES", 50_000)
    (root / "zeros").write_bytes(bytes(60_000))
    with pytest.raises(ConfigError, match="too large"):
        packed(root)


def test_too_many_files_are_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "MAX_FILES", 2)
    with pytest.raises(ConfigError, match="3 files"):
        packed(root)


def test_a_package_without_its_entry_is_refused(root: Path) -> None:
    (root / ".gitignore").write_text("task.py\n")
    with pytest.raises(ConfigError, match=r"task\.py is not in the package \(left out by \.gitignore\)"):
        packed(root)
    (root / ".gitignore").write_text("*\n")
    with pytest.raises(ConfigError, match=r"task\.py is not in the package \(left out by \.gitignore\)"):
        packed(root)


def test_an_entry_that_is_not_there_is_named_with_its_folder(root: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^trian\.py: no such file in {root}, .*: correct its name"):
        pack(list_tree(root, []), root.parent / "packages", needed="trian.py")


def test_a_file_that_vanishes_meanwhile_is_named(root: Path) -> None:
    listed = list_tree(root, [])
    (root / "a" / "b.txt").unlink()
    with pytest.raises(ConfigError, match=r"a/b\.txt: No such file"):
        pack(listed, root.parent / "packages")


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"task.py": b""}, "task.py.*unique"),
        ({"../out": b""}, "must be relative"),
        ({"/etc/x": b""}, "must be relative"),
        ({"a/b.txt/c": b""}, "as a file and as a folder"),
    ],
)
def test_a_further_file_cannot_stand_in_the_way(root: Path, extra: dict[str, bytes], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        packed(root, extra)


def test_a_package_is_taken_in_under_its_hash_only(root: Path, tmp_path: Path) -> None:
    made = packed(root)
    store = tmp_path / "store"
    import_package(made.path, store / f"{made.sha256}.zip")
    verify(store / f"{made.sha256}.zip", made.sha256)
    with pytest.raises(ConfigError, match="damaged"):
        import_package(made.path, store / f"{'0' * 64}.zip")
    assert [path.name for path in store.iterdir()] == [f"{made.sha256}.zip"]


@pytest.mark.parametrize("what", ["a bit of its content", "its local header", "a deflated stream of nothing"])
def test_a_zip_that_cannot_be_unpacked_is_not_taken_in(root: Path, tmp_path: Path, what: str) -> None:
    content = bytearray(packed(root).path.read_bytes())
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        info = archive.infolist()[0]
    start = info.header_offset + 30 + len(info.filename)
    if what == "its local header":
        content[info.header_offset : info.header_offset + 4] = b"XXXX"
    elif what == "a bit of its content":
        content[start + info.compress_size // 2] ^= 1
    else:
        content[start : start + info.compress_size] = bytes(info.compress_size)
    sha256 = hashlib.sha256(content).hexdigest()
    (upload := tmp_path / "upload").write_bytes(content)
    store = tmp_path / "store"
    with pytest.raises(ConfigError, match=f"package {sha256} cannot be unpacked"):
        import_package(upload, store / f"{sha256}.zip")
    assert list(store.iterdir()) == []


def test_damage_is_found(root: Path) -> None:
    made = packed(root)
    content = bytearray(made.path.read_bytes())
    content[len(content) // 2] ^= 1
    made.path.write_bytes(content)
    with pytest.raises(ConfigError, match="damaged"):
        verify(made.path, made.sha256)
    with pytest.raises(ConfigError, match="was not found: submit"):
        verify(made.path.with_name("gone.zip"), made.sha256)


def entry(name: str, *, mode: int = 0o100644, size: int | None = None, flags: int = 0) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.create_system = package.UNIX
    info.external_attr = mode << 16
    info.flag_bits |= flags
    return info


def evil(path: Path, change: Callable[[zipfile.ZipFile], None]) -> str:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("task.py", "")
        change(file)
    return package._digest(path)


def write_file_and_folder(file: zipfile.ZipFile) -> None:
    file.writestr("a", "x")
    file.writestr("a/b", "x")


def later_version() -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("x")
    info.extract_version = 99
    return info


ATTACKS: dict[str, tuple[Callable[[zipfile.ZipFile], None], str]] = {
    "climbs": (lambda file: file.writestr("../evil", "x"), "must be relative"),
    "climbs inside": (lambda file: file.writestr("a/../../evil", "x"), "must be relative"),
    "absolute": (lambda file: file.writestr("/tmp/evil", "x"), "must be relative"),
    "backslash": (lambda file: file.writestr("..\\evil", "x"), "must be relative"),
    "drive": (lambda file: file.writestr("c:evil", "x"), "must be relative"),
    "folder entry": (lambda file: file.writestr("folder/", ""), "must be relative"),
    "link": (lambda file: file.writestr(entry("link", mode=stat.S_IFLNK | 0o777), "/etc/passwd"), "a link"),
    "device": (lambda file: file.writestr(entry("null", mode=stat.S_IFCHR | 0o666), ""), "a device"),
    "file as folder": (write_file_and_folder, "as a folder"),
    "later version": (lambda file: file.writestr(later_version(), "x"), "zip file version 9.9"),
    "other packing": (
        lambda file: file.writestr("x", "x", compress_type=zipfile.ZIP_LZMA),
        "compressed in a way",
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_evil_zip_is_refused_and_leaves_nothing(tmp_path: Path, attack: str) -> None:
    change, says = ATTACKS[attack]
    path = tmp_path / "evil.zip"
    sha256 = evil(path, change)
    with pytest.raises(ConfigError, match=says):
        verify(path, sha256)
    assert [item.name for item in tmp_path.rglob("*")] == ["evil.zip"]


# In a process of its own: other tests' threads allocate meanwhile.
MEMORY_OF_NAMES = """
import tracemalloc
from runtime_env import package
from trainers.errors import ConfigError
names = [f"{'d/' * 2000}{number}" for number in range(2000)]
tracemalloc.start()
try:
    package._check_names([*names, f"{names[-1]}/x"], "the package")
except ConfigError as error:
    assert "as a file and as a folder" in str(error)
    print(tracemalloc.get_traced_memory()[1] / sum(map(len, names)))
"""


def test_long_and_deep_names_take_no_more_memory_than_they_are_long() -> None:
    found = subprocess.run([sys.executable, "-c", MEMORY_OF_NAMES], capture_output=True, text=True, check=True)
    assert float(found.stdout) < 10


def test_the_files_of_a_zip_are_counted_before_any_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package, "MAX_FILES", 300)
    path = tmp_path / "many.zip"
    with zipfile.ZipFile(path, "w") as file:
        for number in range(301):
            file.writestr("task.py" if number == 0 else f"{number}", "")
    sha256 = package._digest(path)
    monkeypatch.setattr(zipfile, "ZipInfo", None)
    with pytest.raises(ConfigError, match="has more than 300 files"):
        verify(path, sha256)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evil.zip"
    sha256 = evil(path, lambda file: file.writestr("task.py", "other"))
    with pytest.raises(ConfigError, match="unique"):
        verify(path, sha256)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "MAX_UNPACKED_BYTES", 1_000_000)
    path = tmp_path / "bomb.zip"
    sha256 = evil(path, lambda file: file.writestr("zeros", bytes(2_000_000), compress_type=zipfile.ZIP_DEFLATED))
    assert path.stat().st_size < 10_000
    with pytest.raises(ConfigError, match="would unpack to 2000000 bytes"):
        verify(path, sha256)


@pytest.mark.parametrize("name", ["task.py", "main.py"])
def test_a_zip_says_whether_it_has_what_a_training_starts_with(tmp_path: Path, name: str) -> None:
    path = tmp_path / "other.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(name, "x")
    verify(path, package._digest(path))
    assert package.has_entry(path) is (name == "task.py")


def test_what_is_no_zip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.zip"
    path.write_text("no zip")
    with pytest.raises(ConfigError, match="not a zip file that can be read"):
        verify(path, package._digest(path))
