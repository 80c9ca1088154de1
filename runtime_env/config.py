"""RuntimeEnvPart: the key `job.runtime_env` of a recipe, as frozen, typed parts.

No error message repeats a value that looks like a secret.
"""

import re
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from runtime_env import requirements
from runtime_env.credentials import (
    holds_literal_credentials,
    is_switch,
    name_looks_secret,
    references_in,
    value_looks_secret,
)
from trainers.config.parts.part import Part, VariableName

# Variables that Rayscribe sets itself, and what to use instead.
RESERVED = {
    "RAYSCRIBE_CONFIG": "the recipe's own fields",
    "RAYSCRIBE_ATTEMPT": "rayscribe resume, which counts attempts",
    "RAYSCRIBE_SECRETS": "job.runtime_env.secrets",
    "RAYSCRIBE_DOLLAR": "job.runtime_env.uv",
    "RAYSCRIBE_ENVIRONMENT": "job.runtime_env.install",
    "RAYSCRIBE_PY_EXECUTABLE": "job.runtime_env.install",
    "RAY_JOB_STOP_SIGNAL": "job.stop_grace_s",
    "RAY_JOB_STOP_WAIT_TIME_S": "job.stop_grace_s",
}


def _check_index(url: str) -> str:
    if holds_literal_credentials(url):
        raise ValueError(
            "contains a credential (not shown): write https://${INDEX_USER}:${INDEX_PASSWORD}@…, and set both "
            "variables in the environment in which Ray runs on each node"
        )
    requirements.check_references(url)
    if not re.fullmatch(r"(https?|file)://\S+", url):
        raise ValueError("is not a URL: write https://…/simple")
    return url


IndexUrl = Annotated[str, AfterValidator(_check_index)]


class StrictModel(Part):
    """A part of the config that keeps values out of messages."""

    model_config = ConfigDict(coerce_numbers_to_str=True, hide_input_in_errors=True)


class SecretRef(StrictModel):
    """Location of a secret on a node; exactly one of the two fields is set."""

    env: VariableName | None = Field(
        None, description="Variable of the environment in which Ray runs on each node. null: `file`."
    )
    file: str | None = Field(None, description="Absolute path on each node; its text is the value. null: `env`.")

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.env is None) == (self.file is None):
            raise ValueError("give one of env (a variable of the node) and file (an absolute path on the node)")
        if self.env is not None and value_looks_secret(self.env):
            raise ValueError("env is the name of a variable of the node, not the secret itself (not shown)")
        # Ray expands $NAME in all values of env_vars, and the reference is passed as such a value.
        if self.file is not None and (not PurePosixPath(self.file).is_absolute() or "$" in self.file):
            raise ValueError("file is the absolute path of a file on each node, without $")
        return self


