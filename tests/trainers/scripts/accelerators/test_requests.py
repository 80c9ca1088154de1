"""What Ray is asked for on each accelerator, and what environment the ranks of a node get, compared with golden files.

`REGENERATE_GOLDEN=1 pytest tests/trainers/scripts/accelerators/test_requests.py` rewrites them; review the difference.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainers.config.parts.scaling_part import ScalingPart
from trainers.errors import ResourceError
from trainers.pipeline.on_ray.ray_fit import scaling_config
from trainers.scripts.accelerators import ACCELERATORS, HPU_MODES, accelerator_of

GOLDEN = Path(__file__).parent / "golden"
WORKERS: dict[str, Any] = {"num_workers": 4, "resources_per_worker": {"CPU": 8}}
# What a recipe says, its script.hpu_mode, and Ray's ids of the devices of two ranks on one node.
CASES: dict[str, tuple[dict[str, Any], str | None, list[list[str]]]] = {
    "cpu": ({}, None, [[], []]),
    "cuda": ({"accelerator": "cuda", "accelerator_type": "A100"}, None, [["4"], ["2"]]),
    "rocm": ({"accelerator": "rocm", "accelerator_type": "AMD-Instinct-MI300X-OAM"}, None, [["0"], ["1"]]),
    "hpu": ({"accelerator": "hpu", "label_selector": {"pool": "in(gaudi2, gaudi3)"}}, None, [["6"], ["7"]]),
    "hpu_lazy": ({"accelerator": "hpu"}, "lazy", [["0"], ["1"]]),
    "hpu_eager": ({"accelerator": "hpu", "placement_strategy": "STRICT_PACK"}, "eager", [["0"], ["1"]]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_request_and_the_environment_of_a_node_are_printed_completely(name: str) -> None:
    content, mode, ids_by_rank = CASES[name]
    part = ScalingPart.model_validate({**WORKERS, **content})
    accelerator, ray_asked = accelerator_of(part), scaling_config(part)
    printed = yaml.safe_dump(
        {
            "scaling_config": {
                field: getattr(ray_asked, field)
                for field in (
                    "num_workers",
                    "use_gpu",
                    "resources_per_worker",
                    "placement_strategy",
                    "accelerator_type",
                    "label_selector",
                )
            },
            "environment": {**HPU_MODES[mode], **accelerator.visible(ids_by_rank)},
        },
        sort_keys=False,
    )
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("REGENERATE_GOLDEN"):
        path.write_text(printed)
    assert printed == path.read_text()


class TestAuto:
    """A GPU of whatever maker: Ray is asked for the same, and the node says what the program's environment is."""

    @pytest.mark.parametrize(
        ("devices", "variables"),
        [
            ([], {"CUDA_VISIBLE_DEVICES"}),
            (["nvidia0"], {"CUDA_VISIBLE_DEVICES"}),
            (["kfd"], {"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"}),
            (["kfd", "nvidia0"], {"CUDA_VISIBLE_DEVICES"}),
        ],
    )
    def test_it_is_what_the_node_has(self, devices: list[str], variables: set[str], tmp_path: Path) -> None:
        (tmp_path / "dev").mkdir()
        for name in devices:
            (tmp_path / "dev" / name).touch()
        found = accelerator_of(ScalingPart(use_gpu=True), tmp_path)
        assert found.resource == "GPU"
        assert set(found.visible([["0"]])) == variables

    def test_a_resource_of_gaudis_means_gaudis(self) -> None:
        assert accelerator_of(ScalingPart(resources_per_worker={"HPU": 2})).name == "hpu"


class TestVisibleDevices:
    def test_ranks_that_hold_several_see_all_of_their_node_in_the_order_of_local_ranks(self) -> None:
        assert ACCELERATORS["hpu"].visible([["3", "1"], ["0", "2"]]) == {"HABANA_VISIBLE_MODULES": "3,1,0,2"}

    def test_without_ids_the_node_s_own_setting_stays(self) -> None:
        assert ACCELERATORS["cuda"].visible([[], []]) == {}

    def test_ranks_that_share_one_are_refused_with_the_fix(self) -> None:
        with pytest.raises(ResourceError, match=r"hold GPU 1, .*: set scaling.resources_per_worker.GPU: 1"):
            ACCELERATORS["rocm"].visible([["0"], ["1"], ["1"]])
