"""How much memory a call asks for, also inside operators that a dispatch mode does not see into."""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

from torch.profiler import ProfilerActivity, profile


def largest_allocation(function: Callable[[], Any]) -> int:
    """Bytes of the largest piece that any operation asked for."""
    return max(_pieces(function)[0])


def peak_and_kept(function: Callable[[], Any]) -> tuple[int, int]:
    """Bytes that are held at once at most, and those that are while its result lives."""
    held = list(accumulate(_pieces(function)[0]))
    return max(held), held[-1]


def _pieces(function: Callable[[], Any]) -> tuple[list[int], Any]:
    """Bytes of all pieces in order of time, negative when they are given back, and the result."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        result = function()
    assert seen.profiler is not None
    # Its own list of events says the same, and takes far longer to make.
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    return [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())], result