class RuntimeEnvPart(StrictModel):
    """A job's own packages, variables and working directory. Everything else comes from the node."""

    working_dir: str | None = Field(
        None,
        description="Folder that is packaged with the job, as a zip. null: the current folder, or the nearest above it "
        "with a task.py, e.g. a clone of Rayscribe.",
    )
    excludes: list[str] = Field(
        [],
        description="Patterns, as in .gitignore, of files to leave out of the zip, in addition to .gitignore and "
        ".rayignore.",
    )
    pip: list[str] | str | None = Field(
        None,
        description="What pip installs on the nodes: requirement lines, or the path of a requirements.txt or lock in "
        "the packaged folder. null: nothing.",
    )
    uv: list[str] | str | None = Field(None, description="The same, installed by uv. null: nothing.")
    index_url: IndexUrl | None = Field(
        None,
        description="Package index instead of the node's own. Credentials only as ${NAME}, variables of the "
        "environment in which Ray runs on each node, percent-encoded if they contain @ : or /. With them, pip installs "
        "only wheels, but uv also builds from source. null: the node's own.",
    )
    extra_index_urls: list[IndexUrl] = Field([], description="Further indexes, in the same form.")
    cache: bool = Field(True, description="Keep downloaded packages in the node's cache for the next job.")
    install: Literal["runtime_env", "script"] = Field(
        "runtime_env",
        description="runtime_env: Ray installs before the job starts. script: install_and_run.sh installs, around the "
        "entrypoint and every worker, for a cluster that does not allow pip environments.",
    )
    setup_timeout_s: int = Field(
        1800,
        gt=0,
        le=86400,
        description="How long Ray may take to install on a node. Seconds; Ray's own default is 600.",
    )
    env_vars: dict[VariableName, str] = Field(
        default_factory=dict,
        description="Variables of the driver and all workers; ${NAME} is expanded on the node. No secrets.",
    )
    secrets: dict[VariableName, SecretRef] = Field(
        default_factory=dict,
        description="Variables of the driver and all workers whose values are read on the node: {NAME: {env: "
        "NAME_ON_NODE}} or {NAME: {file: /path/on/node}}.",
    )
    image_uri: str | None = Field(
        None,
        pattern=r"^[^\s'$@]+(@sha256:[0-9a-f]{64})?$",
        description="Container image in which driver and workers run. Ray sends no files to it, so the image must have "
        "Ray, the packages and, in its working directory, the repository. null: no container.",
    )

    @property
    def tool(self) -> Literal["pip", "uv"] | None:
        """The installer. None if there is nothing to install."""
        return "pip" if self.pip is not None else "uv" if self.uv is not None else None

    @property
    def packages(self) -> list[str] | str | None:
        """Requirement lines, or the name of the file with them."""
        return self.pip if self.pip is not None else self.uv

    @property
    def index_references(self) -> list[str]:
        """Variables of the node in index URLs and requirement lines."""
        lines = self.packages if isinstance(self.packages, list) else []
        texts = [*([self.index_url] if self.index_url else []), *self.extra_index_urls, *lines]
        return sorted({name for text in texts for name in references_in(text)})

    @model_validator(mode="after")
    def _packages_fit(self) -> Self:
        if self.pip is not None and self.uv is not None:
            raise ValueError("pip and uv exclude each other: keep one, set the other to null")
        if self.tool is None:
            if self.index_url or self.extra_index_urls:
                raise ValueError("index_url and extra_index_urls do nothing without pip or uv: name what to install")
            return self
        if isinstance(self.packages, list):
            _check_lines(self, self.packages, self.tool)
        elif not self.packages:
            raise ValueError(f"{self.tool} is empty: name a file or requirements, or set it to null")
        return self

    @model_validator(mode="after")
    def _variables_fit(self) -> Self:
        for name, value in self.env_vars.items():
            if name_looks_secret(name) and not is_switch(value):
                raise ValueError(f"env_vars.{name} looks like a secret (value not shown): {_instead(name)}")
            if value_looks_secret(value):
                raise ValueError(f"the value of env_vars.{name} looks like a secret (not shown): {_instead(name)}")
            if "\0" in value:
                raise ValueError(f"env_vars.{name} contains a NUL byte, which a variable cannot")
        for name in sorted({*self.env_vars, *self.secrets} & set(RESERVED)):
            raise ValueError(f"{name} is set by Rayscribe: use {RESERVED[name]}")
        for name in sorted(set(self.env_vars) & set(self.secrets)):
            raise ValueError(f"{name} is in env_vars and in secrets: keep one")
        for name, ref in self.secrets.items():
            # If the source was overwritten, references would have another value when they are resolved again.
            if ref.env != name and ref.env in {*self.secrets, *self.env_vars}:
                raise ValueError(f"secrets.{name} is taken from {ref.env}, which is set here too: rename one of them")
        return self

    @model_validator(mode="after")
    def _image_fits(self) -> Self:
        if self.image_uri is None:
            return self
        # Ray: ImageURIPlugin.get_compatible_keys() is image_uri, config and env_vars.
        for field in ("pip", "uv", "working_dir"):
            if getattr(self, field) is not None:
                raise ValueError(f"image_uri and {field} exclude each other in Ray: build it into the image")
        for name, value in self.env_vars.items():
            if "'" in value:
                raise ValueError(f"env_vars.{name} contains a ', which Ray does not quote in a container's command")
        return self


def _check_lines(part: RuntimeEnvPart, lines: list[str], tool: str) -> None:
    if not lines:
        raise ValueError(f"{tool} is an empty list: name requirements, or set it to null")
    for line in lines:
        if not line or "\n" in line:
            raise ValueError(
                f"{tool} has an empty line, or one with a line break: give a list with one requirement each"
            )
        requirements.check_line(line, tool)
        if part.index_url is not None and requirements.option_of(line) == "--index-url":
            raise ValueError(f"{line}: index_url is also set: keep one of them")
    if tool == "pip" and part.index_references:
        requirements.check_for_pip_with_references(lines)


def _instead(name: str) -> str:
    return (
        f"name it under job.runtime_env.secrets, e.g. {name}: {{env: {name}}}, and set it in the environment in which "
        "Ray runs on each node"
    )
