"""Rayscribe's own code, for a working directory that has no task.py to start with."""

from pathlib import Path

from runtime_env.credentials import file_looks_secret
from runtime_env.tree import Tree, TreeFile

VERSION = "0.1.0"
# Arguments with which Python starts a driver of it. -P: a module of the user's own folder does not shadow one of
# ours.
OWN_ENTRY = ("-P", "-m", "rayscribe.trainers.main")
# Identifies the code without reading it. None: the code of a repository, which may be any version.
RELEASE = VERSION if __name__.startswith("rayscribe.") else None
# Packages of the repository; an installed distribution has them within one package, `rayscribe`.
PACKAGES = ("cluster_configs", "jobs", "runtime_env", "trainers")


def own_code() -> Tree:
    """Returns the running code, with its names for Python as paths. Identical contents make one package."""
    root = Path(__file__).parents[__name__.count(".")]
    folders = ("rayscribe",) if RELEASE else PACKAGES
    paths = [root / "rayscribe.py", *(path for folder in folders for path in (root / folder).rglob("*"))]
    unwanted = {path for path in paths if path.parent.name == "__pycache__" or path.name.startswith(".")}
    kept = [path for path in paths if path.is_file() and path not in unwanted and not file_looks_secret(path.name)]
    files = (TreeFile(path.relative_to(root).as_posix(), path.stat().st_size, False) for path in kept)
    return Tree(root, tuple(files), ())
