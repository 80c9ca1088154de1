"""Identifies and opens the base weights of an adapter: those of a pretrained model, or the run's own.

A run's own base weights are new ones, or those of the checkpoint that it starts from. They are in the folder
`base-<hash>` next to the checkpoints, which is written once, before the first checkpoint.
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
    """Identifies an adapter's base weights by the name and revision of a pretrained model, or by the run's own folder.

    Attributes:
        sha256: Hash of the weights, see `fingerprint`.
        folder: Name of the run's own folder, next to the checkpoints.
        seed: Seed of weights that transformers initializes, since the pretrained files lack them; None if not known.
        dtype: Type of the weights in memory, to which those in the files may have been rounded.
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
        """Reads the base weights of a checkpoint's adapter (`BASE`), or the initial weights of its run (`ORIGINAL`).

        Raises DamagedError if the checkpoint does not have the file.
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
        """Raises DamagedError if a network does not have these weights."""
        if fingerprint(network) != self.sha256:
            raise DamagedError(
                f"{self.name_or_path or self.folder}: has other weights than the run began with: put those "
                "back where they were, or use another run name (--set run.name=…)"
            )

    def open(self, config: PretrainedConfig, network_class: Any, checkpoint: Path) -> Any:
        """Opens the weights as a network with a checkpoint's config; raises as `from_pretrained` and `check`.

        The run's own weights are read from the folder next to the checkpoint.
        """
        name = self.name_or_path or str(checkpoint.parent / str(self.folder))
        part = ModelPart(name_or_path=name, revision=self.revision)
        # If the vocabulary differs, the adapter includes the head for it.
        options = {"config": config, "dtype": self.dtype, "ignore_mismatched_sizes": True}
        with torch.random.fork_rng(devices=[]):
            if self.seed is not None:
                torch.default_generator.manual_seed(self.seed)
            network = from_pretrained(part, network_class, **options)
        self.check(network)
        return network


def store_own(base: BaseWeightsReference, network: Any, checkpoints: Storage, staging: Path) -> None:
    """Writes the run's own weights to the staging folder and, unless they exist, next to the checkpoints."""
    assert base.folder is not None
    network.save_pretrained(staging / base.folder)
    if not checkpoints.exists(f"{base.folder}/config.json"):
        checkpoints.upload_folder(staging / base.folder, base.folder, last="config.json")


def fingerprint(network: Any) -> str:
    """Returns the SHA-256 of names, shapes and values of a network's weights, except heads, which a run may create."""
    skipped = tuple(f"{name}." for name in heads(network))
    return hash_of((name, weight) for name, weight in network.named_parameters() if not name.startswith(skipped))


def _type_of(network: Any) -> str:
    return str(network.dtype).removeprefix("torch.")


def hash_of(weights: Iterable[tuple[str, Any]]) -> str:
    """Returns the SHA-256 of names, shapes and values of weights on the CPU, in any order."""
    digest = hashlib.sha256()
    for name, weight in sorted(weights):
        digest.update(f"{name} {tuple(weight.shape)}".encode())
        # As bytes, since numpy has no bfloat16.
        digest.update(weight.detach().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
