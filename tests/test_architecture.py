"""The package layout: imports go one way, the client stays light; folders, files and functions stay small."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import groupby
from pathlib import Path

from trainers.config.family_table import FAMILIES

ROOT = Path(__file__).parents[1]
PACKAGES = ("jobs", "trainers", "runtime_env", "cluster_configs")
# What each package may import next to itself; what those may import follows. A name stands for all that is below it.
MAY_IMPORT: Mapping[str, tuple[str, ...]] = {
    # What Python programs call.
    "rayscribe": ("jobs.cli", "jobs.model", "trainers", "runtime_env"),
    "jobs.cli": (
        "jobs.recipes",
        "jobs.api",
        "jobs.preflight",
        "trainers.distributed.console",
        "cluster_configs.rendering",
        "cluster_configs.validation",
    ),
    "jobs.cli.train": ("trainers.main",),
    # The part of scoring that counts, and loads no heavy library.
    "jobs.cli.results": (
        "trainers.scoring.comparison",
        "trainers.scoring.error_rate",
        "trainers.scoring.normalizers",
        "trainers.scoring.ranking",
        "trainers.scoring.report",
        "trainers.scoring.transcripts",
    ),
    "jobs.cli.results.transcribe_command": ("trainers.pipeline.transcription",),
    "jobs.cli.results.model_commands": ("trainers.pipeline.export", "trainers.distributed.signals"),
    "jobs.cli.recipes": ("trainers.data.sources.formats",),
    "jobs.cli.launch_command": ("trainers.main",),
    "jobs.cli.import_command": ("trainers.scripts.launchers",),
    # What a folder of recordings and a machine have, and how a recipe of it is written.
    "jobs.recipes": (
        "cluster_configs.rendering.commented_yaml",
        "trainers.config",
        "trainers.data.sources",
        "trainers.data.audio",
        "trainers.distributed.hardware",
        "trainers.inspection.recordings",
        "trainers.models.language_names",
        "trainers.storage.json_files",
        "trainers.errors",
    ),
    "jobs.api": ("jobs.service",),
    # Reports and comparisons are pages, too.
    "jobs.api.server.pages": ("trainers.scoring.comparison", "trainers.scoring.report"),
    "jobs.service": ("jobs.ledger", "jobs.clusters", "jobs.paths", "trainers.run_folder", "trainers.storage"),
    "jobs.preflight": ("jobs.clusters", "trainers.findings", "trainers.storage"),
    "jobs.ledger": ("jobs.scheduler", "jobs.submission", "jobs.paths", "trainers.distributed.machine"),
    # A file of `ray up` that people write is read by one parser.
    "jobs.clusters": (
        "jobs.scheduler",
        "jobs.submission",
        "jobs.paths",
        "trainers.distributed.machine",
        "trainers.distributed.local_ray",
        "cluster_configs.validation.shell_commands",
    ),
    "jobs.scheduler": ("jobs.model",),
    # How a program's line is read.
    "jobs.submission": (
        "jobs.model",
        "jobs.addresses",
        "runtime_env",
        "trainers.config",
        "trainers.run_folder.layout",
        "trainers.scripts.recipe",
    ),
    # Manifests are read, and the recordings that they name.
    "jobs.submission.shipped_data": ("trainers.data.sources", "trainers.storage"),
    "jobs.model": ("jobs.errors",),
    "jobs.paths": ("jobs.errors", "trainers.distributed.machine"),
    "jobs.addresses": (),
    "jobs.errors": ("trainers.errors",),
    "task": ("trainers.main", "trainers.distributed.console"),
    # A recipe that is run by hand holds as little that is secret as a submitted one.
    "trainers.main": ("trainers.pipeline", "runtime_env.secret_arguments"),
    "trainers.pipeline": ("trainers.training", "trainers.inspection", "trainers.scripts"),
    # What the Trainer makes of a config's arguments is known only to what builds them.
    "trainers.inspection": (
        "trainers.models",
        "trainers.scoring.normalizers",
        "trainers.scoring.recipe_metrics",
        "trainers.training.arguments",
    ),
    "trainers.training": ("trainers.scoring", "trainers.models"),
    # A program's arguments hold as little that is secret as a job's environment.
    "trainers.scripts": ("trainers.run_folder", "runtime_env.secret_arguments"),
    "trainers.scripts.recipe": (
        "trainers.scripts.launchers",
        "trainers.scripts.inputs.placeholders",
        "runtime_env.secret_arguments",
    ),
    # Manifests that a script is given name recordings as those of training do.
    "trainers.scripts.inputs": (
        "trainers.data.sources.located_files",
        "trainers.data.sources.manifest_fields",
    ),
    "trainers.training.arguments": ("trainers.config",),
    "trainers.scripts.launchers": ("trainers.config", "runtime_env.credentials"),
    "trainers.scoring": ("trainers.models",),
    "trainers.models": ("trainers.run_folder", "trainers.data", "trainers.findings"),
    "trainers.run_folder": ("trainers.distributed", "trainers.storage"),
    "trainers.data": ("trainers.distributed", "trainers.storage", "trainers.plugins"),
    "trainers.distributed": ("trainers.config", "trainers.findings"),
    # A provider has its notices next to the rest of it.
    "trainers.distributed.preemption_agent": ("cluster_configs.providers",),
    "trainers.storage": ("trainers.config", "trainers.findings", "trainers.distributed.console"),
    "trainers.config": ("trainers.metrics",),
    "trainers.metrics": ("trainers.plugins",),
    "trainers.findings": ("trainers.errors",),
    "trainers.plugins": ("trainers.errors",),
    "runtime_env": ("trainers.config", "trainers.errors"),
    # A spec is read and checked as a recipe is, and holds as little that is secret as a job's environment.
    "cluster_configs": ("trainers.config", "trainers.errors", "trainers.plugins", "runtime_env.credentials"),
    "trainers.errors": (),
}
# What neither the client nor the service loads, nor Ray Train's controller for what it decides here.
HEAVY = ("torch", "transformers", "datasets")
# What a command on a laptop loads before it has decided to drive runs itself.
WITHOUT_RAY = ("jobs.api.client", "jobs.service.operations", "jobs.cli")
LIGHT = (
    *WITHOUT_RAY,
    "trainers.run_folder.layout",
    "jobs.service.controller",
    "jobs.api.server.app",
    "trainers.pipeline.on_ray.failure_watch",
    "trainers.inspection.node_checks",
    "trainers.scripts.accelerators",
    "trainers.training.tasks",
    "trainers.scripts.program_worker",
    "trainers.pipeline.launch",
    "trainers.pipeline.export.export_request",
    "trainers.scripts.launchers.line_parser",
    "trainers.run_folder.hub_push",
    "trainers.scoring.report.page",
    "trainers.scoring.comparison.comparison",
    "trainers.scripts.inputs.fetch",
    "trainers.scripts.inputs.prepare",
    "trainers.scripts.outputs.restore",
    "trainers.scripts.outputs.sync",
    "task",
    "rayscribe",
    *(part.partition(":")[0] for part in FAMILIES.values()),
)
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
FOLDERS = sorted(
    path
    for package in PACKAGES
    for path in [ROOT / package, *(ROOT / package).rglob("*")]
    if path.is_dir() and path.name != "__pycache__"
)
MAX_ENTRIES, MAX_LINES, MAX_FUNCTION_LINES = 16, 500, 60
# Names that the layout gives to more than one file.
SHARED_NAMES = {"__init__.py", "app.py", "errors.py"}


def module_of(path: Path) -> str:
    """Dotted name of a file."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in [*FILES, ROOT / "task.py", ROOT / "rayscribe.py"]}


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All that a file consists of."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@cache
def imports_of(path: Path) -> tuple[str, ...]:
    """Dotted name of every module that a file imports, inside functions and for type checkers too."""
    found: list[str] = []
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found += [name if name in MODULES else str(node.module) for name in names]
    return tuple(found)


