"""Times and memory of a device: a GPU's by its events and its allocator, a CPU's by the clock and the system."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.rows import Numbers
from benchmarks.table import peak_extra_megabytes

MAX_ROUNDS, MIN_ROUNDS = 20, 3
SLOW = 2.0
"""Seconds from which on a run is measured once."""


@dataclass(frozen=True)
class Settings:
    """Where, and how much, is measured.

    Attributes:
        device: a GPU, or the CPU to try the program.
        folder: of the results, for further files.
        small: tiny sizes, to try the program.
    """

    device: torch.device
    folder: Path
    small: bool = False

    @property
    def seconds(self) -> float:
        """For the rounds of one measurement."""
        return 0.0 if self.small else 0.25


def measured(
    run: Callable[[], object], settings: Settings, warm_up: Callable[[], object] | None = None, host: bool = False
) -> Numbers:
    """Milliseconds, median and spread, and megabytes at most above what was there before.

    Args:
        run: the measured function, after a call that does not count, in which kernels are compiled.
        settings: where, and for how long.
        warm_up: a function that is called first in place of `run`, where that takes long; there are few rounds then.
        host: whether the work of the host counts after the device has finished, as for results in numpy.
    """
    device = settings.device
    (warm_up or run)()
    rounds = MIN_ROUNDS
    if warm_up is None:
        rounds = min(MAX_ROUNDS, max(rounds, int(settings.seconds / seconds_of(run, device))))
    before = _start_peak(device)
    times: list[float] = []
    while len(times) < rounds and (not times or times[0] < 1000 * SLOW):
        times.append(1000 * seconds_of(run, device) if host else milliseconds_of(run, device))
    peak = (torch.cuda.max_memory_allocated(device) - before) / 1e6 if before is not None else peak_extra_megabytes(run)
    return {**spread(times), "peak_mb": peak}


def kernel_milliseconds(run: Callable[[], object], device: torch.device) -> Numbers:
    """The sum of the kernels' own times on a GPU, without the gaps in which it waits for the host; nothing on a CPU."""
    if device.type != "cuda":
        return {}
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        synchronize(device)
    return {"kernel_ms": sum(device_times(profiler))}


def device_times(profiler: profile) -> tuple[float, float]:
    """Milliseconds of copies between host and device, and of all other work of the device."""
    copies = kernels = 0.0
    for event in profiler.events() or ():  # type: ignore[no-untyped-call]
        if event.device_type.name == "CUDA" and not getattr(event, "is_user_annotation", False):
            milliseconds = event.time_range.elapsed_us() / 1000
            if "memcpy" in event.name.lower():
                copies += milliseconds
            else:
                kernels += milliseconds
    return copies, kernels


def spread(times: list[float]) -> Numbers:
    """Median, lowest and highest of milliseconds, and their number."""
    return {"ms": statistics.median(times), "low": min(times), "high": max(times), "rounds": len(times)}


def milliseconds_of(run: Callable[[], object], device: torch.device) -> float:
    """By the events of the device: gaps in which it waits for the host count."""
    stopwatch = Stopwatch(device)
    stopwatch.lap("")
    run()
    stopwatch.lap("run")
    return stopwatch.milliseconds()["run"]


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """By the clock of the host, which waits for the device at the end."""
    synchronize(device)
    started = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - started


class Stopwatch:
    """Times between laps of work on a device, without waits for it in between.

    Args:
        device: the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._laps: list[tuple[str, Any]] = []
        synchronize(device)

    def lap(self, name: str) -> None:
        """End the lap of this name, and start the next."""
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._laps.append((name, event))
        else:
            self._laps.append((name, 1000 * time.perf_counter()))

    def milliseconds(self) -> dict[str, float]:
        """Name -> time of its lap; the first has none. Waits for the device."""
        synchronize(self.device)
        pairs = zip(self._laps, self._laps[1:], strict=False)
        return {name: _between(first, second) for (_, first), (name, second) in pairs}


def synchronize(device: torch.device) -> None:
    """Wait for a device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def tf32(device: torch.device) -> Iterator[None]:
    """Products of float32 with 10 bits of mantissa, which is off otherwise."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if device.type == "cuda" else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _between(first: Any, second: Any) -> float:
    return second - first if isinstance(first, float) else float(first.elapsed_time(second))


def _start_peak(device: torch.device) -> int | None:
    """The bytes that are allocated on a GPU now, where its peak is counted anew; None for a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)
