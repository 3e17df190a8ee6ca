import math
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vicinal.evaluation.counting import counter as counting
from vicinal.losses import soft_ranks, triplets
from vicinal.utils import devices

REASON = "needs Triton, which some builds of torch lack"
device_kernel = pytest.importorskip("vicinal.evaluation.counting.device_kernel", reason=REASON)
rank_kernels = pytest.importorskip("vicinal.losses.rank_kernels", reason=REASON)

PROGRAM = Path(__file__).with_name("compiled_kernels.py")
KERNELS = ["_count", "_count_above", "_count_above_backward", "_count_thresholds_above", "_sum_over_triplets"]
OLD = tuple(int(number) for number in version("triton").split(".")[:2]) < (3, 3)
COMPILER = Path(find_spec("triton").origin).parent / "backends/nvidia/bin/ptxas"  # type: ignore[union-attr, arg-type]


@pytest.mark.parametrize("agrees", [soft_ranks._kernels_agree, triplets._kernel_agrees, counting._kernel_agrees])
def test_kernels_agree_with_pytorch_on_their_first_use(monkeypatch, agrees: Callable[[torch.device], bool]) -> None:
    device = torch.device("cpu")  # in the interpreter
    assert agrees(device)
    broken = rank_kernels.sum_over_triplets, rank_kernels.count_above, device_kernel.count
    monkeypatch.setattr(rank_kernels, "count_above", lambda *arguments: broken[1](*arguments) + 1)
    monkeypatch.setattr(rank_kernels, "sum_over_triplets", lambda *arguments: [x + 1 for x in broken[0](*arguments)])
    monkeypatch.setattr(device_kernel, "count", lambda *arguments: None)
    assert not agrees(device)


@pytest.mark.parametrize("error", [None, RuntimeError("ptxas fatal\nno such chip")])
def test_a_kernel_that_fails_is_replaced_by_pytorch(monkeypatch, error: RuntimeError | None) -> None:
    calls = []

    def agrees(device: torch.device) -> bool:
        calls.append(device)
        if error:
            raise error
        return False

    monkeypatch.setattr(devices, "has_kernels", lambda values: True)
    monkeypatch.setattr(devices, "_AGREES", {})
    expected = "ptxas fatal no such chip" if error else "its results differ"
    with pytest.warns(UserWarning, match=f"the kernel x is not used on cpu: {expected}"):
        assert not devices.uses_kernel(torch.zeros(1), "x", agrees)
    assert not devices.uses_kernel(torch.zeros(1), "x", agrees)
    assert len(calls) == 1
    assert devices.uses_kernel(torch.zeros(1), "y", lambda device: True)


@pytest.mark.slow
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
