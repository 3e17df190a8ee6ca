from __future__ import annotations

import math
import os
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor

REASON = "needs Triton, which some builds of torch lack"
device_kernel = pytest.importorskip("vicinal.evaluation.counting.device_kernel", reason=REASON)
rank_kernels = pytest.importorskip("vicinal.losses.rank_kernels", reason=REASON)

PROGRAM = Path(__file__).with_name("compiled_kernels.py")
KERNELS = [
    "_count",
    "_count_above",
    "_count_above_backward",
    "_count_thresholds_above",
    "_sum_over_triplets",
]
OLD = tuple(int(number) for number in version("triton").split(".")[:2]) < (3, 3)
COMPILER = Path(find_spec("triton").origin).parent / "backends/nvidia/bin/ptxas"  # type: ignore[union-attr, arg-type]


@pytest.mark.skipif(OLD, reason="this version of Triton compiles from other arguments")
@pytest.mark.skipif(not COMPILER.exists(), reason="this Triton has no compiler for NVIDIA's GPUs")
def test_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    """Triton's interpreter, in which other tests run them, takes variables that change their shape; a GPU does not."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, PROGRAM], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == KERNELS


def test_kernels_run_on_the_device_of_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton takes the current GPU, which may be another."""
    seen = []

    def device_of(tensor: Tensor) -> AbstractContextManager[None]:
        seen.append(tensor)
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    values, numbers = torch.rand(1, 3), torch.zeros(1, dtype=torch.int64)
    rank_kernels.count_above(values[:, :1], values, 0.0, math.inf, 0.0)
    counts = torch.zeros(2, dtype=torch.int32), torch.zeros(1, dtype=torch.uint8)
    slots = device_kernel.Slots(numbers, numbers, numbers + 1, numbers, torch.tensor([0, 1, 1]), *counts)
    device_kernel.count(values, slots, 0, 0, 1)
    assert [each.data_ptr() for each in seen] == 2 * [values.data_ptr()]
