"""Rayscribe's own code, for runs whose working directory has no task.py."""

from pathlib import Path

from runtime_env.credentials import file_looks_secret
from runtime_env.tree import Tree, TreeFile

VERSION = "0.1.0"
# Arguments of Python that start a driver from this code. With -P, the user's modules do not shadow Rayscribe's.
OWN_ENTRY = ("-P", "-m", "rayscribe.trainers.main")
# Version of an installed distribution. None for a repository, whose code may be of any version.
RELEASE = VERSION if __name__.startswith("rayscribe.") else None
# Packages of the repository; an installed distribution has them within one package, `rayscribe`.
PACKAGES = ("cluster_configs", "jobs", "runtime_env", "trainers")


def own_code() -> Tree:
    """Returns the running code's files, with paths as Python imports them."""
    root = Path(__file__).parents[__name__.count(".")]
    folders = ("rayscribe",) if RELEASE else PACKAGES
    paths = [root / "rayscribe.py", *(path for folder in folders for path in (root / folder).rglob("*"))]
    unwanted = {path for path in paths if path.parent.name == "__pycache__" or path.name.startswith(".")}
    kept = [path for path in paths if path.is_file() and path not in unwanted and not file_looks_secret(path.name)]
    files = (TreeFile(path.relative_to(root).as_posix(), path.stat().st_size, False) for path in kept)
    return Tree(root, tuple(files), ())
