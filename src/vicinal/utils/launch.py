"""The launcher of the processes of a run: torchrun, SLURM, or the command itself."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from vicinal.utils.errors import InputError

INTERACTIVE = ("bash", "interactive")  # names of SLURM jobs that are shells, as Lightning knows them
SUPERVISOR = "VICINAL_SUPERVISOR"  # the environment variable with the number of the process that started the others
STEP = ("SLURM_STEP_ID", "SLURM_STEPID")  # srun sets these, and not the script of a job
NEEDED = {"torchrun": "LOCAL_RANK", "SLURM": "SLURM_LOCALID"}


@dataclass(frozen=True)
class Launch:
    """The launcher of the processes of a run, by their environment.

    Attributes:
        launcher: `torchrun`, which a command with several devices starts itself, or `SLURM`; None: there is one
            process.
        world_size: number of processes on all nodes; 1 without a launcher, as the settings say how many to start.
        rank: number of this process among them.
        processes_per_node: number of processes on each node; where nodes differ, on one of them.
    """

    launcher: str | None
    world_size: int
    rank: int
    processes_per_node: int

    @classmethod
    def of(cls, environment: Mapping[str, str] | None = None) -> Launch:
        """Read an environment, which may be that of a command that does not train; None: that of this process."""
        variables = os.environ if environment is None else environment
        world_size, tasks = _number(variables, "WORLD_SIZE", 1), _number(variables, "SLURM_NTASKS", 1)
        if world_size > 1 and "RANK" in variables:
            local = _number(variables, "LOCAL_WORLD_SIZE", world_size)
            return cls("torchrun", world_size, _number(variables, "RANK", 0), local)
        if tasks > 1 and _is_task(variables) and any(name in variables for name in STEP):
            return cls("SLURM", tasks, _number(variables, "SLURM_PROCID", 0), _tasks_per_node(variables, tasks))
        return cls(None, 1, 0, 1)

    @property
    def num_nodes(self) -> int:
        """Number of nodes, with equally many processes on each."""
        return self.world_size // self.processes_per_node

    def num_processes(self, devices: int | None, num_nodes: int | None) -> int:
        """The number of processes of a run with these settings; see :func:`check_launch`."""
        return (devices or 1) * (num_nodes or 1) if self.launcher is None else self.world_size


def check_launch(devices: int | None, num_nodes: int | None, environment: Mapping[str, str] | None = None) -> Launch:
    """Check the processes per node and nodes that the settings of a run want (None: any) against the running ones.

    Raises:
        InputError: the settings want other numbers, or several nodes without a launcher; or the environment is
            incomplete.
    """
    variables = os.environ if environment is None else environment
    launch = Launch.of(variables)
    if launch.launcher is None:
        _check_alone(variables, num_nodes)
        return launch
    missing = NEEDED[launch.launcher]
    if not variables.get(missing, "").isdecimal():
        raise InputError(f"{launch.launcher} started {launch.world_size} processes, and {missing} is missing")
    if launch.world_size % launch.processes_per_node:
        raise InputError(
            f"{launch.launcher} started {launch.world_size} processes, and {launch.processes_per_node} of them on one "
            "node; start as many on every node"
        )
    wanted = (devices or launch.processes_per_node, num_nodes or launch.num_nodes)
    if wanted != (launch.processes_per_node, launch.num_nodes):
        raise InputError(
            f"devices = {wanted[0]} x num_nodes = {wanted[1]} make {wanted[0] * wanted[1]} processes, and "
            f"{launch.launcher} started {launch.world_size}, {launch.processes_per_node} on each of "
            f"{launch.num_nodes} nodes; leave both settings out, or start as many"
        )
    return launch


def _check_alone(variables: Mapping[str, str], num_nodes: int | None) -> None:
    if (num_nodes or 1) > 1:
        raise InputError(
            f"num_nodes = {num_nodes} needs a launcher: start the command on every node by torchrun or srun"
        )
    tasks = _number(variables, "SLURM_NTASKS", 1)
    if tasks > 1 and _is_task(variables):
        raise InputError(
            f"SLURM_NTASKS = {tasks}, and srun has not started this process: write srun before the command, or ask "
            "SLURM for one task"
        )


def _is_task(variables: Mapping[str, str]) -> bool:
    """Whether SLURM has started a process that is not a shell."""
    return "SLURM_PROCID" in variables and variables.get("SLURM_JOB_NAME") not in INTERACTIVE


def _tasks_per_node(variables: Mapping[str, str], default: int) -> int:
    """The number of processes on the first node, from a list such as 4(x2)."""
    listed = variables.get("SLURM_STEP_TASKS_PER_NODE") or variables.get("SLURM_TASKS_PER_NODE") or ""
    numbers = re.findall(r"\d+", listed)
    return int(numbers[0]) if numbers else _number(variables, "SLURM_NTASKS_PER_NODE", default)


def _number(variables: Mapping[str, str], name: str, default: int) -> int:
    """A positive whole number, or 0; the default for anything else."""
    text = variables.get(name, "")
    return int(text) if text.isdecimal() else default
