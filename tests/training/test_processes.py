"""Training with two processes, also on two "nodes" as torchrun and SLURM start them, is training with one."""

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
from vicinal.data import Table, load_table
from vicinal.training import Recipe, train
from vicinal.training.checkpoint import load_checkpoint
from vicinal.utils.run_folder import RunFolder

pytestmark = pytest.mark.slow

# Nothing that depends on an image's process: no augmentation, and batch normalization that keeps its statistics.
STILL = [
    "--transform.scale=[1,1]",
    "--transform.ratio=[1,1]",
    "--transform.flip=0",
    "--model.freeze_batch_norm=statistics",
]


def train_with_two_processes(settings: list[str], out: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vicinal", "train", *settings, "--devices=2", "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)


@pytest.mark.parametrize(
    "micro_batch_size",
    [
        ["--micro_batch_size=3", "--loss=MarginLoss"],
        ["--loss=ProxyAnchorLoss", "--max_grad_norm=1"],
        ["--loss=CenterContrastiveLoss", "--loss.sharded=true", "--max_grad_norm=0.5", "--centers=class_means"],
        [
            *("--loss=CenterContrastiveLoss", "--loss.sharded=true", "--max_grad_norm=0.05", "--max_grad_value=0.01"),
            *("--class_sampling=uniform", "--steps_per_epoch=2", "--max_steps=5", "--validation.train_images=9"),
        ],
    ],
)
def test_two_processes_train_as_one(small: list[str], tmp_path: Path, micro_batch_size: list[str]) -> None:
    settings = [*small, *STILL, "--freeze_backbone_epochs=1", "--epochs=3", *micro_batch_size]
    one = train(Recipe.load(overrides=[*settings, "--micro_batch_size=null"]), tmp_path / "one")
    two = RunFolder(tmp_path / "two")
    result = train_with_two_processes(settings, two.path)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{two.model}\n"
    losses = [pd.read_csv(run.log)["loss"] for run in (one, two)]
    assert losses[0].tolist() == pytest.approx(losses[1].tolist(), rel=1e-3)
    states = [load_checkpoint(run.last)["module"] for run in (one, two)]
    for name, tensor in states[0].items():
        assert (tensor - states[1][name]).abs().max() < 1e-3, name


def test_two_processes_have_the_batches_and_the_noise_of_one(small: list[str], photos: Path, tmp_path: Path) -> None:
    frame = load_table(photos).frame
    coarse = [f"kind {int(label[-1]) % 2}" for label in frame["label"]]
    Table(frame.assign(coarse=coarse, split="train")).save(tmp_path / "kinds.csv")
    more = [f"--data.source={tmp_path / 'kinds.csv'}", "--coarse_classes_per_batch=2", "--data.noise.random_labels=0.1"]
    settings = [*small, *STILL, *more]
    one = train(Recipe.load(overrides=settings), tmp_path / "one")
    two = RunFolder(tmp_path / "two")
    result = train_with_two_processes(settings, two.path)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("the label of another class") == 1
    losses = [pd.read_csv(run.log)["loss"] for run in (one, two)]
    assert losses[0].tolist() == pytest.approx(losses[1].tolist(), rel=1e-3)


def test_a_process_in_trouble_says_why(small: list[str], photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "photos" / "class0" / "0.png").write_bytes(b"broken")
    more = [f"--data.source={tmp_path / 'photos'}", "--data.cache=false", "--data.fractions={train: 1.0}"]
    result = train_with_two_processes([*small, *more], tmp_path / "run")
    assert result.returncode != 0
    assert "class0/0.png" in result.stderr
    assert result.stderr.count("error:") == 1, result.stderr
    assert "Traceback" not in result.stderr


FAILING_LOSS = """
from vicinal.losses import ContrastiveLoss
from vicinal.utils import distributed
from vicinal.utils.errors import InputError

def fail():
    rank = distributed.rank()
    {statement}

class FailingLoss(ContrastiveLoss):
    def {place}(self, *arguments, **more):
        fail()
        return super().{place}(*arguments, **more)
"""


def train_with_failing_loss(
    settings: list[str], folder: Path, statement: str, place: str = "parts"
) -> tuple[int, list[str], int]:
    """The exit status, the lines that tell of errors, and the number of tracebacks."""
    (folder / "failing.py").write_text(FAILING_LOSS.format(statement=statement, place=place))
    more = ["--allow_import=failing", "--loss=failing.FailingLoss"]
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    result = train_with_two_processes([*settings, *more], folder / "run", PYTHONPATH=path)
    lines = [line.replace("'", "").strip() for line in result.stderr.splitlines() if "rror: " in line]
    return result.returncode, lines, result.stderr.count("Traceback")


@pytest.mark.parametrize(
    ("error", "status", "lines", "num_traces"),
    [
        ("InputError", 2, ["vicinal: error: of rank 1"], 0),
        ("KeyError", 1, ["KeyError: of rank 1", "vicinal: error: rank 1: KeyError: of rank 1"], 1),
        ("KeyboardInterrupt", 130, ["vicinal: error: interrupted"], 0),
    ],
)
def test_the_error_of_another_process_is_the_one_that_is_printed(
    small: list[str], tmp_path: Path, error: str, status: int, lines: list[str], num_traces: int
) -> None:
    """Not that a collective operation has failed, or that a process has ended."""
    statement = f"if rank == 1: raise {error}('of rank 1')"
    assert train_with_failing_loss(small, tmp_path, statement) == (status, lines, num_traces)


def test_an_error_of_all_processes_is_printed_once(small: list[str], tmp_path: Path) -> None:
    same = train_with_failing_loss(small, tmp_path, "raise RuntimeError('of all')")
    assert same == (1, ["[rank0]: RuntimeError: of all"], 1)


def test_a_killed_process_ends_the_run_with_a_hint(small: list[str], tmp_path: Path) -> None:
    statement = "import os; rank == 1 and os.kill(os.getpid(), 9)"
    status, lines, num_traces = train_with_failing_loss(small, tmp_path, statement)
    expected = "vicinal: error: the process of rank 1 was killed (SIGKILL), so the run has ended; resume with: vicinal"
    assert (status, len(lines), num_traces) == (1, 1, 0)
    assert lines[0].startswith(expected)


SECONDS = 60  # within which all must end; without other work on the machine it is one


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
