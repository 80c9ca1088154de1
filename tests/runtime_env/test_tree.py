import os
import socket
import zipfile
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray._private import ray_constants
from ray._private.runtime_env.packaging import create_package

from runtime_env import package, tree
from runtime_env.package import package_size
from runtime_env.tree import (
    ALWAYS,
    BY_ALWAYS,
    BY_EXCLUDES,
    BY_SECRECY,
    Tree,
    TreeFile,
    find_root,
    list_tree,
)
from tests.settings import examples
from trainers.errors import ConfigError

NAMES = ("a", "b", "ab", "a.py", "b.txt", "é", ".hidden")
PIECES = ("a", "b", "ab", "*", "**", "a*", "*.py", "?", "[ab]", "[!a]", "é", "\\!a")
PATTERNS = st.builds(
    lambda before, pieces, after: before + "/".join(pieces) + after,
    st.sampled_from(["", "", "!", "/", "!/", "#", " "]),
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=3),
    st.sampled_from(["", "", "/", "/**", " "]),
)
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join)


def grow(root: Path, paths: dict[str, str]) -> Path:
    for path, text in paths.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def paths_of(listed: Tree) -> list[str]:
    return [file.path for file in listed.files]


def reasons_of(listed: Tree) -> dict[str, str]:
    return {item.path: item.reason for item in listed.left_out}


def rays_choice(root: Path, excludes: Sequence[str]) -> list[str]:
    """What Ray itself would upload."""
    with TemporaryDirectory() as folder:
        target = Path(folder, "package.zip")
        both = [*ray_constants.get_runtime_env_default_excludes(), *excludes]
        create_package(str(root), target, include_gitignore=True, excludes=both)
        with zipfile.ZipFile(target) as archive:
            return sorted(name for name in archive.namelist() if not name.endswith("/"))


def test_the_root_is_the_nearest_folder_with_an_entry(tmp_path: Path) -> None:
    grow(tmp_path, {"task.py": "", "a/task.py": "", "a/b/c/x": ""})
    assert find_root(tmp_path / "a" / "b" / "c") == tmp_path / "a"
    assert find_root(tmp_path / "a") == tmp_path / "a"


def test_without_an_entry_it_is_the_folder_itself(tmp_path: Path) -> None:
    grow(tmp_path, {"a/b/x": ""})
    assert find_root(tmp_path / "a") == tmp_path / "a"
    with pytest.raises(ConfigError, match=r"job\.runtime_env\.working_dir: .*/gone: no such folder"):
        find_root(tmp_path / "gone")


def test_sizes_and_the_right_to_run_are_listed(tmp_path: Path) -> None:
    grow(tmp_path, {"task.py": "12345", "go.sh": "1"})
    (tmp_path / "go.sh").chmod(0o755)
    assert list_tree(tmp_path, []).files == (TreeFile("go.sh", 1, True), TreeFile("task.py", 5, False))


def test_ignore_files_of_all_folders_count(tmp_path: Path) -> None:
    grow(
        tmp_path,
        {
            ".gitignore": "*.log\n/build/\n",
            ".rayignore": "big\n",
            "task.py": "",
            "x.log": "",
            "build/x": "",
            "sub/.gitignore": "local\n",
            "sub/local": "",
            "sub/kept": "",
            "sub/big": "",
            "local": "",
        },
    )
    listed = list_tree(tmp_path, ["kept"])
    assert paths_of(listed) == [".gitignore", ".rayignore", "local", "sub/.gitignore", "task.py"]
    assert reasons_of(listed) == {
        "build/": ".gitignore",
        "x.log": ".gitignore",
        "sub/big": ".rayignore",
        "sub/kept": BY_EXCLUDES,
        "sub/local": "sub/.gitignore",
    }


def test_what_never_goes_along_stays(tmp_path: Path) -> None:
    grow(
        tmp_path,
        {
            "task.py": "",
            ".git/config": "",
            ".venv/x": "",
            "a/__pycache__/x": "",
            "runs/1/x": "",
            "a/runs/code.py": "",
        },
    )
    listed = list_tree(tmp_path, [])
    assert paths_of(listed) == ["a/runs/code.py", "task.py"]
    assert reasons_of(listed) == dict.fromkeys([".git/", ".venv/", "a/__pycache__/", "runs/"], BY_ALWAYS)


def test_nothing_goes_along_that_ray_leaves_at_home() -> None:
    assert set(ray_constants.get_runtime_env_default_excludes()) <= set(ALWAYS)


def test_files_that_look_like_secrets_stay_with_a_note(tmp_path: Path) -> None:
    secrets = [".env", "deploy/prod.pem", "deploy/id_rsa", ".env.local", "server.key", ".aws/credentials"]
    grow(tmp_path, dict.fromkeys(["task.py", ".env.example", "trainers/config/secrets.py", *secrets], ""))
    listed = list_tree(tmp_path, [])
    assert paths_of(listed) == [".env.example", "task.py", "trainers/config/secrets.py"]
    left = reasons_of(listed)
    assert set(left.values()) == {BY_SECRECY}
    assert "job.runtime_env.secrets" in BY_SECRECY
    assert set(left) == {".env", "deploy/", ".env.local", "server.key", ".aws/"}


def test_files_of_services_that_hold_a_token_stay_and_those_of_tokenizers_go_along(tmp_path: Path) -> None:
    files = [".envrc", "hf_token.txt", "token", "kaggle.json", "my-credentials.json", "client_secret_1.json", ".boto"]
    tokens = ["tokens.txt", "token_list.txt", "hf_tokenizer.py", "tokenizer.json", "added_tokens.json", "keys.txt"]
    grow(tmp_path, dict.fromkeys(["task.py", *tokens, *files, ".kaggle/x", ".azure/x"], ""))
    listed = list_tree(tmp_path, [])
    assert paths_of(listed) == sorted(["task.py", *tokens])
    assert reasons_of(listed) == dict.fromkeys([*files, ".kaggle/", ".azure/"], BY_SECRECY)


