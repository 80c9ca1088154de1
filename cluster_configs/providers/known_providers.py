"""The table of providers, with those of other installed distributions."""

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from cluster_configs.providers.aws import AWS
from cluster_configs.providers.azure import AZURE
from cluster_configs.providers.gcp import GCP
from cluster_configs.providers.local import LOCAL
from cluster_configs.providers.provider import Provider, RayUpPart
from cluster_configs.validation.yaml_nodes import Node
from trainers.plugins import with_plugins

PROVIDERS: Mapping[str, Provider] = with_plugins(
    "rayscribe.providers", {"local": LOCAL, "aws": AWS, "gcp": GCP, "azure": AZURE}
)


def provider_of(section: Node) -> Provider | None:
    """Returns the provider of a `ray up` file by its section `provider`; None if the table does not have it."""
    module = section.get("module").text
    named = (one for one in PROVIDERS.values() if module and one.module == module)
    return next(named, PROVIDERS.get(section.get("type").text))


if TYPE_CHECKING:
    RayUp = RayUpPart
else:
    # A union of the parts by their `provider`; a type checker cannot know those of other distributions.
    _PARTS = [provider.part for provider in PROVIDERS.values() if provider.part is not None]
    RayUp = Annotated[reduce(or_, _PARTS), Field(discriminator="provider")]
