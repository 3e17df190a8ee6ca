"""Recall@k against its smooth surrogate, as numbers and as a picture: what each makes of a similarity that changes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from vicinal.errors import InputError
from vicinal.losses import RecallAtKLoss
from vicinal.report.drawing import DPI, INK, PALE, WRONG, tidy, write_figure
from vicinal.similarity import Rows, at_least_float32

MOVED = torch.linspace(-0.35, 0.75, 551, dtype=torch.float64)
"""Similarities that the moved positive takes in the picture."""
NEGATIVES = 0.651 - 0.95 * torch.linspace(0, 1, 40, dtype=torch.float64).sqrt()  # the higher, the fewer
WIDTHS = torch.linspace(-6, 6, 121, dtype=torch.float64)  # temperatures from the step that a sigmoid stands for


class RecallCurve(NamedTuple):
    """Recall@k and its surrogate at each value of a similarity.

    Attributes:
        recall: float [v], in [0, 1].
        surrogate: float [v], in [0, 1].
        gradient: float [v], that of the surrogate by the similarity.
    """

    recall: Tensor
    surrogate: Tensor
    gradient: Tensor


def recall_curve(loss: RecallAtKLoss, similarity: Tensor, positive: Tensor, moved: int, values: Tensor) -> RecallCurve:
    """Recall@k of one query and what the loss has in its place, while one similarity takes one value after another.

    Both are means over the loss's k. Recall is divided like the surrogate, by the most that the first k can hold:

        sum_P H(k - rank(x)) / min(k, P)        rank(x) = 1 + sum over all z but x of H(S_z - S_x)

    with H(0) = 1: of equal similarities each has the worse rank. With temperatures towards 0 the surrogate becomes this
    recall, but for a positive whose rank is k itself: of it H(0) counts 1 and sigmoid(0) one half, at any temperature.

    The gradient of a query's only positive is never below 0. That of one among others may be, where it is about to pass
    another and so lowers it.

    Reference: Patel et al., "Three Things to Know about Deep Metric Learning", 2024, Eq. (1), (2), (5) and (7), the
    division below Eq. (7), and Fig. 2.

    Args:
        loss: says the k and the temperatures.
        similarity: float [n], finite, of the query to all others.
        positive: bool [n], at least one; the others are negative.
        moved: which similarity takes the values; a positive or a negative one.
        values: float [v], finite.

    Returns:
        Three times float [v], at least float32.

    Raises:
        InputError: shapes or types do not fit, a number is not finite, no positive, or a loss with a miner, which would
            rank other pairs than recall does.

    Example:
        >>> similarity, positive = torch.tensor([0.5, 0.6, 0.4, 0.2]), torch.tensor([True, False, False, False])
        >>> curve = recall_curve(RecallAtKLoss(k=2), similarity, positive, 0, values=torch.tensor([0.3, 0.5, 0.7]))
        >>> curve.recall, curve.surrogate
        (tensor([0., 1., 1.]), tensor([0.2689, 0.5000, 0.7310]))
    """
    _check_loss(loss)
    _check_query(similarity, positive, moved, values)
    dtype = torch.promote_types(similarity.dtype, values.dtype)
    with torch.inference_mode(False), torch.enable_grad():
        queries = at_least_float32(similarity.detach().to(dtype)).repeat(len(values), 1)
        queries[:, moved] = values.detach().to(queries)
        surrogate = _surrogate(loss, queries.requires_grad_(), positive)
        (gradient,) = torch.autograd.grad(surrogate.sum(), queries)
    recall = torch.stack([_recall(queries.detach(), positive, k) for k in loss.k]).mean(dim=0)
    return RecallCurve(recall, surrogate.detach(), gradient[:, moved])


def surrogate_curves(loss: RecallAtKLoss, out_path: str | Path) -> None:
    """Draw how the loss stands in for recall@k: the paper's Fig. 2 to 4, with the loss's k and temperatures.

    - Above: recall@k and its surrogate for each k, while the only positive moves past 40 negatives, which are marked
      below the curves.
    - Below, left and middle: the two sigmoids, and the steps in whose place they are.
    - Below, right: how strongly a positive is pulled towards better ranks from the rank that it has, the derivative of
      `sigmoid((k - rank) / rank_temperature)`, for each k and summed over them.

    Reference: Patel et al., "Three Things to Know about Deep Metric Learning", 2024, Fig. 2 to 4.

    Args:
        loss: says the k and the temperatures.
        out_path: the picture; its suffix says the format (png, jpg, webp, pdf, svg).

    Raises:
        InputError: a loss with a miner, or an unknown suffix.
        OSError: the picture cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     surrogate_curves(RecallAtKLoss(k=[1, 4]), f"{folder}/surrogate.png")
    """
    _check_loss(loss)
    figure = Figure(figsize=(9.0, 5.8), dpi=DPI, layout="constrained")
    panels = figure.subplot_mosaic([["recall"] * 3, ["rank", "similarity", "gradient"]], height_ratios=(1.3, 1))
    colors = _colors(len(loss.k))
    separate = [RecallAtKLoss(k, loss.rank_temperature, loss.similarity_temperature) for k in loss.k]
    _recall_panel(panels["recall"], separate, colors)
    _step_panel(panels["rank"], loss.rank_temperature, "k - rank", "counts as one of the first k")
    _step_panel(panels["similarity"], loss.similarity_temperature, "similarity of another - own", "adds to the rank")
    _gradient_panel(panels["gradient"], loss, colors)
    figure.legend(handles=_legend(loss, colors), loc="outside right upper", frameon=False, fontsize=8, labelcolor=INK)
    write_figure(figure, Path(out_path))


def _check_loss(loss: RecallAtKLoss) -> None:
    if not isinstance(loss, RecallAtKLoss):
        raise InputError(f"the loss must be a RecallAtKLoss, which stands in for recall@k, not {type(loss).__name__}")
    if loss.miner is not None:
        raise InputError("RecallAtKLoss: with a miner it ranks other pairs than recall@k does; give miner=None")


def _check_query(similarity: Tensor, positive: Tensor, moved: int, values: Tensor) -> None:
    for name, numbers, form in (("similarity", similarity, "[n]"), ("values", values, "[v]")):
        if numbers.ndim != 1 or not numbers.is_floating_point() or not len(numbers):
            raise InputError(f"{name} must be float {form}, not {numbers.dtype} {list(numbers.shape)}")
        if not numbers.isfinite().all():
            raise InputError(f"{name} must be finite, and has {numbers[~numbers.isfinite()][0].item()}")
    if positive.dtype != torch.bool or positive.shape != similarity.shape:
        raise InputError(f"positive must be bool {list(similarity.shape)}, not {positive.dtype} {list(positive.shape)}")
    if not positive.any():
        raise InputError("positive names no positive, and a query without one has no recall; name at least one")
    if not 0 <= moved < len(similarity):
        raise InputError(f"moved = {moved} must be one of the {len(similarity)} similarities, from 0 on")


def _surrogate(loss: RecallAtKLoss, queries: Tensor, positive: Tensor) -> Tensor:
    """Of queries [v, n] whose positives are in the same places, [v]."""
    keys = torch.arange(len(queries), device=queries.device)
    return 1 - loss.row_values(Rows(queries[:, positive], queries[:, ~positive], None, keys, dim=queries.shape[1]))


def _recall(queries: Tensor, positive: Tensor, k: int) -> Tensor:
    """Of queries [v, n] whose positives are in the same places, [v]."""
    positives = queries[:, positive].unbind(dim=1)
    ranks = torch.stack([(queries >= own[:, None]).sum(dim=1) for own in positives])  # itself is the 1 of the rank
    return (ranks <= k).sum(dim=0).to(queries.dtype) / min(k, len(positives))


def _colors(count: int) -> list[str]:
    return [to_hex(colormaps["plasma"](0.88 * number / max(count - 1, 1))) for number in range(count)]


def _recall_panel(axes: Axes, losses: list[RecallAtKLoss], colors: list[str]) -> None:
    similarity = torch.cat([MOVED[:1], NEGATIVES])
    positive = torch.arange(len(similarity)) == 0
    tidy(axes, "recall@k and its surrogate")
    for loss, color in zip(losses, colors, strict=True):
        curve = recall_curve(loss, similarity, positive, 0, MOVED)
        axes.plot(MOVED, curve.recall, ":", color=color, linewidth=1.4, drawstyle="steps-mid")
        axes.plot(MOVED, curve.surrogate, color=color, linewidth=1.6)
    axes.plot(NEGATIVES, torch.full_like(NEGATIVES, -0.08), "|", color=WRONG, markersize=5, markeredgewidth=0.9)
    axes.set_xlabel("similarity of the positive", fontsize=9, color=INK)


def _step_panel(axes: Axes, temperature: float, difference: str, counted: str) -> None:
    """A sigmoid and the step for which it stands."""
    tidy(axes, counted)
    end = temperature * WIDTHS[-1].item()
    axes.plot([-end, 0, 0, end], [0, 0, 1, 1], ":", color=INK, linewidth=1.4)
    axes.plot(temperature * WIDTHS, WIDTHS.sigmoid(), color=INK, linewidth=1.6)
    axes.set_xlabel(difference, fontsize=9, color=INK)


def _gradient_panel(axes: Axes, loss: RecallAtKLoss, colors: list[str]) -> None:
    """The derivative of the sigmoid that counts a positive, by its rank."""
    steep = torch.cat([k + loss.rank_temperature * WIDTHS for k in loss.k])
    rank = torch.cat([steep[steep > 1], steep.new_ones(1)]).sort().values
    among_first = torch.stack([((k - rank) / loss.rank_temperature).sigmoid() for k in loss.k])
    gradients = among_first * (1 - among_first) / loss.rank_temperature
    tidy(axes, "gradient magnitude")
    for gradient, color in zip(gradients, colors, strict=True):
        axes.plot(rank, gradient, color=color, linewidth=1.6)
    if len(loss.k) > 1:
        axes.plot(rank, gradients.sum(dim=0), "--", color=INK, linewidth=1.2)
    axes.set_xlabel("rank of a positive", fontsize=9, color=INK)


def _legend(loss: RecallAtKLoss, colors: list[str]) -> list[Line2D]:
    """A line for each k, and one for each style of line."""
    of_k = [Line2D([], [], color=color, label=f"k = {k}") for k, color in zip(loss.k, colors, strict=True)]
    together = [Line2D([], [], color=INK, linestyle="--", label="sum over k")] if len(of_k) > 1 else []
    return [
        *of_k,
        *together,
        Line2D([], [], color=PALE, label="surrogate, sigmoid"),
        Line2D([], [], color=PALE, linestyle=":", label="recall, step"),
        Line2D([], [], color=WRONG, linestyle="", marker="|", markersize=6, label="negatives"),
    ]
