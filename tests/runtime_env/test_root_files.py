import contextlib
from importlib.metadata import PackageNotFoundError, metadata, version

import pytest
from packaging.specifiers import SpecifierSet

from runtime_env.requirements import read_pins
from runtime_env.root_files import ROOT, closure, main, pythons_of, root_files

PINS = {"speech": "1.0", "voices": "2.0", "arrays": "3.0", "backport": "4.0", "windows-only": "5.0", "plots": "6.0"}
REQUIRES = {
    "speech": [
        "Arrays>=2",
        "accelerator==1",
        "backport; python_version < '3.12'",
        "windows-only; sys_platform == 'win32'",
        "plots; extra == 'draw'",
    ],
    "arrays": ["speech"],
}


@pytest.mark.parametrize("name", ["requirements.txt", "install_and_run.sh"])
def test_the_files_at_the_root_are_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text() == root_files()[name], "run make requirements"


def test_check_names_nothing_where_all_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0
    assert capsys.readouterr().out == ""


def test_a_node_gets_the_pinned_dependencies_and_what_recipes_need_but_no_ray_and_no_tools() -> None:
    lines = [line for line in root_files()["requirements.txt"].splitlines() if not line.startswith("#")]
    pins = read_pins((ROOT / "constraints.txt").read_text())
    assert {line.partition(";")[0] for line in lines} <= {f"{name}=={version}" for name, version in pins.items()}
    names = {line.partition("==")[0] for line in lines}
    assert {"torch", "transformers", "espeakng-loader", "jiwer", "pandas", "deepspeed", "ninja", "hjson"} <= names
    assert f'flashlight-text=={pins["flashlight-text"]}; python_version < "3.13"' in lines, (
        "it has no wheels for later ones"
    )
    assert not {"ray", "pytest", "ruff", "mypy", "moto"} & names


def test_the_closure_holds_for_every_python_and_for_linux() -> None:
    assert reached(["speech"], "3.11", "3.13") == {"speech", "arrays", "backport"}
    assert reached(["speech"], "3.12", "3.13") == {"speech", "arrays"}


def test_extras_are_followed() -> None:
    assert reached(["speech[draw]", "voices"], "3.13") == {"speech", "arrays", "plots", "voices"}


def test_a_dependency_without_a_pin_is_named() -> None:
    with pytest.raises(LookupError, match="accelerator of pyproject"):
        reached(["accelerator"], "3.13")


@pytest.mark.integration
def test_what_is_pinned_takes_the_oldest_python_of_the_project() -> None:
    oldest = "3.11.0"
    refuses = []
    for name in read_pins((ROOT / "constraints.txt").read_text()):
        with contextlib.suppress(PackageNotFoundError):
            wanted = str(metadata(name).json.get("requires_python", ""))
            refuses += [f"{name} {version(name)} wants {wanted}"] * (not SpecifierSet(wanted).contains(oldest))
    assert SpecifierSet(metadata("rayscribe")["Requires-Python"]).contains(oldest)
    assert refuses == []


def test_pins_are_read_by_canonical_name() -> None:
    assert read_pins("# versions\nTiny_Speech==1.2  # why\n\nother>=3\n") == {"tiny-speech": "1.2"}


def test_pythons_are_those_that_the_project_names() -> None:
    lines = ["Programming Language :: Python :: 3", "Programming Language :: Python :: 3.14", "License :: OSI Approved"]
    assert pythons_of(lines) == ["3.14"]


def reached(requirements: list[str], *pythons: str) -> set[str]:
    return closure(requirements, PINS, pythons, REQUIRES.get)
