"""Reads a `ray up` file into scripts, variables, images and pools."""

import re
from collections.abc import Iterator

from cluster_configs.providers.known_providers import provider_of
from cluster_configs.validation.cluster_file import ClusterFile, FileKind, Pool, Script, Value, Variable
from cluster_configs.validation.yaml_nodes import Node

KEYS = frozenset({"cluster_name", "provider", "available_node_types", "head_start_ray_commands"})
ACCELERATORS = ("GPU", "HPU")
_COMMANDS = (
    "initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands",
    "head_start_ray_commands", "worker_start_ray_commands",
)  # fmt: skip
# `-e NAME=value`, `-eNAME=value`, `-e=…`, `--env NAME=value`, `--env=NAME=value`
_ENV_OPTION = re.compile(r"""(?:^|\s)(?:--env[= ]|-e[= ]?)\s*["']?(\w+)=("[^"]*"|'[^']*'|\S*)""")
_OPTIONS = {"": "run_options", "head": "head_run_options", "worker": "worker_run_options"}


def read_ray_up(text: str, document: Node) -> ClusterFile:
    """A `ray up` file; whatever is not as Ray wants it is left out, and the schema's rule reports it."""
    node_types = [node for _, node in document.get("available_node_types").items()]
    return ClusterFile(
        FileKind.RAY_UP,
        text,
        documents=(document,),
        scripts=tuple(_scripts(document, node_types)),
        variables=tuple(_variables(document, node_types)),
        images=tuple(_images(document, node_types)),
        pools=tuple(_pools(document)),
    )


def _scripts(document: Node, node_types: list[Node]) -> Iterator[Script]:
    for name in _COMMANDS:
        role = name.partition("_")[0]
        environment = {variable.name: variable.text for variable in _variables(document, [], role)}
        for owner in [document, *node_types]:
            for node in owner.get(name).elements():
                yield Script(node.place, node.text, environment)


def _variables(document: Node, node_types: list[Node], role: str = "") -> Iterator[Variable]:
    """Variables of the containers: those of a role, or with the role "" all."""
    wanted = [name for of, name in _OPTIONS.items() if role in ("", of) or of == ""]
    for owner in [document, *node_types]:
        for option in (node for name in wanted for node in owner.get("docker", name).elements()):
            for name, value in _ENV_OPTION.findall(option.text):
                yield Variable(option.place, value.strip("\"'"), name)


def _images(document: Node, node_types: list[Node]) -> Iterator[Value]:
    for owner in [document, *node_types]:
        for name in ("image", "head_image", "worker_image"):
            node = owner.get("docker", name)
            if node.text:
                yield Value(node.place, node.text)


def _pools(document: Node) -> Iterator[Pool]:
    provider = provider_of(document.get("provider"))
    for name, node in document.get("available_node_types").items():
        resources = node.get("resources")
        given = [resources.get(kind).number for kind in ACCELERATORS if resources.get(kind).present]
        yield Pool(
            node,
            name,
            head=name == document.get("head_node_type").text,
            spot=provider.spot_setting(node.get("node_config")) if provider is not None else None,
            cpus=resources.get("CPU").number,
            accelerators=sum(count or 0 for count in given) if given else None,
            maximum=node.get("max_workers").number if node.get("max_workers").present else None,
        )
