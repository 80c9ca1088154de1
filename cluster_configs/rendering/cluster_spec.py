"""ClusterSpec: one description of a cluster, from which the file of each target is rendered.

Every field states its meaning, unit and special values. Unknown keys and values of secrets are rejected; a spec only
names secrets, which are read on the nodes.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from cluster_configs.providers.known_providers import RayUp
from cluster_configs.rendering.spec_parts import DNS_LABEL, HeadPart, KubernetesPart, PoolPart, SgePart, SlurmPart, Word
from runtime_env.credentials import is_switch, name_looks_secret, value_looks_secret
from trainers.config.loader import FileKind, read_yaml
from trainers.config.overrides import apply_overrides, parse_override
from trainers.config.parts.part import Location, Part, VariableName
from trainers.config.storage_location import is_absolute
from trainers.config.validation import refuse, validated
from trainers.errors import ConfigError

SPEC = FileKind("spec", "cluster_configs/specs/local.yaml", "name, head, pools, storage, …")

EMAIL = r"^[^@\s,;'\"]+@[^@\s,;'\"]+$"
# Set by the rendered files themselves.
RESERVED = ("RAY_AUTH_MODE", "RAY_TRAIN_ENABLE_STATE_TRACKING", "RAYSCRIBE_SECRETS")

PoolName = Annotated[str, StringConstraints(pattern=r"^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$")]


def _plain(command: str) -> str:
    if value_looks_secret(command):
        raise ValueError("contains a secret (not shown): name it under secrets, and refer to it as $NAME")
    if "\n" in command:
        raise ValueError("has a line break: write one command per item, joined by && where needed")
    return command


Command = Annotated[str, StringConstraints(min_length=1), AfterValidator(_plain)]


class MailPart(Part):
    """Mail of a batch scheduler."""

    to: str = Field(pattern=EMAIL, description="Address.")
    # Not `on`, which YAML reads as true.
    when: list[Literal["begin", "end", "fail", "requeue"]] = Field(["end", "fail"], description="What is reported.")


class SecretPart(Part):
    """Location of a secret, never its value; exactly one field is set."""

    env: VariableName | None = Field(None, description="Batch schedulers: variable of the job's environment.")
    file: str | None = Field(
        None,
        pattern=r"^/[^\s'\"$]+$",
        description="Batch schedulers and `ray up`: absolute path on each node, with `image` in the container; its "
        "text is the value.",
    )
    client_file: str | None = Field(
        None,
        pattern=r"^~?/[^\s'\"$]+$",
        description="`ray up`: path on the machine that starts the cluster, of mode 0600; it is copied to every node.",
    )
    kubernetes: str | None = Field(
        None, pattern=DNS_LABEL, description="Kubernetes Secret that has the value under the variable's name."
    )

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if [self.env, self.file, self.client_file, self.kubernetes].count(None) != 3:
            raise ValueError("give exactly one of env, file, client_file and kubernetes")
        return self


class ClusterSpec(Part):
    """One cluster: its nodes, what they run, and additional settings of each target."""

    name: str = Field(
        pattern=r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$",
        description="Name of the cluster, or of the batch job: lower-case letters, digits and -.",
    )
    image: Word | None = Field(
        None,
        description="Container image of every node, built from cluster_configs/Dockerfile; with a tag. null: nodes "
        "have Rayscribe installed.",
    )
    head: HeadPart = Field(default_factory=HeadPart, description="Never a spot instance.")
    pools: dict[PoolName, PoolPart] = Field(min_length=1, description="The worker nodes, by names of your own.")
    modules: list[Word] = Field([], description="Environment modules to load, e.g. cuda/12.8.")
    exports: dict[VariableName, str] = Field(
        default_factory=dict,
        description="Variables of every node; a value may refer to others, as /opt/venv/bin:$PATH. No secrets.",
    )
    setup: list[Command] = Field([], description="Shell commands that every node runs before Ray starts.")
    mail: MailPart | None = Field(None, description="Batch schedulers only. null: none.")
    storage: Location = Field(
        description="Where runs are kept: a folder that every node has at the same path, or a URL "
        "(s3://, gs:// or az://)."
    )
    secrets: dict[VariableName, SecretPart] = Field(
        default_factory=dict, description="Secret variables of every node: the location of each value, by name."
    )
    recipe: Word = Field(
        "jobs/specs/whisper_micro.yaml",
        description="Recipe that a RayJob or a batch job trains, in the image or the working directory.",
    )
    ray_up: RayUp | None = Field(None, description="`ray up` on own hosts or a cloud.")
    kubernetes: KubernetesPart | None = Field(None, description="KubeRay.")
    slurm: SlurmPart | None = Field(None, description="Slurm.")
    sge: SgePart | None = Field(None, description="Grid Engine.")

    def pool(self, name: str | None, field: str) -> tuple[str, PoolPart]:
        """Returns the pool that a batch job runs on.

        Raises:
            ConfigError: there is no such pool, or more than one to choose from.
        """
        if name is None and len(self.pools) == 1:
            return next(iter(self.pools.items()))
        if name not in self.pools:
            raise ConfigError(f"{field}: must be one of the pools {', '.join(self.pools)} (got {name!r})")
        return name, self.pools[name]

    @field_validator("storage")
    @classmethod
    def _is_reached_by_all(cls, value: str) -> str:
        if not is_absolute(value):
            raise ValueError("must be an absolute folder or an s3://, gs:// or az:// URL")
        if not value.isprintable():
            raise ValueError("contains a line break or another unprintable character: leave it out")
        return value

    @model_validator(mode="after")
    def _nothing_secret(self) -> Self:
        for name, value in self.exports.items():
            if name in RESERVED:
                raise ValueError(f"exports.{name}: is set by the rendered file: leave it out")
            if value_looks_secret(value) or (name_looks_secret(name) and not is_switch(value)):
                raise ValueError(
                    f"exports.{name}: looks like a secret (not shown): name it under secrets, e.g. {name}: "
                    f"{{env: {name}}}, {{file: /run/secrets/{name.lower()}}}, {{client_file: ~/{name.lower()}}} or "
                    "{kubernetes: my-secret}"
                )
            if re.search(r"[\"'`\\\n]|\$\(", value):
                raise ValueError(
                    f"exports.{name}: contains a quote, a backslash, a line break or a command: write it plainly"
                )
        if both := sorted({*self.exports} & {*self.secrets}):
            raise ValueError(f"exports.{both[0]}: is in exports and in secrets: keep one")
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.ray_up is not None:
            self.ray_up.check_nodes(self.pools, self.image)
        if self.kubernetes is not None:
            for field in ("node_selectors", "tolerations"):
                if unknown := sorted({*getattr(self.kubernetes, field)} - {*self.pools}):
                    known = ", ".join(self.pools)
                    raise ValueError(f"kubernetes.{field}.{unknown[0]}: no such pool; there are {known}")
        return self


def load_cluster_spec(path: Path, overrides: Sequence[str] = ()) -> ClusterSpec:
    """Reads a spec; raises ConfigError with every problem, its value and fix."""
    content = apply_overrides(read_yaml(path, SPEC), [parse_override(text) for text in overrides])
    return build_cluster_spec(content, origin=str(path))


def build_cluster_spec(content: Mapping[str, Any], *, origin: str) -> ClusterSpec:
    """Validates the content of a spec; raises ConfigError with every problem."""
    spec, problems = validated(ClusterSpec, content)
    refuse(problems, origin)
    assert spec is not None
    return spec
