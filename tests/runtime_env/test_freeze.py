from pathlib import Path

import pytest

from runtime_env.build import freeze
from runtime_env.config import RuntimeEnvPart
from runtime_env.requirements import logical_lines
from tests.runtime_env.test_tree import grow
from trainers.errors import ConfigError

LOCK = """\
# made by uv pip compile
tiny-speech==1.2.3 \\
    --hash=sha256:aaa \\
    --hash=sha256:bbb
    # via -r requirements.in
tiny-tool==1.0 ; python_version >= "3.11"  # why not
"""


def frozen(root: Path, **fields: object) -> RuntimeEnvPart:
    return freeze(RuntimeEnvPart.model_validate(fields), root)


def test_a_lock_becomes_its_lines(tmp_path: Path) -> None:
    grow(tmp_path, {"requirements.txt": LOCK})
    expected = [
        "tiny-speech==1.2.3 --hash=sha256:aaa --hash=sha256:bbb",
        'tiny-tool==1.0 ; python_version >= "3.11"',
    ]
    assert frozen(tmp_path, pip="requirements.txt").pip == expected
    assert frozen(tmp_path, uv="requirements.txt").uv == expected


def test_a_list_stays_as_it_is(tmp_path: Path) -> None:
    part = RuntimeEnvPart.model_validate({"pip": ["a==1"]})
    assert freeze(part, tmp_path) is part


def test_included_files_are_read_where_they_lie(tmp_path: Path) -> None:
    grow(
        tmp_path,
        {
            "requirements.txt": "--index-url https://x/simple\n-r deep/more.txt\na==1\n",
            "deep/more.txt": "--requirement=most.txt\nb==1\n",
            "deep/most.txt": "c==1\na==1\n",
        },
    )
    assert frozen(tmp_path, pip="requirements.txt").pip == ["--index-url https://x/simple", "c==1", "a==1", "b==1"]


@pytest.mark.parametrize(
    ("files", "name", "says"),
    [
        ({}, "requirements.txt", "no such file"),
        ({"requirements.txt": "# nothing\n"}, "requirements.txt", "names no package"),
        ({"requirements.txt": "-r requirements.txt\n"}, "requirements.txt", "includes itself"),
        ({"requirements.txt": "-r ../x.txt\n"}, "requirements.txt", "is outside"),
        ({"requirements.txt": "a\n-c pins.txt\n"}, "requirements.txt", "--constraint names a file"),
        ({"requirements.txt": "-e .\n"}, "requirements.txt", "--editable names a file"),
        ({"uv.lock": ""}, "uv.lock", "uv export --format requirements-txt"),
        ({"pylock.toml": ""}, "pylock.toml", "uv export"),
        ({"requirements.txt": "\x00\udcff"}, "requirements.txt", "cannot be read as text"),
    ],
)
def test_a_file_that_cannot_work_is_named(tmp_path: Path, files: dict[str, str], name: str, says: str) -> None:
    for path, text in files.items():
        (tmp_path / path).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=says) as caught:
        frozen(tmp_path, pip=name)
    assert str(caught.value).startswith("job.runtime_env.pip: ")


def test_a_credential_in_the_file_is_not_repeated(tmp_path: Path) -> None:
    grow(tmp_path, {"requirements.txt": "--extra-index-url https://user:hunter2@x/simple\na\n"})
    with pytest.raises(ConfigError, match=r"requirements\.txt: .*not shown") as caught:
        frozen(tmp_path, uv="requirements.txt")
    assert "hunter2" not in str(caught.value)


def test_a_link_out_of_the_repository_is_not_read(tmp_path: Path) -> None:
    grow(tmp_path, {"outside.txt": "a", "root/task.py": ""})
    (tmp_path / "root" / "requirements.txt").symlink_to(tmp_path / "outside.txt")
    with pytest.raises(ConfigError, match="is outside"):
        frozen(tmp_path / "root", pip="requirements.txt")


def test_lines_are_joined_as_pip_does() -> None:
    assert logical_lines("a \\\n  # comment\nb\nc \\\n") == ["a", "b", "c"]
    assert logical_lines("a#no-comment\nb #comment\n\n") == ["a#no-comment", "b"]
