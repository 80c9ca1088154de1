"""What a program needs to run on a kind of accelerator. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainers.config.parts.scaling_part import AcceleratorName
from trainers.errors import ConfigError, ResourceError


@dataclass(frozen=True)
class Accelerator:
    """A kind of accelerator.

    Attributes:
        name: As `scaling.accelerator` names it.
        resource: Ray's resource, of which a worker holds one or more. None: there is none.
        backend: What torch's process groups on it communicate by.
        visibility: Variables that list the devices which a process sees.
        hidden: Values of other variables of the kind, which hide devices that a worker does not hold.
        modes: Variables of each `script.hpu_mode`, with those of null for none.
    """

    name: AcceleratorName
    resource: str | None
    backend: str
    visibility: tuple[str, ...] = ()
    hidden: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str | None, Mapping[str, str]] = field(default_factory=lambda: {None: {}})

    def visible(self, ids_by_rank: Sequence[Sequence[str]]) -> dict[str, str]:
        """Variables by which each process of a node sees the devices of all its ranks, as under torchrun.

        Args:
            ids_by_rank: Ray's ids of the devices that each rank of this node holds, in the order of local ranks, so
                that a program finds its own by LOCAL_RANK.

        Raises:
            ResourceError: two ranks hold one device.
        """
        ids = [each for held in ids_by_rank for each in held]
        shared = sorted({each for each in ids if ids.count(each) > 1})
        if shared:
            raise ResourceError(
                f"several ranks of a node hold {self.resource} {', '.join(shared)}, and a program takes the device of "
                f"its local rank: set scaling.resources_per_worker.{self.resource}: 1"
            )
        # Without ids, Ray manages no devices of the kind.
        return {**self.hidden, **(dict.fromkeys(self.visibility, ",".join(ids)) if ids else {})}

    def environment(self, mode: str | None) -> dict[str, str]:
        """Variables of a mode; the program's own settings go before them.

        Raises:
            ConfigError: the accelerator has no such mode.
        """
        if mode not in self.modes:
            raise ConfigError(
                f"script.hpu_mode is {mode}, and scaling.accelerator {self.name} has no modes: set "
                "scaling.accelerator: hpu, or script.hpu_mode: null"
            )
        return dict(self.modes[mode])