def is_within(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def may_import(module: str) -> set[str]:
    """What a module may import: what the table says of the packages that it is in, and what it says of those.

    What is allowed of another top-level package is not followed further: `jobs` uses the parts of `trainers` that are
    named, not what those use.
    """
    found = {name for name in MAY_IMPORT if is_within(module, name)}
    waiting = [*found]
    while waiting:
        new = set(MAY_IMPORT[waiting.pop()]) - found
        found |= new
        waiting += [name for name in new if name in MAY_IMPORT and name.partition(".")[0] == module.partition(".")[0]]
    return found


def test_imports_go_one_way() -> None:
    found = []
    for module, path in MODULES.items():
        allowed = may_import(module)
        ours = (name for name in imports_of(path) if name in MODULES)
        found += [(module, name) for name in ours if not any(is_within(name, package) for package in allowed)]
    assert found == []


def test_no_files_import_each_other_in_a_circle() -> None:
    files = {module: {name for name in imports_of(path) if name in MODULES} for module, path in MODULES.items()}
    try:
        TopologicalSorter(files).prepare()
    except CycleError as error:
        raise AssertionError(" → ".join(error.args[1])) from None


def test_the_table_of_imports_has_no_cycle_and_names_what_exists() -> None:
    cycles = [(name, other) for name in MAY_IMPORT for other in may_import(name) - {name} if name in may_import(other)]
    assert [(name, other) for name, other in cycles if not is_within(other, name) and not is_within(name, other)] == []
    named = {name for names in MAY_IMPORT.values() for name in names} | set(MAY_IMPORT)
    assert sorted(named - set(MODULES)) == []


def loaded_by(modules: tuple[str, ...], libraries: tuple[str, ...]) -> dict[str, list[str]]:
    """For each module, imported in this order in one process: which libraries it is the first to load."""
    script = (
        "import importlib, json, sys\nfound, seen = {}, set()\n"
        f"for module in {modules!r}:\n"
        "    importlib.import_module(module)\n"
        f"    found[module] = [name for name in {libraries!r} if name in sys.modules and name not in seen]\n"
        "    seen.update(found[module])\n"
        "print(json.dumps(found))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    found: dict[str, list[str]] = json.loads(answer.stdout.splitlines()[-1])
    return found


def test_light_modules_load_no_heavy_library() -> None:
    assert loaded_by(LIGHT, HEAVY) == {module: [] for module in LIGHT}


def test_a_command_loads_no_ray_and_the_client_neither_database_nor_buckets() -> None:
    unwanted = ("ray", "sqlalchemy", "alembic", "boto3", "obstore", "pyarrow", "numpy", "fastapi")
    loaded = loaded_by(WITHOUT_RAY, unwanted)
    assert loaded["jobs.api.client"] == []
    assert "ray" not in {name for names in loaded.values() for name in names}


def test_the_client_names_no_heavy_library() -> None:
    paths = (ROOT / "jobs").rglob("*.py")
    named = ((path.name, name) for path in paths for name in imports_of(path))
    assert not [found for found in named if any(is_within(found[1], heavy) for heavy in HEAVY)]


def test_one_package_alone_touches_buckets() -> None:
    outside = [path for path in FILES if (ROOT / "trainers" / "storage") not in path.parents]
    libraries = ("boto3", "botocore", "obstore", "pyarrow.fs")
    named = ((path.name, name) for path in outside for name in imports_of(path))
    assert not [found for found in named if any(is_within(found[1], lib) for lib in libraries)]


def test_a_module_that_is_started_is_not_taken_from_the_working_directory() -> None:
    # `python -m` looks there first: in /tmp, what it runs would be any user's.
    text = {path: path.read_text(encoding="utf-8") for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    started = re.compile(r"sys\.executable,\s*(\S+)")
    found = {str(path.relative_to(ROOT)) for path in text if '"-m",' in started.findall(text[path])}
    assert found == set()


def test_files_and_functions_are_short_enough_to_be_one_idea() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {name: count for name, count in lines.items() if count >= MAX_LINES} == {}
    functions = (
        (f"{module_of(path)}.{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1)
        for path in FILES
        for node in nodes_of(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    assert {name: length for name, length in functions if length > MAX_FUNCTION_LINES} == {}


# Say what a thing does, returns or raises instead.
ELLIPTIC = re.compile(r"(?:What|That|Whether|Who|Whose|Which|Where|When|How|Of|As|The same)\b")


def test_docstrings_begin_with_what_is_done_or_meant() -> None:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path in FILES
        for node in nodes_of(path)
        if isinstance(node, documented) and ELLIPTIC.match(text := ast.get_docstring(node) or "")
    ]
    assert found == []


def test_a_folder_is_read_at_a_glance() -> None:
    ignored = {"__init__.py", "__pycache__"}
    entries = {folder: [path.name for path in folder.iterdir() if path.name not in ignored] for folder in FOLDERS}
    crowded = {str(path.relative_to(ROOT)): len(names) for path, names in entries.items() if len(names) > MAX_ENTRIES}
    assert crowded == {}


def test_a_file_name_says_which_file_is_meant() -> None:
    names = sorted((path.name, module_of(path)) for path in FILES if path.name not in SHARED_NAMES)
    shared = {name: [of for _, of in group] for name, group in groupby(names, key=lambda item: item[0])}
    assert {name: modules for name, modules in shared.items() if len(modules) > 1} == {}


def test_one_function_writes_what_the_controller_changes() -> None:
    writing = {"open_attempt", "change_attempt"}
    uses = {
        module
        for module, path in MODULES.items()
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and node.attr in writing
    }
    assert uses == {"jobs.service.run_changes"}
