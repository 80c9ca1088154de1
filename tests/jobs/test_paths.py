from pathlib import Path

import pytest

from trainers.distributed.machine import home, make_private_folder
from trainers.errors import ConfigError


def mode(folder: Path) -> int:
    return folder.stat().st_mode & 0o777


def test_the_state_folder_is_closed_to_others_also_where_an_earlier_version_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAYSCRIBE_HOME", raising=False)
    (tmp_path / ".rayscribe").mkdir(mode=0o755)
    assert mode(home()) == 0o700
    assert home() == tmp_path / ".rayscribe"


def test_a_folder_that_was_chosen_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path))
    assert mode(home()) == 0o755


def test_folders_are_private_down_from_the_first_that_is_made(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    made = tmp_path / "state" / "clusters" / "one"
    make_private_folder(made)
    make_private_folder(made)
    assert [mode(each) for each in (made, *made.parents)][:4] == [0o700, 0o700, 0o700, 0o755]


def test_a_user_without_a_home_folder_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "RAYSCRIBE_HOME"):
        monkeypatch.delenv(name, raising=False)
    # As in a container whose user id has no name.
    monkeypatch.setattr("os.getuid", lambda: 54321)
    with pytest.raises(ConfigError, match=r"~/\.rayscribe: the home folder is not known: set HOME"):
        home()
    monkeypatch.setenv("RAYSCRIBE_HOME", "~nobody-of-this-name/state")
    with pytest.raises(ConfigError, match="~nobody-of-this-name/state: the home folder is not known"):
        home()
