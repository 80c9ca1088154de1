"""Gaudi, by Intel."""

from trainers.scripts.accelerators.accelerator import Accelerator

# https://docs.habana.ai/en/latest/PyTorch/Runtime_Flags.html; collectives within graphs are of lazy mode.
MODES = {
    None: {},
    "lazy": {"PT_HPU_LAZY_MODE": "1", "PT_HPU_ENABLE_LAZY_COLLECTIVES": "true"},
    "eager": {"PT_HPU_LAZY_MODE": "0"},
}
# HABANA_VISIBLE_DEVICES is read by the container's runtime, this one by the program.
HPU = Accelerator("hpu", "HPU", "hccl", ("HABANA_VISIBLE_MODULES",), modes=MODES)
