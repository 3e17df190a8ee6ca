"""Which similarities the weight of a negative pair depends on, for each loss: Table 1 of the multi-similarity paper.

Run `python examples/figures/similarity_types.py --out similarity_types.md`; for losses of your own, change LOSSES.
Reference: Wang et al., "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning", CVPR 2019, Section
4.1, Fig. 2 and Table 1.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from vicinal.losses import (
    BinLiftedLoss,
    BinomialDevianceLoss,
    ContrastiveLoss,
    HistogramLoss,
    LiftedStructureLoss,
    Loss,
    MultiSimilarityLoss,
    NCALoss,
    NPairsLoss,
    RowLoss,
    TripletLoss,
)
from vicinal.weighting import similarity_weights

LOSSES: dict[str, tuple[Loss, int]] = {  # row of the table -> a loss, number of positives of the anchor
    "Contrastive": (ContrastiveLoss(positive_margin=None, reduction="sum"), 4),
    "Binomial": (BinomialDevianceLoss(), 4),
    "Triplet": (TripletLoss(reduction="sum"), 4),
    "Histogram": (HistogramLoss(), 4),
    # The supplement reads it as the lifted structure loss with one positive. Sohn's own formula, the next, is
    # log(1 + sum_N exp(S_n - S_p)): its weights also decrease as the positive comes closer.
    "N-pairs": (LiftedStructureLoss(), 1),
    "N-pairs as Sohn has it": (NPairsLoss(), 1),
    "Lifted Structure": (LiftedStructureLoss(), 4),
    "BinLifted": (BinLiftedLoss(), 4),
    "NCA": (NCALoss(), 4),
    "MS": (MultiSimilarityLoss(), 4),
}


def similarity_types(loss: Loss, num_positives: int = 4, num_negatives: int = 12) -> str:
    """Determine numerically on which similarities the weight of a negative pair depends.

    S, self-similarity: its own, tested by moving all similarities of the anchor together; P, positive relative
    similarity: those of the anchor's positives, tested by moving them alone; N, negative relative similarity: those of
    its other negatives. Each takes five levels. All similarities together move by 0.4, which must be a whole number of
    bins of a histogram loss, or the loss would seem to depend on S.

    Args:
        loss: see :func:`vicinal.weighting.pair_weights`.
        num_positives: number of positives of the anchor.
        num_negatives: number of negatives of the anchor.

    Returns:
        Those of the letters "SPN" that the weight depends on.
    """
    positive = torch.arange(num_positives + num_negatives)[None] < num_positives

    def similarities(shift: float, positive_level: float, negative_level: float, own: float) -> Tensor:
        """Those of an anchor: of each kind near one level, and last the negative in question."""
        levels = (positive_level, num_positives), (negative_level, num_negatives - 1)
        parts = [level + torch.linspace(0.002, 0.01, count, dtype=torch.float64) for level, count in levels]
        return torch.cat([*parts, torch.tensor([own], dtype=torch.float64)]) + shift

    levels = torch.linspace(-0.58, 0.58, 5).tolist()
    grid = (0.0, 0.4), levels, levels, levels
    rows = torch.stack([similarities(*point) for point in product(*grid)])
    is_of_rows = isinstance(loss, RowLoss) and loss.reduction in ("sum", "anchors", "contributing")
    parts = rows.split(len(rows) if is_of_rows else 1)  # others divide by the pairs of all rows
    weights = torch.cat([similarity_weights(loss, part, positive.expand(len(part), -1))[:, -1] for part in parts])
    weights = weights.view([len(axis) for axis in grid])
    # Relative, because the weights of negatives that are far from the hardest are tiny.
    same = [torch.isclose(weights, weights.narrow(axis, 0, 1), rtol=1e-6, atol=1e-100).all() for axis in range(3)]
    return "".join(letter for letter, constant in zip("SPN", same, strict=True) if not constant)


def table() -> str:
    """The table in Markdown, a row per loss."""
    lines = ["| loss | S | P | N |", "|---|---|---|---|"]
    for name, (loss, num_positives) in LOSSES.items():
        letters = similarity_types(loss, num_positives)
        lines.append(f"| {name} | {' | '.join('✓' if letter in letters else ' ' for letter in 'SPN')} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="similarity_types.md", help="the table, in Markdown")
    Path(parser.parse_args().out).write_text(table(), encoding="utf-8")
