"""Names the packages that only some configs need, for a strategy, a tracker or a beam search; imports none of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from netrc import NetrcParseError, netrc
from urllib.parse import urlsplit

from trainers.config.schema import TrainConfig
from trainers.errors import ConfigError


@dataclass(frozen=True)
class OptionalPackage:
    """The packages that a value of a config requires.

    Attributes:
        value: The field and its value.
        modules: Names of modules, any of which is sufficient.
        requirements: What pip installs, unless there is an `extra`.
        alternative: What to do without the packages.
        extra: Rayscribe's extra that installs them; None if there is none.
    """

    value: str
    modules: tuple[str, ...]
    requirements: tuple[str, ...]
    alternative: str
    extra: str | None = None

    @property
    def is_installed(self) -> bool:
        return any(_is_there(module) for module in self.modules)

    @property
    def problem(self) -> str:
        wanted = " ".join(self.requirements) if self.extra is None else f"'rayscribe[{self.extra}]'"
        return (
            f"{self.value} needs the package {self.requirements[0]}, which is not installed: pip install {wanted} "
            f"(on a cluster: job.runtime_env.pip), or {self.alternative}"
        )


DEEPSPEED = OptionalPackage(
    "strategy.name deepspeed", ("deepspeed",), ("deepspeed", "ninja"), "set strategy: {name: ddp}", "deepspeed"
)
BEAM_SEARCH = OptionalPackage(
    "decode.method beam", ("flashlight",), ("flashlight-text",), "set decode: {method: greedy}", "lm"
)


_NAMED_AS_THEY_ARE = ("clearml", "codecarbon", "dagshub", "dvclive", "neptune", "swanlab")
# Trackers by transformers' names, with its conditions (integrations/integration_utils.py); `kubeflow` needs no package.
TRACKERS: Mapping[str, OptionalPackage] = {
    name: OptionalPackage(
        f"training.report_to {name}", (module,), (requirement,), f"leave {name} out of training.report_to", extra
    )
    for name, module, requirement, extra in (
        *((name, name, name, None) for name in _NAMED_AS_THEY_ARE),
        *((name, name, name, name) for name in ("trackio", "wandb")),
        # The client, mlflow-skinny, is enough; a server needs all of mlflow.
        ("mlflow", "mlflow", "mlflow-skinny", "mlflow"),
        ("azure_ml", "azureml.core.run", "azureml-sdk", None),
        ("comet_ml", "comet_ml", "comet-ml", None),
        ("flyte", "flytekit", "flytekit", None),
        ("tensorboard", "tensorboard", "tensorboard", None),
    )
}


def packages_for_training(config: TrainConfig) -> list[OptionalPackage]:
    """Returns the packages that training with the config requires, for its strategy and its trackers. Pure."""
    strategy = [DEEPSPEED] if config.strategy.name == "deepspeed" else []
    return [*strategy, *(TRACKERS[name] for name in config.training.report_to if name in TRACKERS)]


def packages_for(config: TrainConfig) -> list[OptionalPackage]:
    """Returns the packages that the config requires in addition to Rayscribe's dependencies. Pure."""
    searches = config.decode.settings and config.decode.extra == BEAM_SEARCH.extra
    needs = [*packages_for_training(config), *([BEAM_SEARCH] if searches else [])]
    return [need for need in needs if need is not TRACKERS["tensorboard"]]


def refuse_missing_packages(config: TrainConfig) -> None:
    """Raises ConfigError if training requires a package that is not installed."""
    missing = [need.problem for need in packages_for_training(config) if not need.is_installed]
    if missing:
        raise ConfigError("\n".join(missing))


def missing_access(names: Iterable[str], environment: Mapping[str, str]) -> list[str]:
    """Returns a line for each tracker without access to its server; W&B would prompt, and MLflow write local files."""
    problems = []
    if "wandb" in names and environment.get("WANDB_MODE", "online") == "online" and not _has_wandb_key(environment):
        problems.append(
            "training.report_to wandb needs WANDB_API_KEY (of a job: job.runtime_env.secrets), or `wandb login` on "
            "this machine; or set WANDB_MODE=offline, and send the run later with `wandb sync`"
        )
    if "mlflow" in names and not environment.get("MLFLOW_TRACKING_URI"):
        problems.append(
            "training.report_to mlflow needs MLFLOW_TRACKING_URI: set it to the server's URL, or to "
            "sqlite:////absolute/path/mlflow.db (of a job: job.runtime_env.env_vars)"
        )
    return problems


def _has_wandb_key(environment: Mapping[str, str]) -> bool:
    if environment.get("WANDB_API_KEY") or environment.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(environment.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname
    try:
        return netrc(environment.get("NETRC")).authenticators(str(host)) is not None
    except (OSError, NetrcParseError):
        return False


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a package that it is part of
        return False
