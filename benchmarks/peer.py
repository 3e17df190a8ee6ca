"""pytorch-metric-learning, the peer of several benchmarks, imported where it is first used: it may be missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LazyModule:
    """A module that is imported when the first of its names is used.

    Args:
        name: such as pytorch_metric_learning.losses.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


distances = LazyModule("pytorch_metric_learning.distances")
losses = LazyModule("pytorch_metric_learning.losses")
miners = LazyModule("pytorch_metric_learning.miners")
