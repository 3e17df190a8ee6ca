"""Measures what has no result yet, one after another, and writes each result at once."""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module, metadata

import torch

from benchmarks.gpu.rows import OK, OUT_OF_MEMORY, Key, Measurement, Numbers, Rows, sources
from benchmarks.gpu.timing import Settings, synchronize

Find = Callable[[str], Callable[[Settings], Iterator[Measurement]]]


LEFT_OUT = "left out"
"""What becomes of a measurement that is tried again by a later run, which costs no time."""


class BrokenDeviceError(RuntimeError):
    """No kernel runs on the device any more, in this process."""


def find_measurements(part: str) -> Callable[[Settings], Iterator[Measurement]]:
    """What a part measures."""
    return import_module(f"benchmarks.gpu.{part}").measurements


def context(device: torch.device) -> dict[str, str]:
    """What results belong to."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    versions = {"torch": torch.__version__, "CUDA": str(torch.version.cuda), "triton": _version("triton")}
    return {"device": name, **versions, **sources()}


def work(
    settings: Settings, parts: Sequence[str], rows: Rows, until: float, find: Find = find_measurements
) -> list[Key]:
    """Take the missing measurements, and return the remaining ones when the time is over.

    Raises:
        BrokenDeviceError: after a measurement that left the device unusable; its result is written.
    """
    statuses, left = rows.statuses(), []
    for part in parts:
        for measurement in find(part)(settings):
            if not statuses.get(measurement.key, LEFT_OUT).startswith(LEFT_OUT):
                continue
            if time.time() > until:
                left.append(measurement.key)
                continue
            statuses[measurement.key] = _measure(measurement, rows, statuses)
            _clean_up(settings.device)
    return left


def describe_left(left: Sequence[Key]) -> str:
    """What is left, by part."""
    numbers = Counter(key.part for key in left)
    return ", ".join(f"{number} of {part}" for part, number in numbers.items())


def _measure(measurement: Measurement, rows: Rows, statuses: dict[Key, str]) -> str:
    """Write the result of a measurement, and return what became of it."""
    rows.mark(measurement)
    started = time.perf_counter()
    status, numbers = _result(measurement, statuses)
    if statuses.get(measurement.key) != status:
        rows.append(measurement.key, status, numbers)
    rows.unmark()
    seconds = time.perf_counter() - started
    print(f"{' | '.join(measurement.key)}: {_summary(status, numbers)} ({seconds:.1f} s)", file=sys.stderr, flush=True)
    return status


def _result(measurement: Measurement, statuses: dict[Key, str]) -> tuple[str, Numbers]:
    smaller = measurement.after
    if smaller is not None and statuses.get(smaller, OK) != OK:
        return f"{LEFT_OUT}, as at {smaller.size}", {}
    try:
        return OK, measurement.run()
    except (torch.cuda.OutOfMemoryError, MemoryError):
        return OUT_OF_MEMORY, {}
    except ModuleNotFoundError as error:
        return f"{LEFT_OUT}: {error.name} is not installed", {}
    except Exception as error:
        if "can't allocate memory" in str(error):  # by the CPU
            return OUT_OF_MEMORY, {}
        return f"failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}", {}


def _summary(status: str, numbers: Numbers) -> str:
    if status != OK:
        return status
    return f"{numbers['ms']:.3g} ms" if "ms" in numbers else str(numbers.get("passed", OK))


def _clean_up(device: torch.device) -> None:
    """Give memory back, and see that the device still works."""
    if device.type == "cuda":
        gc.collect()
        try:
            synchronize(device)
            torch.cuda.empty_cache()
        except RuntimeError as error:
            raise BrokenDeviceError(str(error)) from error


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"
