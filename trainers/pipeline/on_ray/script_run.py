"""The workers of a program: a run of Ray Train that sets up no process group. Imports no torch."""

from typing import Any

from ray.train import RunConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from trainers.distributed.ray_connection import check_capacity
from trainers.pipeline.on_ray.ray_fit import fit_to_end, scaling_config
from trainers.run_folder.layout import RunFolder
from trainers.scripts.accelerators.known_accelerators import accelerator_of
from trainers.scripts.backend import ScriptBackendConfig
from trainers.scripts.program_worker import run_program_per_worker
from trainers.scripts.script_task import ScriptTask


def run_program(task: ScriptTask, folder: RunFolder, *, managed_by_service: bool) -> None:
    """Runs a program on all workers to its end.

    Raises:
        RayscribeError: as of `fit_to_end`; a ResourceError where the workers never fit.
    """
    config = task.config
    check_capacity(config)

    def make(coordinator: Any, ray_run: RunConfig) -> DataParallelTrainer:
        return DataParallelTrainer(
            run_program_per_worker,
            train_loop_config={"task": task, "coordinator": coordinator, "folder": folder},
            backend_config=ScriptBackendConfig(accelerator_of(config.scaling).resource),
            scaling_config=scaling_config(config.scaling),
            run_config=ray_run,
        )

    fit_to_end(make, config, folder, task.attempt, managed_by_service=managed_by_service)
