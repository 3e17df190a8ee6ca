"""Ranking losses: smooth approximations of recall@k and average precision."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from vicinal.losses.base import WeightedSum
from vicinal.losses.pairs import ContrastiveLoss
from vicinal.losses.row_functions import count_positives, flushed_sigmoid, zero_with_gradient
from vicinal.losses.row_loss import Reduction, RowLoss
from vicinal.losses.soft_ranks import count_above, count_positives_above, count_thresholds_above
from vicinal.mining import Miner
from vicinal.similarity.rows import Rows
from vicinal.utils.arguments import (
    MAX_INTEGER,
    check_finite,
    check_fraction,
    check_nonnegative,
    check_positive,
    is_integer,
    shown,
)
from vicinal.utils.errors import InputError


class RankingLoss(RowLoss):
    """The error of each query's ranking, averaged over the queries that have a positive.

    A new loss is one method, :meth:`ranking_error`.

    Args:
        miner: selects the pairs; None keeps all.
        reduction: "contributing", the mean over the queries that have a positive; "anchors", the mean over all; "sum".
        tile_rows: number of anchors in a tile; see :class:`~vicinal.losses.RowLoss`.
    """

    def __init__(
        self, miner: Miner | None = None, reduction: Reduction = "contributing", tile_rows: int | None = None
    ) -> None:
        super().__init__(miner, reduction, tile_rows)

    @abstractmethod
    def ranking_error(self, rows: Rows) -> Tensor:
        """Compute an error per anchor, [rows], 0 for a perfect ranking; any finite value for one without positives."""

    def row_values(self, rows: Rows) -> Tensor:
        return torch.where(rows.has_positives, self.ranking_error(rows), 0.0)

    def contributes(self, rows: Rows) -> Tensor:
        return rows.has_positives


class RecallAtKLoss(RankingLoss):
    """Recall@k surrogate loss (RS@k): for each query, 1 minus the mean over all k of

        min(k, sum_P sigmoid((k - rank(x)) / rank_temperature)) / min(k, P)

        rank(x) = 1 + sum over all z but x and the query of sigmoid((S_qz - S_qx) / similarity_temperature)

    where P is the number of positives x of the query; queries without positives are ignored. With both temperatures
    towards 0 it is 1 minus recall at k, divided by the largest possible with P positives, where a positive at rank k
    itself counts one half, the sigmoid of 0.

    Reference: Patel et al., "Three Things to Know about Deep Metric Learning", 2024, Eq. (5) to (7) and the division
    and clipping below them; first in Patel et al., "Recall@k Surrogate Loss with Large Batches and Similarity Mixup",
    CVPR 2022. The published code ranks the query itself too; here, as in the paper, it is not ranked.

    Args:
        k: number of first ranks, or several numbers, over which recall is averaged. The paper's by default; with
            :class:`~vicinal.mixing.SiMix` the paper uses 1, 2 and all multiples of 4 up to 32.
        rank_temperature: of the sigmoid that replaces `rank <= k`.
        similarity_temperature: of the sigmoids whose sum is a rank.
        miner: selects the pairs; None keeps all.
        reduction: "contributing", the paper's mean over the queries that have a positive; "anchors", the mean over all;
            "sum".
        tile_rows: number of anchors in a tile; see :class:`~vicinal.losses.RowLoss`.

    Raises:
        InputError: `k` is empty or has a value below 1, or a temperature is not positive.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> RecallAtKLoss(k=1)(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(0.5884)
    """

    def __init__(
        self,
        k: int | Sequence[int] = (1, 2, 4, 8, 16),
        rank_temperature: float = 1.0,
        similarity_temperature: float = 0.01,
        miner: Miner | None = None,
        reduction: Reduction = "contributing",
        tile_rows: int | None = None,
    ) -> None:
        super().__init__(miner, reduction, tile_rows)
        ks = tuple(k) if isinstance(k, Sequence) else (k,)
        if not ks or not all(is_integer(number) and 1 <= number <= MAX_INTEGER for number in ks):
            raise InputError(f"RecallAtKLoss: k = {shown(k)} must be a whole number, at least 1, or several")
        self.k = tuple(int(number) for number in ks)
        check_positive(self, rank_temperature=rank_temperature, similarity_temperature=similarity_temperature)
        self.rank_temperature = rank_temperature
        self.similarity_temperature = similarity_temperature

    def ranking_error(self, rows: Rows) -> Tensor:
        above = count_above(rows.positives, rows.negatives, self.similarity_temperature)
        ranks = 1 + above + count_positives_above(rows, self.similarity_temperature)
        return 1 - torch.stack([self._recall(ranks, rows.positives, k) for k in self.k]).mean(dim=0)

    def _recall(self, ranks: Tensor, positives: Tensor, k: int) -> Tensor:
        in_first_k = flushed_sigmoid(k - ranks, self.rank_temperature)
        num_retrieved = torch.where(positives < math.inf, in_first_k, 0.0).sum(dim=1)
        return num_retrieved.clamp_max(k) / count_positives(positives).clamp(1, k)


class SmoothAPLoss(RankingLoss):
    """Smooth-AP loss: for each query, 1 minus the average precision with smooth ranks,

        1/P sum_P (1 + sum_{y in P, y != x} sigmoid(D_xy / temperature)) / (1 + sum_{z in P and N, z != x} the same)

    where D_xz = S_qz - S_qx and P are the positives x of the query; queries without positives are ignored. The query
    itself is not ranked.

    Reference: Brown et al., "Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval", ECCV 2020, Eq. (4) to
    (6). The published code counts the query as one of its positives.

    Args:
        temperature: of the sigmoids whose sum is a rank.
        miner: selects the pairs; None keeps all.
        reduction: "contributing", the mean over the queries that have a positive; "anchors", the mean over all; "sum".
        tile_rows: number of anchors in a tile; see :class:`~vicinal.losses.RowLoss`.

    Raises:
        InputError: the temperature is not positive.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> SmoothAPLoss()(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(0.2083)
    """

    def __init__(
        self,
        temperature: float = 0.01,
        miner: Miner | None = None,
        reduction: Reduction = "contributing",
        tile_rows: int | None = None,
    ) -> None:
        super().__init__(miner, reduction, tile_rows)
        check_positive(self, temperature=temperature)
        self.temperature = temperature

    def ranking_error(self, rows: Rows) -> Tensor:
        positive_ranks = 1 + count_positives_above(rows, self.temperature)
        negatives_above = count_above(rows.positives, rows.negatives, self.temperature)
        return _average_precision_error(positive_ranks, negatives_above, rows)


class SupAPLoss(RankingLoss):
    """SupAP loss, an upper bound of 1 minus average precision: Smooth-AP, except that the rank of a positive among the
    positives is exact and without gradient, and that each negative adds to its rank, with t = S_qz - S_qx,

        sigmoid(t / temperature)                                 where t < 0
        sigmoid(t / temperature) + 0.5                           where 0 <= t <= linear_from
        slope (t - linear_from) + the value at linear_from       where t > linear_from

    which is never below the step function that it replaces, and has a gradient also where a negative is far above.

    Reference: Ramzi et al., "Robust and Decomposable Average Precision for Image Retrieval" (ROADMAP), NeurIPS 2021,
    Section 3.1. The published code has ``slope t + 1.44`` above `linear_from`, where its function therefore jumps.

    Args:
        temperature: of the sigmoid.
        linear_from: the paper's delta, the difference of similarities from which the function is linear.
        slope: the paper's rho, the slope of the linear part.
        miner: selects the pairs; None keeps all.
        reduction: "contributing", the mean over the queries that have a positive; "anchors", the mean over all; "sum".
        tile_rows: number of anchors in a tile; see :class:`~vicinal.losses.RowLoss`.

    Raises:
        InputError: the temperature is not positive, or linear_from or slope is negative.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> SupAPLoss()(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(0.3607)
    """

    def __init__(
        self,
        temperature: float = 0.01,
        linear_from: float = 0.05,
        slope: float = 100.0,
        miner: Miner | None = None,
        reduction: Reduction = "contributing",
        tile_rows: int | None = None,
    ) -> None:
        super().__init__(miner, reduction, tile_rows)
        check_positive(self, temperature=temperature)
        check_nonnegative(self, linear_from=linear_from, slope=slope)
        self.temperature = temperature
        self.linear_from = linear_from
        self.slope = slope

    def ranking_error(self, rows: Rows) -> Tensor:
        positive_ranks = 1 + count_positives_above(rows, temperature=0)
        negatives_above = count_above(rows.positives, rows.negatives, self.temperature, self.linear_from, self.slope)
        return _average_precision_error(positive_ranks, negatives_above, rows)


class RoadmapLoss(WeightedSum):
    """ROADMAP loss: SupAP, which orders the ranking of each query, and a calibration of similarities across queries,

        (1 - w) SupAP  +  w (mean_P [positive_margin - S]+  +  mean_N [S - negative_margin]+)

    Reference: Ramzi et al., "Robust and Decomposable Average Precision for Image Retrieval" (ROADMAP), NeurIPS 2021,
    Section 3.2. The two means are those of :class:`~vicinal.losses.pairs.ContrastiveLoss`, over the pairs that violate
    their margin, as in the published code.

    Args:
        calibration_weight: w, the paper's lambda, in [0, 1].
        positive_margin: similarity that positives should reach.
        negative_margin: similarity that negatives should stay below.
        temperature: see :class:`SupAPLoss`.
        linear_from: see :class:`SupAPLoss`.
        slope: see :class:`SupAPLoss`.
        tile_rows: number of anchors in a tile; see :class:`~vicinal.losses.RowLoss`.

    Raises:
        InputError: the weight is not in [0, 1], or another argument is out of the range of the two losses.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> RoadmapLoss()(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(0.3804)
    """

    def __init__(
        self,
        calibration_weight: float = 0.5,
        positive_margin: float = 0.9,
        negative_margin: float = 0.6,
        temperature: float = 0.01,
        linear_from: float = 0.05,
        slope: float = 100.0,
        tile_rows: int | None = None,
    ) -> None:
        ranking = SupAPLoss(temperature, linear_from, slope, tile_rows=tile_rows)
        calibration = ContrastiveLoss(positive_margin, negative_margin, tile_rows=tile_rows)
        check_fraction(self, calibration_weight=calibration_weight)
        super().__init__([ranking, calibration], [1 - calibration_weight, calibration_weight])


class BlackboxAPLoss(RankingLoss):
    """Average precision with a combinatorial gradient: 1 minus the average precision of each query's exact ranking,
    after half a margin was subtracted from positives and added to negatives. The gradient compares this ranking with
    that of similarities which are moved by the gradient with respect to the ranks:

        dL/dS = (rank(S + interpolation dL/drank) - rank(S)) / interpolation

    A larger interpolation gives a gradient to more similarities and is less faithful.

    Reference: Rolinek et al., "Optimizing Rank-Based Metrics with Blackbox Differentiation", CVPR 2020, Algorithm 1,
    Eq. (9) for the average precision and Section 3.4 for the margin. A tie gets the worse rank.

    Args:
        interpolation: the paper's lambda, positive.
        margin: the paper's alpha, by how much positives should be more similar than negatives.
        miner: selects the pairs; None keeps all.
        reduction: "contributing", the mean over the queries that have a positive; "anchors", the mean over all; "sum".
        tile_rows: number of anchors in a tile; see :class:`~vicinal.losses.RowLoss`.

    Raises:
        InputError: interpolation is not positive, or margin is not finite.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> BlackboxAPLoss()(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(0.2500)
    """

    def __init__(
        self,
        interpolation: float = 4.0,
        margin: float = 0.02,
        miner: Miner | None = None,
        reduction: Reduction = "contributing",
        tile_rows: int | None = None,
    ) -> None:
        super().__init__(miner, reduction, tile_rows)
        check_positive(self, interpolation=interpolation)
        check_finite(self, margin=margin)
        self.interpolation = interpolation
        self.margin = margin

    def ranking_error(self, rows: Rows) -> Tensor:
        rows = rows._replace(positives=rows.positives - self.margin / 2, negatives=rows.negatives + self.margin / 2)
        with torch.no_grad():
            positive_ranks, negatives_above = _exact_counts(rows)
            ranks = positive_ranks + negatives_above
            grad_ranks = positive_ranks / (count_positives(rows.positives).clamp_min(1)[:, None] * ranks**2)
            moved = rows._replace(positives=rows.positives + self.interpolation * grad_ranks)
            grad_positives = sum(_exact_counts(moved)) - ranks
            grad_negatives = count_thresholds_above(moved.positives, rows.negatives)
            grad_negatives -= count_thresholds_above(rows.positives, rows.negatives)
        value = _average_precision_error(positive_ranks, negatives_above, rows)
        value = value + zero_with_gradient(rows.positives, grad_positives / self.interpolation)
        return value + zero_with_gradient(rows.negatives, grad_negatives / self.interpolation)


def _exact_counts(rows: Rows) -> tuple[Tensor, Tensor]:
    """The rank of each positive among the positives, and the number of negatives above it; ties count as above."""
    positive_ranks = 1 + count_positives_above(rows, temperature=0)
    return positive_ranks, count_above(rows.positives, rows.negatives, temperature=0)


def _average_precision_error(positive_ranks: Tensor, negatives_above: Tensor, rows: Rows) -> Tensor:
    """1 minus the mean over the positives of `rank among positives / rank`, [rows].

    It is computed without a difference from 1, which would lose all digits where the ranking is nearly perfect.
    """
    error = negatives_above / (positive_ranks + negatives_above)
    error = torch.where(rows.positives < math.inf, error, 0.0)
    return error.sum(dim=1) / count_positives(rows.positives).clamp_min(1)
