"""The floor plan of DESIGN.md: imports go one way, heavy libraries stay away from the client, files stay short."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("jobs", "trainers", "runtime_env", "cluster_configs")
OURS = {*PACKAGES, "task"}
CLIENT_MAY_USE = {
    "trainers.config.schema",
    "trainers.config.loader",
    "trainers.errors",
    "trainers.run_folder.layout",
    "trainers.storage",
    "trainers.config.durations",
    "trainers.main",
    "trainers.run_folder.checkpoints",
    "trainers.run_folder.journal",
    "trainers.run_folder.attempt_status",
    "trainers.config.locations",
    "trainers.inspection.findings",
}
HEAVY = ("torch", "transformers", "datasets")
# What a command on a laptop loads before it has decided to drive runs itself.
WITHOUT_RAY = ("jobs.cli", "jobs.api.client", "jobs.service.interface")
LIGHT_MODULES = (
    *WITHOUT_RAY,
    "jobs.service.controller",
    "jobs.api.server.app",
    "trainers.config.schema",
    "trainers.config.loader",
    "trainers.run_folder.layout",
    "trainers.storage",
)
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MOST_LINES = 400


def imports_of(path: Path) -> Iterator[str]:
    """Dotted name of everything that a file imports, inside functions too; `from a import b` gives a.b."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def our_imports(package: str) -> set[str]:
    paths = (ROOT / package).rglob("*.py")
    return {name for path in paths for name in imports_of(path) if name.partition(".")[0] in OURS}


def is_within(name: str, modules: set[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


@pytest.mark.parametrize("package", ["trainers", "runtime_env", "cluster_configs"])
def test_only_the_client_knows_the_client(package: str) -> None:
    assert not [name for name in our_imports(package) if is_within(name, {"jobs", "task"})]


@pytest.mark.parametrize("package", ["trainers", "runtime_env", "cluster_configs"])
def test_packages_below_the_client_know_only_themselves(package: str) -> None:
    others = set(PACKAGES) - {package}
    if package != "trainers":
        others -= {"trainers"}
    assert not [name for name in our_imports(package) if is_within(name, others)]


def test_the_client_uses_only_the_light_part_of_the_trainers() -> None:
    # `from trainers import run_folder` names the package; its modules are judged by their own names.
    used = {name for name in our_imports("jobs") if is_within(name, {"trainers"})}
    assert sorted(name for name in used if not is_within(name, CLIENT_MAY_USE)) == []


def test_the_job_s_entry_uses_the_trainers_only() -> None:
    ours = {name for name in imports_of(ROOT / "task.py") if name.partition(".")[0] in OURS}
    assert ours
    assert all(is_within(name, {"trainers"}) for name in ours)


def modules_after_import(module: str) -> list[str]:
    script = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    loaded: list[str] = json.loads(answer.stdout.splitlines()[-1])
    assert module in loaded
    return loaded


@pytest.mark.parametrize("module", [*LIGHT_MODULES, "trainers.main", "task"])
def test_a_light_module_loads_no_heavy_library(module: str) -> None:
    assert [name for name in HEAVY if name in modules_after_import(module)] == []


@pytest.mark.parametrize("module", WITHOUT_RAY)
def test_a_command_loads_no_ray_before_it_needs_one(module: str) -> None:
    assert "ray" not in modules_after_import(module)


def test_the_client_over_http_loads_neither_database_nor_buckets() -> None:
    loaded = modules_after_import("jobs.api.client")
    assert [name for name in ("sqlalchemy", "alembic", "boto3", "pyarrow", "numpy", "fastapi") if name in loaded] == []


def test_the_client_names_no_heavy_library() -> None:
    paths = (ROOT / "jobs").rglob("*.py")
    assert not [(path.name, name) for path in paths for name in imports_of(path) if is_within(name, set(HEAVY))]


def test_one_room_alone_touches_buckets() -> None:
    outside = [path for path in FILES if (ROOT / "trainers" / "storage") not in path.parents]
    libraries = {"boto3", "botocore", "pyarrow.fs"}
    assert not [(path.name, name) for path in outside for name in imports_of(path) if is_within(name, libraries)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_short_enough_to_be_one_idea(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < MOST_LINES
