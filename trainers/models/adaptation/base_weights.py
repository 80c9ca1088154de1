"""The weights that an adapter is trained on: a pretrained model's by its name, or a run's own, stored once.

A run's own are new ones, or those of a checkpoint that it begins with. They are the folder `base-<hash>` next to the
checkpoints, written before the first of them, and never again.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig

from trainers.config.parts.model_part import ModelPart
from trainers.errors import DamagedError
from trainers.models.adaptation.trained_weights import heads
from trainers.models.pretrained import from_pretrained
from trainers.run_folder.checkpoints import BASE
from trainers.storage import Storage


@dataclass(frozen=True)
class BaseWeightsReference:
    """Which weights an adapter is trained on: of a pretrained model's name and revision, or of the run's own folder.

    Attributes:
        sha256: Hash of the weights, see `fingerprint`.
        folder: Next to the checkpoints.
        seed: Seed of what transformers draws for weights that the pretrained files lack. None: not known.
        dtype: Type that they have in memory, to which those of the files may have been rounded.
    """

    sha256: str
    name_or_path: str | None = None
    revision: str | None = None
    folder: str | None = None
    seed: int | None = None
    dtype: str = "float32"

    @classmethod
    def pretrained(cls, network: Any, model: ModelPart, seed: int) -> "BaseWeightsReference":
        revision = getattr(network.config, "_commit_hash", None) or model.revision
        return cls(fingerprint(network), model.name_or_path, revision, seed=seed, dtype=_type_of(network))

    @classmethod
    def of_run(cls, network: Any) -> "BaseWeightsReference":
        sha256 = fingerprint(network)
        return cls(sha256, folder=f"base-{sha256[:16]}", dtype=_type_of(network))

    @property
    def is_own(self) -> bool:
        return self.folder is not None

    @classmethod
    def of_checkpoint(cls, folder: Path, file: str = BASE) -> "BaseWeightsReference":
        """What a checkpoint was trained on (`BASE` of an adapter's), or what its run began with (`ORIGINAL`).

        Raises:
            DamagedError: it does not say so.
        """
        if not (folder / file).is_file():
            raise DamagedError(
                f"{folder}: has no {file}, which says which weights the run began with: name a checkpoint of a run, or "
                "a model without an adapter"
            )
        return cls(**json.loads((folder / file).read_text()))

    def write(self, folder: Path, file: str = BASE) -> None:
        (folder / file).write_text(json.dumps(asdict(self), indent=1))

    def check(self, network: Any) -> None:
        """Refuses other weights than the run began with, with a DamagedError."""
        if fingerprint(network) != self.sha256:
            raise DamagedError(
                f"{self.name_or_path or self.folder}: holds other weights than the run began with: put those "
                "back where they were, or name another run (--set run.name=…)"
            )

    def open(self, config: PretrainedConfig, network_class: Any, checkpoint: Path) -> Any:
        """Opens the weights as a network of a checkpoint's config. The run's own weights are next to its folder.

        Raises:
            ConfigError: they cannot be opened.
            DamagedError: they have changed.
        """
        name = self.name_or_path or str(checkpoint.parent / str(self.folder))
        part = ModelPart(name_or_path=name, revision=self.revision)
        # A head for another vocabulary comes with the adapter.
        options = {"config": config, "dtype": self.dtype, "ignore_mismatched_sizes": True}
        with torch.random.fork_rng(devices=[]):
            if self.seed is not None:
                torch.default_generator.manual_seed(self.seed)
            network = from_pretrained(part, network_class, **options)
        self.check(network)
        return network


def store_own(base: BaseWeightsReference, network: Any, checkpoints: Storage, staging: Path) -> None:
    """Writes the run's own weights next to the checkpoints, unless they are there, and into the staging folder."""
    assert base.folder is not None
    network.save_pretrained(staging / base.folder)
    if not checkpoints.exists(f"{base.folder}/config.json"):
        checkpoints.upload_folder(staging / base.folder, base.folder, last="config.json")


def fingerprint(network: Any) -> str:
    """SHA-256 of names, shapes and content of a network's weights, without the heads that a run makes anew."""
    skipped = tuple(f"{name}." for name in heads(network))
    return hash_of((name, weight) for name, weight in network.named_parameters() if not name.startswith(skipped))


def _type_of(network: Any) -> str:
    return str(network.dtype).removeprefix("torch.")


def hash_of(weights: Iterable[tuple[str, Any]]) -> str:
    """SHA-256 of names, shapes and content of weights on the CPU, in any order."""
    digest = hashlib.sha256()
    for name, weight in sorted(weights):
        digest.update(f"{name} {tuple(weight.shape)}".encode())
        # As bytes: numpy has no bfloat16.
        digest.update(weight.detach().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
