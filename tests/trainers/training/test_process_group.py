"""Which network interface and which GPUs the workers' process group uses."""

import functools
import os
from collections.abc import Callable
from typing import Any

import pytest
import ray
from ray.train.torch.config import _TorchBackend

from trainers.distributed.machine import GLOO_INTERFACE, interface_of
from trainers.training.ray_workers import NodeAddressTorchConfig, choose_interface, share_devices

UNUSED = "192.0.2.99"


def test_an_interface_is_found_by_its_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of(UNUSED) is None


@pytest.mark.parametrize(("address", "chosen"), [("127.0.0.1", "lo"), (UNUSED, None)])
def test_gloo_uses_the_interface_that_ray_uses(
    address: str, chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: address)
    choose_interface()
    assert os.environ.get(GLOO_INTERFACE) == chosen


def test_a_user_s_own_choice_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {GLOO_INTERFACE: "eth7"})
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    choose_interface()
    assert os.environ[GLOO_INTERFACE] == "eth7"


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        # What Ray leaves the second of two workers on a node of AMD's, of NVIDIA's, and without GPUs.
        ({"CUDA_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "1"}, "0,1"),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, None),
        ({}, None),
    ],
)
def test_each_worker_sees_the_gpus_of_its_node_that_the_run_has(
    given: dict[str, str], seen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(given))
    share_devices()
    assert os.environ.get("HIP_VISIBLE_DEVICES") == seen


def test_workers_are_checked_before_they_form_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    class Group:
        """Ray's, which asks a function for its name."""

        def execute(self, function: Callable[..., None], *arguments: Any) -> None:
            called.append(function.__name__)
            function(*arguments)

    monkeypatch.setattr(_TorchBackend, "on_start", lambda *given: called.append("group"))
    monkeypatch.setattr(os, "environ", {GLOO_INTERFACE: "eth7"})
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: UNUSED)
    config = NodeAddressTorchConfig(check=functools.partial(called.append, "checked"))
    config.backend_cls().on_start(Group(), config)
    assert called == ["share_devices", "run_check", "checked", "choose_interface", "group"]
