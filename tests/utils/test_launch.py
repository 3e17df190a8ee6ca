"""What the environment says of the processes of a run, and errors where the recipe says something else."""

import pytest

from vicinal.utils.errors import InputError
from vicinal.utils.launch import Launch, check_launch

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node0"}
SLURM = {
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_TASKS_PER_NODE": "2(x2)",
    "SLURM_JOB_NAME": "train",
}
BATCH_SCRIPT = {name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"}


def test_the_environment_says_what_was_started() -> None:
    for environment, expected in (
        ({}, Launch(None, 1, 0, 1)),
        (TORCHRUN, Launch("torchrun", 4, 3, 2)),
        (SLURM, Launch("SLURM", 4, 3, 2)),
        ({**SLURM, **TORCHRUN}, Launch("torchrun", 4, 3, 2)),  # srun torchrun ...
        ({"RANK": "0", "WORLD_SIZE": "1"}, Launch(None, 1, 0, 1)),  # set in some containers
        ({**SLURM, "SLURM_NTASKS": "1"}, Launch(None, 1, 0, 1)),  # the command starts its processes
        (BATCH_SCRIPT, Launch(None, 1, 0, 1)),
        ({**SLURM, "SLURM_TASKS_PER_NODE": "", "SLURM_NTASKS_PER_NODE": "4"}, Launch("SLURM", 4, 3, 4)),
    ):
        assert Launch.of(environment) == expected


@pytest.mark.parametrize("environment", [TORCHRUN, SLURM])
@pytest.mark.parametrize(("devices", "num_nodes"), [(None, None), (2, None), (None, 2), (2, 2)])
def test_settings_that_fit(environment: dict[str, str], devices: int | None, num_nodes: int | None) -> None:
    launch = check_launch(devices, num_nodes, environment)
    assert (launch.num_nodes, launch.num_processes(devices, num_nodes)) == (2, 4)
    assert check_launch(3, None, {}).num_processes(3, None) == 3


def test_settings_that_do_not_fit() -> None:
    for devices, num_nodes, environment, words in (
        (1, None, TORCHRUN, ["devices = 1 x num_nodes = 2 make 2 processes", "torchrun started 4"]),
        (4, 1, TORCHRUN, ["devices = 4 x num_nodes = 1", "2 on each of 2 nodes"]),
        (None, 2, {}, ["num_nodes = 2 needs a launcher"]),
        (None, None, BATCH_SCRIPT, ["SLURM_NTASKS = 4", "write srun before"]),
        (None, None, {**TORCHRUN, "LOCAL_RANK": ""}, ["LOCAL_RANK is missing"]),
        (None, None, {**TORCHRUN, "WORLD_SIZE": "5"}, ["5 processes, and 2 of them on one node"]),
    ):
        with pytest.raises(InputError) as raised:
            check_launch(devices, num_nodes, environment)
        assert all(word in str(raised.value) for word in words)
        assert "\n" not in str(raised.value)
