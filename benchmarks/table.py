"""Shared by the benchmarks: competitors timed in turn within one run, and a table of what came out.

Machines are noisy, so only ratios within one run count: the competitors take turns, round after round, and a ratio is
the median of the rounds' own ratios.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd
import torch


def take_turns(
    competitors: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each competitor in each round, after one round that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in competitors}
    for number in range(rounds + 1):
        for name, run in competitors.items():
            started = clock()
            run()
            if number:
                seconds[name].append(clock() - started)
    return seconds


def print_table(title: str, seconds: Mapping[str, list[float]], items: int, unit: str, base: str) -> None:
    """A Markdown table: median and spread of the rates, and each competitor's time over that of `base`."""
    print(f"\n{title}\n")
    print(f"| | {unit}/s, median | lowest - highest | time / {base} |")
    print("|---|---|---|---|")
    for name, values in seconds.items():
        rates = sorted(items / value for value in values)
        ratio = statistics.median(mine / other for mine, other in zip(values, seconds[base], strict=True))
        print(f"| {name} | {statistics.median(rates):.0f} | {rates[0]:.0f} - {rates[-1]:.0f} | {ratio:.3f} |")


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of ready cells."""
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def mean_and_deviation(values: Sequence[float], form: str = ".1f") -> str:
    """A cell of a table: the mean and, of several values, the standard deviation; empty for none."""
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{form}}{spread}" if values else ""


def percent_with_interval(row: pd.Series, column: str = "value") -> str:
    """A cell of a table: a value or difference of `ResultsTable.overall` and its interval, in percent."""
    low, high = ("low", "high") if column == "value" else (f"{column}_low", f"{column}_high")
    return f"{100 * row[column]:.1f} [{100 * row[low]:.1f}, {100 * row[high]:.1f}]"


def print_machine() -> None:
    """What the numbers were measured on."""
    threads = torch.get_num_threads()
    print(f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {threads} threads, torch {torch.__version__}")


def peak_extra_megabytes(run: Callable[[], object]) -> float:
    """How much more memory than now this process held at most while it ran; Linux only."""
    Path("/proc/self/clear_refs").write_text("5")  # from here on the peak is counted anew
    before = _kilobytes("VmRSS")
    run()
    return (_kilobytes("VmHWM") - before) / 1000


def _kilobytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{field}:")))
