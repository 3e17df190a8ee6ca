"""Recall@k and the smooth surrogate that RecallAtKLoss optimizes: Fig. 2 to 4 of the paper.

- Above: recall@k and its surrogate for each k, while the only positive of a query moves past 40 negatives, which are
  marked below the curves.
- Below, left and middle: the two sigmoids, and the step functions that they replace.
- Below, right: the derivative of `sigmoid((k - rank) / rank_temperature)`, for each k and summed: how strongly a
  positive is pulled towards better ranks.

Run `python examples/figures/recall_surrogate.py --out recall_surrogate.png`.
Reference: Patel et al., "Three Things to Know about Deep Metric Learning", 2024.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from vicinal.losses import RecallAtKLoss
from vicinal.report.drawing import DPI, INK, PALE, WRONG, tidy, write_figure

SIMILARITIES = torch.linspace(-0.35, 0.75, 551, dtype=torch.float64)  # of the positive
NEGATIVES = 0.651 - 0.95 * torch.linspace(0, 1, 40, dtype=torch.float64).sqrt()  # the higher, the fewer
WIDTHS = torch.linspace(-6, 6, 121, dtype=torch.float64)  # range of a sigmoid, in temperatures


class RecallCurve(NamedTuple):
    """Recall@k and its surrogate at each value of a similarity.

    Attributes:
        recall: float [v], from 0 to 1.
        surrogate: float [v], from 0 to 1.
        grad_similarity: float [v], the gradient of the surrogate.
    """

    recall: Tensor
    surrogate: Tensor
    grad_similarity: Tensor


def recall_curve(loss: RecallAtKLoss, similarity: Tensor, positive: Tensor, moved: int, values: Tensor) -> RecallCurve:
    """Recall@k of one query and its surrogate, averaged over the loss's k, while one similarity changes.

    Recall is normalized like the surrogate:

        sum_P H(k - rank(x)) / min(k, P)        rank(x) = 1 + sum over all z except x of H(S_z - S_x)

    with H(0) = 1, so that of equal similarities each has the worse rank. The surrogate has sigmoids in place of both H.
    With temperatures towards 0 it becomes recall, except for a positive whose rank is k: H(0) is 1 and sigmoid(0) is
    one half. The gradient of a query's only positive is never negative; that of one among several may be, where it is
    about to pass another positive and so worsens that one's rank.

    Reference: Eq. (1), (2), (5) and (7).

    Args:
        loss: its k and temperatures are used.
        similarity: float [n], of the query to all others.
        positive: bool [n], at least one; the others are negative.
        moved: index of the similarity that changes.
        values: float [v], the values that it takes.
    """
    queries = similarity.detach().repeat(len(values), 1)
    queries[:, moved] = values
    queries.requires_grad_()
    surrogate = torch.stack([surrogate_of(queries, positive, k, loss) for k in loss.k]).mean(dim=0)
    (gradient,) = torch.autograd.grad(surrogate.sum(), queries)
    recall = torch.stack([recall_of(queries.detach(), positive, k) for k in loss.k]).mean(dim=0)
    return RecallCurve(recall, surrogate.detach(), gradient[:, moved])


def surrogate_of(queries: Tensor, positive: Tensor, k: int, loss: RecallAtKLoss) -> Tensor:
    """The surrogate of recall@k of queries [v, n] with the same positives, [v]."""
    positives = queries[:, positive]
    is_above = ((queries[:, None] - positives[:, :, None]) / loss.similarity_temperature).sigmoid()
    ranks = 0.5 + is_above.sum(dim=2)  # the positive itself adds one half to the sum and 1 to its rank
    return ((k - ranks) / loss.rank_temperature).sigmoid().sum(dim=1) / min(k, positives.shape[1])


def recall_of(queries: Tensor, positive: Tensor, k: int) -> Tensor:
    """Recall@k of queries [v, n] with the same positives, [v]."""
    positives = queries[:, positive]
    ranks = (queries[:, None] >= positives[:, :, None]).sum(dim=2)  # a positive counts itself
    return (ranks <= k).sum(dim=1).to(queries.dtype) / min(k, positives.shape[1])


def surrogate_curves(loss: RecallAtKLoss, path: str | Path) -> None:
    """Draw the figure with the k and the temperatures of a loss."""
    figure = Figure(figsize=(9.0, 5.8), dpi=DPI, layout="constrained")
    panels = figure.subplot_mosaic([["recall"] * 3, ["rank", "similarity", "gradient"]], height_ratios=(1.3, 1))
    colors = [to_hex(colormaps["plasma"](0.88 * number / max(len(loss.k) - 1, 1))) for number in range(len(loss.k))]
    draw_recall(panels["recall"], loss, colors)
    draw_step(panels["rank"], loss.rank_temperature, "k - rank", "counts as one of the first k")
    draw_step(panels["similarity"], loss.similarity_temperature, "similarity of another - own", "adds to the rank")
    draw_gradient(panels["gradient"], loss, colors)
    figure.legend(handles=legend(loss, colors), loc="outside right upper", frameon=False, fontsize=8, labelcolor=INK)
    write_figure(figure, Path(path))


def draw_recall(axes: Axes, loss: RecallAtKLoss, colors: list[str]) -> None:
    """Draw recall@k and its surrogate for each k."""
    similarity = torch.cat([SIMILARITIES[:1], NEGATIVES])
    positive = torch.arange(len(similarity)) == 0
    tidy(axes, "recall@k and its surrogate")
    for k, color in zip(loss.k, colors, strict=True):
        single = RecallAtKLoss(k, loss.rank_temperature, loss.similarity_temperature)
        curve = recall_curve(single, similarity, positive, 0, SIMILARITIES)
        axes.plot(SIMILARITIES, curve.recall, ":", color=color, linewidth=1.4, drawstyle="steps-mid")
        axes.plot(SIMILARITIES, curve.surrogate, color=color, linewidth=1.6)
    axes.plot(NEGATIVES, torch.full_like(NEGATIVES, -0.08), "|", color=WRONG, markersize=5, markeredgewidth=0.9)
    axes.set_xlabel("similarity of the positive", fontsize=9, color=INK)


def draw_step(axes: Axes, temperature: float, x_name: str, y_name: str) -> None:
    """Draw a sigmoid and the step function that it replaces."""
    tidy(axes, y_name)
    end = temperature * WIDTHS[-1].item()
    axes.plot([-end, 0, 0, end], [0, 0, 1, 1], ":", color=INK, linewidth=1.4)
    axes.plot(temperature * WIDTHS, WIDTHS.sigmoid(), color=INK, linewidth=1.6)
    axes.set_xlabel(x_name, fontsize=9, color=INK)


def draw_gradient(axes: Axes, loss: RecallAtKLoss, colors: list[str]) -> None:
    """Draw the derivative of the sigmoid of ranks, by the rank of a positive."""
    steep = torch.cat([k + loss.rank_temperature * WIDTHS for k in loss.k])
    rank = torch.cat([steep[steep > 1], steep.new_ones(1)]).sort().values
    is_first = torch.stack([((k - rank) / loss.rank_temperature).sigmoid() for k in loss.k])
    gradients = is_first * (1 - is_first) / loss.rank_temperature
    tidy(axes, "gradient magnitude")
    for gradient, color in zip(gradients, colors, strict=True):
        axes.plot(rank, gradient, color=color, linewidth=1.6)
    if len(loss.k) > 1:
        axes.plot(rank, gradients.sum(dim=0), "--", color=INK, linewidth=1.2)
    axes.set_xlabel("rank of a positive", fontsize=9, color=INK)


def legend(loss: RecallAtKLoss, colors: list[str]) -> list[Line2D]:
    """One line per k, and one per line style."""
    ks = [Line2D([], [], color=color, label=f"k = {k}") for k, color in zip(loss.k, colors, strict=True)]
    total = [Line2D([], [], color=INK, linestyle="--", label="sum over k")] if len(ks) > 1 else []
    return [
        *ks,
        *total,
        Line2D([], [], color=PALE, label="surrogate, sigmoid"),
        Line2D([], [], color=PALE, linestyle=":", label="recall, step"),
        Line2D([], [], color=WRONG, linestyle="", marker="|", markersize=6, label="negatives"),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="recall_surrogate.png", help="the picture (png, jpg, webp, pdf, svg)")
    surrogate_curves(RecallAtKLoss(), parser.parse_args().out)
