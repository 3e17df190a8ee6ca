"""Runs on two "nodes": groups of processes with a rank on their own node, as torchrun and SLURM start them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from tests.conftest import ROOT, free_port
from tests.training.test_processes import STILL
from vicinal.training import Recipe, train
from vicinal.training.checkpoint import load_checkpoint
from vicinal.utils.run_folder import RunFolder

SECONDS = 60  # within which all must end; without other work on the machine it is one

pytestmark = pytest.mark.slow


def torchrun(rank: int, world: int, per_node: int, port: int) -> dict[str, str]:
    """What torchrun tells a process, of which each node has so many."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank % per_node),
        "LOCAL_WORLD_SIZE": str(per_node),
        "GROUP_RANK": str(rank // per_node),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def slurm(rank: int, world: int, per_node: int, port: int) -> dict[str, str]:
    """What srun tells a task."""
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": str(world),
        "SLURM_LOCALID": str(rank % per_node),
        "SLURM_NODEID": str(rank // per_node),
        "SLURM_NNODES": str(world // per_node),
        "SLURM_TASKS_PER_NODE": f"{per_node}(x{world // per_node})",
        "SLURM_STEP_ID": "0",
        "SLURM_JOB_ID": "1234567",
        "SLURM_NODELIST": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def start(settings: list[str], out: Path, world: int, per_node: int, launcher=torchrun, **where: Path):
    """Start a run on its nodes; `where` gives the working directory of some ranks, as `rank1=folder`."""
    port = free_port()
    return [
        subprocess.Popen(
            [sys.executable, "-m", "vicinal", "train", *settings, f"--out={out}"],
            cwd=where.get(f"rank{rank}", ROOT),
            env={**os.environ, "OMP_NUM_THREADS": "1", **launcher(rank, world, per_node, port)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]


def end(processes: list[subprocess.Popen[str]]) -> tuple[list[int], list[str]]:
    """Wait for all, and return their exit statuses and messages."""
    errors = [process.communicate(timeout=20 * SECONDS)[1] for process in processes]
    return [process.returncode for process in processes], errors


def finish(settings: list[str], out: Path, world: int, per_node: int, launcher=torchrun) -> None:
    codes, errors = end(start(settings, out, world, per_node, launcher))
    assert codes == world * [0], errors


def assert_near(one: RunFolder, other: RunFolder) -> None:
    losses = [pd.read_csv(run.log)["loss"].tolist() for run in (one, other)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    states = [load_checkpoint(run.last)["module"] for run in (one, other)]
    for name, tensor in states[0].items():
        assert isinstance(tensor, dict) or (tensor - states[1][name]).abs().max() < 1e-3, name
    metrics = [pd.read_csv(run.metrics).drop(columns="time", errors="ignore") for run in (one, other)]
    pd.testing.assert_frame_equal(*metrics, rtol=0.02, atol=0.05)


@pytest.mark.parametrize(("launcher", "world", "per_node"), [(torchrun, 2, 1), (slurm, 2, 1), (torchrun, 4, 2)])
def test_two_nodes_train_as_one_process(small: list[str], tmp_path: Path, launcher, world: int, per_node: int) -> None:
    """Without any setting of devices; only the first process writes."""
    one, two = RunFolder(tmp_path / "one"), RunFolder(tmp_path / "two")
    train(Recipe.load(overrides=[*small, *STILL]), one.path)
    finish([*small, *STILL], two.path, world, per_node, launcher)
    assert_near(one, two)
    assert two.lock.read_text().count("\n") == 1


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_killed_process_ends_all_and_the_run_resumes(small: list[str], tmp_path: Path, strategy: str) -> None:
    """Bit for bit with as many processes, and to rounding with another number."""
    settings = [*small, *STILL, "--epochs=12", "--checkpoint_minutes=0", f"--strategy={strategy}"]
    straight, run = RunFolder(tmp_path / "straight"), RunFolder(tmp_path / "run")
    finish(settings, straight.path, 2, 1)
    for victim in (1, 0):
        processes = start([*settings, "--resume"], run.path, 2, 1)
        before = run.last.stat().st_mtime if run.last.exists() else 0
        while not run.last.exists() or run.last.stat().st_mtime == before:
            assert processes[0].poll() is None
            time.sleep(0.02)
        processes[victim].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        codes, errors = end(processes)
        assert time.monotonic() - killed < SECONDS
        assert codes[victim] == -9
        assert codes[1 - victim] == 1, errors
        assert "Traceback" not in errors[1 - victim]
    shutil.copytree(run.path, tmp_path / "alone")
    finish([*settings, "--resume"], run.path, 2, 1)
    assert (run.model / "model.safetensors").read_bytes() == (straight.model / "model.safetensors").read_bytes()
    finish([*settings, "--resume"], tmp_path / "alone", 1, 1)
    assert_near(RunFolder(tmp_path / "alone"), straight)
