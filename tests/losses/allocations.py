"""How much memory a call asks for at once, also inside operators that a dispatch mode does not see into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile


def largest_allocation(function: Callable[[], Any]) -> int:
    """Bytes of the largest piece that any operation asked for."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        function()
    assert seen.profiler is not None
    # Its own list of events says the same, and takes far longer to make.
    events = seen.profiler.kineto_results.events()
    return max(event.nbytes() for event in events if event.name() == "[memory]")
