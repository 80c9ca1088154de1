"""What can go wrong on the cluster's side, as one tree.

RayscribeError                 anything that we raise on purpose; its text names the thing, the value and the fix
├── ConfigError                a value in the YAML, or a pair of values, cannot work
├── DataError                  a manifest or a recording cannot be used
│   └── AudioError             one recording cannot be decoded; the text is its quarantine reason
├── StorageError               a folder or bucket cannot be read or written
├── ResumeError                the run folder holds another experiment, or a checkpoint cannot be used
│   └── DamagedError           a checkpoint is not whole, and will not become so
├── ResourceError              the cluster can never hold what the config asks for
└── ScoringError               the ids that were scored are not the ids that were asked for

Each takes one string, so that it survives pickling between Ray processes unchanged.
"""


class RayscribeError(Exception):
    """Base of all errors that Rayscribe raises on purpose.

    Attributes:
        exit_code: What a command that ends with this error gives back to the shell.
    """

    exit_code = 1


class ConfigError(RayscribeError):
    """A value in the config, or a combination of values, cannot work."""

    exit_code = 2


class DataError(RayscribeError):
    """A manifest, a data set or a recording cannot be used."""

    exit_code = 3


class AudioError(DataError):
    """One recording cannot be decoded; the message is the reason a person reads in the quarantine file."""


class StorageError(RayscribeError):
    """A folder or bucket cannot be read or written."""

    exit_code = 4


class ResumeError(RayscribeError):
    """A run cannot be continued: another experiment has its name, or a checkpoint is not whole."""

    exit_code = 5


class DamagedError(ResumeError):
    """A checkpoint is not whole: its manifest or a file is missing, or a file differs from its SHA-256."""


class ResourceError(RayscribeError):
    """The cluster, grown as far as it can, does not hold what the config asks for."""

    exit_code = 6


class ScoringError(RayscribeError):
    """The ids that were scored are not exactly the ids that should have been."""

    exit_code = 7
