"""How much memory a call asks for, also inside operators that a dispatch mode does not see into."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

from torch.profiler import ProfilerActivity, profile


class Memory(NamedTuple):
    """Bytes of the largest piece that any operation asked for, of all held at once, and of those left at the end."""

    largest: int
    peak: int
    kept: int


def memory_of(function: Callable[[], Any]) -> Memory:
    """The memory that a call asks for; what its result holds is left at the end."""
    pieces, _ = _pieces(function)
    held = list(accumulate(pieces))
    return Memory(max(pieces), max(held), held[-1])


def largest_allocation(function: Callable[[], Any]) -> int:
    """Bytes of the largest piece that any operation asked for."""
    return memory_of(function).largest


def _pieces(function: Callable[[], Any]) -> tuple[list[int], Any]:
    """Bytes of all pieces in order of time, negative when they are given back, and the result."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        result = function()
    assert seen.profiler is not None
    # Its own list of events says the same, and takes far longer to make.
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    return [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())], result
