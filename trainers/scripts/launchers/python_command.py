"""Python itself, which starts one process. Its options as variables: docs.python.org/3/using/cmdline.html."""

from trainers.scripts.launchers.launch_line import PLAIN, Workers
from trainers.scripts.launchers.launch_option import Option, refused
from trainers.scripts.launchers.launcher import Given, Launcher, Reading, Surroundings

# By the letter of the option.
VARIABLES = {
    "u": "PYTHONUNBUFFERED",
    "B": "PYTHONDONTWRITEBYTECODE",
    "O": "PYTHONOPTIMIZE",
    "s": "PYTHONNOUSERSITE",
    "P": "PYTHONSAFEPATH",
    "v": "PYTHONVERBOSE",
}
# By the name that -X has.
IMPLEMENTATION = {
    "faulthandler": "PYTHONFAULTHANDLER",
    "dev": "PYTHONDEVMODE",
    "utf8": "PYTHONUTF8",
    "importtime": "PYTHONPROFILEIMPORTTIME",
    "tracemalloc": "PYTHONTRACEMALLOC",
}

OPTIONS = (
    Option(("-m",), "ours", ends=True),
    *(Option((f"-{letter}",), "ours", read=None) for letter in VARIABLES),
    Option(("-OO",), "ours", read=None),
    Option(("-W",), "ours", repeated=True),
    Option(("-X",), "ours", repeated=True),
    Option(("-c",), "refused", "write the program into a file, and name the file", ends=True),
    *refused(
        "the workers run the Python of the cluster with its own start: leave it out",
        switches=["-E", "-I", "-S", "-i", "-x", "-b", "-bb", "-d", "-q"],
    ),
)


def read(given: Given, surroundings: Surroundings) -> Reading:
    """One process; the options as the variables that mean the same."""
    variables = {name: "1" for letter, name in VARIABLES.items() if given.get(letter)}
    if given.get("OO"):
        variables["PYTHONOPTIMIZE"] = "2"
    if warnings := given.get("W"):
        variables["PYTHONWARNINGS"] = ",".join(warnings)
    for text in given.get("X", ()):
        name, _, value = text.partition("=")
        if name not in IMPLEMENTATION:
            raise ValueError(f"-X {text}: of these options there are {', '.join(IMPLEMENTATION)}: leave it out")
        variables[IMPLEMENTATION[name]] = value or "1"
    return Reading(workers=Workers(1, 1), variables=variables, kind="module" if "m" in given else "script")


PYTHON = Launcher(PLAIN, OPTIONS, read, commands=("python",))
