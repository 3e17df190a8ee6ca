"""Speed and memory of the ranking losses, and of SiMix, beside the floor and beside pytorch-metric-learning.

    python -m benchmarks.ranking                                  # everything
    python -m benchmarks.ranking --sizes 512 1024 --threads 1     # less

What is measured, and how, is said in benchmarks/steps.py. The floor of SiMix is that of the given embeddings; with 4 a
class it ranks 2.5 times as many.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.peer import losses as pml_losses
from benchmarks.steps import Benchmark, LossFunction
from vicinal import losses
from vicinal.mixing import SiMix

OURS: dict[str, Callable[[], LossFunction]] = {
    "RS@k": losses.RecallAtKLoss,
    "Smooth-AP": losses.SmoothAPLoss,
    "SupAP": losses.SupAPLoss,
    "ROADMAP": losses.RoadmapLoss,
    "FastAP": losses.FastAPLoss,
    "SoftBinAP": losses.SoftBinAPLoss,
    "blackbox AP": losses.BlackboxAPLoss,
    "SiMix of RS@k": lambda: SiMix(losses.RecallAtKLoss()),
    "SiMix of multi-similarity": lambda: SiMix(losses.MultiSimilarityLoss()),
}
PEERS: dict[str, Callable[[], LossFunction]] = {
    "Smooth-AP": lambda: pml_losses.SmoothAPLoss(temperature=0.01),
    "FastAP": lambda: pml_losses.FastAPLoss(num_bins=10),
}
"""Smooth-AP there is right for batches in order with as many classes as samples a class only; the time is the same."""

if __name__ == "__main__":
    Benchmark("benchmarks.ranking", OURS, PEERS, compiles=False).run(__doc__)