def test_links_are_followed_inside_and_never_outside(tmp_path: Path) -> None:
    outside = grow(tmp_path / "outside", {"passwords": "x"})
    root = grow(tmp_path / "root", {"task.py": "", "data/words.txt": "w", ".env": "SECRET=1", "runs/1": ""})
    (root / "words").symlink_to("data/words.txt")
    (root / "more").symlink_to("data")
    (root / "data" / "up").symlink_to("..")
    (root / "itself").symlink_to("itself")
    (root / "file").symlink_to(outside / "passwords")
    (root / "folder").symlink_to(outside)
    (root / "innocent").symlink_to(".env")
    (root / "past").symlink_to("runs")
    (root / "gone").symlink_to("nothing")
    listed = list_tree(root, [])
    assert paths_of(listed) == ["data/words.txt", "more/words.txt", "task.py", "words"]
    left = reasons_of(listed)
    assert left["file"] == left["folder"] == tree.A_LINK_OUT
    assert left["innocent"] == left["past"] == tree.A_LINK_TO_SECRET
    assert left["data/up"] == left["more/up"] == tree.A_LINK_UP
    assert left["gone"] == left["itself"] == tree.A_LINK_TO_NOTHING


def test_what_is_no_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(tmp_path, {"task.py": "", "back\\slash": "", "c:drive": ""})
    os.mkfifo(tmp_path / "pipe")
    Path(os.fsdecode(bytes(tmp_path) + b"/\xff")).touch()
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        listed = list_tree(tmp_path, [])
    assert paths_of(listed) == ["task.py"]
    left = reasons_of(listed)
    assert left["pipe"] == left["socket"] == tree.NO_PLAIN_FILE
    assert left["back\\slash"] == left["c:drive"] == left["\ufffd"] == tree.NO_PORTABLE_NAME


def test_a_folder_of_which_nothing_goes_along_is_one_line(tmp_path: Path) -> None:
    # The ! makes it necessary to look at each file below data/.
    grow(tmp_path, {".gitignore": "data/\n!data/keep\n", "task.py": "", **{f"data/{n}": "" for n in range(50)}})
    assert reasons_of(list_tree(tmp_path, [])) == {"data/": ".gitignore"}


@pytest.mark.parametrize(
    ("ignored", "goes_along"),
    [
        # git would not look into data/ again; Ray does.
        ("data/\n!data/keep\n", ["data/keep", "more/keep", "task.py"]),
        ("data\n!data/keep\n", ["more/keep", "task.py"]),
        ("*\n!keep\n", []),
        # As the root itself matches, all of it is left out.
        ("/*\n!/task.py\n", []),
        ("**/keep\n!more/keep\n", ["data/words", "more/keep", "task.py"]),
        ("keep\r\n  words\n# task.py\n", ["task.py"]),
    ],
)
def test_patterns_mean_what_they_mean_to_ray(tmp_path: Path, ignored: str, goes_along: list[str]) -> None:
    grow(tmp_path, {"task.py": "", "data/keep": "", "data/words": "", "more/keep": ""})
    (tmp_path / ".rayignore").write_text(f"{ignored}\n.rayignore\n", newline="")
    assert paths_of(list_tree(tmp_path, [])) == goes_along == rays_choice(tmp_path, [])


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(PATHS, min_size=1, max_size=8),
    st.dictionaries(
        st.tuples(st.sampled_from(["", "a/", "b/", "a/b/"]), st.sampled_from([".gitignore", ".rayignore"])),
        st.lists(PATTERNS, min_size=1, max_size=3),
        max_size=2,
    ),
    st.lists(PATTERNS, max_size=2),
)
def test_the_choice_is_ray_s_own(
    paths: list[str], ignores: dict[tuple[str, str], list[str]], excludes: list[str]
) -> None:
    with TemporaryDirectory() as name:
        root = Path(name).resolve()
        for path in paths:
            # A path may need a folder where another has made a file.
            if not any(part.is_file() for part in (root / path).parents) and not (root / path).is_dir():
                grow(root, {path: "x"})
        for (folder, file), lines in ignores.items():
            if (root / folder).is_dir():
                (root / folder / file).write_text("\n".join(lines) + "\n")
        assert sorted(paths_of(list_tree(root, excludes))) == rays_choice(root, excludes)


def test_the_limit_is_ray_s() -> None:
    assert package.LIMIT_BYTES == ray_constants.DASHBOARD_CLIENT_MAX_SIZE


def test_the_size_names_the_largest_and_how_to_leave_them_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "LIMIT_BYTES", 3 * package.MIB)
    grow(tmp_path, {"task.py": "", **{f"small/{n}": "x" * n for n in range(20)}})
    (tmp_path / "weights.bin").write_bytes(os.urandom(4 * package.MIB))
    size = package_size(list_tree(tmp_path, []))
    assert not size.fits
    assert [file.path for file in size.largest[:2]] == ["weights.bin", "small/19"]
    assert len(size.largest) == 10
    assert size.total_bytes == 4 * package.MIB + sum(range(20))
    assert "weights.bin 4.0 MiB" in size.message
    assert "Limits are 3 MiB as a zip" in size.message
    assert "job.runtime_env.excludes: [/weights.bin]" in size.message
    assert package_size(list_tree(tmp_path, ["/weights.bin"])).fits
