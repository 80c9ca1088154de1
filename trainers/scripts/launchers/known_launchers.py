"""The launchers whose lines are understood. To add one: a file with its `Launcher`, and its line here."""

from trainers.scripts.launchers.accelerate_launch import ACCELERATE
from trainers.scripts.launchers.deepspeed_runner import DEEPSPEED
from trainers.scripts.launchers.gaudi_spawn import GAUDI_SPAWN
from trainers.scripts.launchers.launcher import Launcher
from trainers.scripts.launchers.mpirun import MPIRUN
from trainers.scripts.launchers.python_command import PYTHON
from trainers.scripts.launchers.srun import SRUN
from trainers.scripts.launchers.torchrun import TORCH_LAUNCH, TORCHRUN

LAUNCHERS: tuple[Launcher, ...] = (
    TORCHRUN,
    TORCH_LAUNCH,
    ACCELERATE,
    DEEPSPEED,
    GAUDI_SPAWN,
    MPIRUN,
    SRUN,
    PYTHON,
)
