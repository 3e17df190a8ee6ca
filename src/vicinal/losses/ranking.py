"""Losses of the rank that each positive takes among all references: recall@k and average precision, made smooth."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from vicinal.arguments import check_finite, check_not_negative, check_positive
from vicinal.errors import InputError
from vicinal.losses.base import Reduction, RowLoss, WeightedSum
from vicinal.losses.pairs import ContrastiveLoss
from vicinal.losses.row_functions import count_positives, cut_sigmoid, zero_with_gradient
from vicinal.losses.soft_ranks import count_above, count_points_above, count_positives_above
from vicinal.mining import Miner
from vicinal.similarity import Rows


class RankingLoss(RowLoss):
    """What each query's ranking lacks of a perfect one; over the queries that have a positive.

    A new one is one method, :meth:`shortfall`.

    Args:
        miner: chooses pairs before the loss sees them; None keeps all.
        reduction: "contributing", the mean over the queries that have a positive; "anchors", the mean over all; "sum".
        tile_rows: anchors handled at a time; see :class:`~vicinal.losses.base.RowLoss`.
    """

    def __init__(
        self, miner: Miner | None = None, reduction: Reduction = "contributing", tile_rows: int | None = None
    ) -> None:
        super().__init__(miner, reduction, tile_rows)

    @abstractmethod
    def shortfall(self, rows: Rows) -> Tensor:
        """How far an anchor's ranking is from perfect, [rows], 0 at best; anything finite for one without positives."""

    def row_values(self, rows: Rows) -> Tensor:
        return torch.where(rows.has_positives, self.shortfall(rows), 0.0)

    def contributes(self, rows: Rows) -> Tensor:
        return rows.has_positives


class RecallAtKLoss(RankingLoss):
    """Recall@k surrogate loss (RS@k): for each query, 1 less the mean over the k's of

        min(k, sum_P sigmoid((k - rank(x)) / rank_temperature)) / min(k, P)

        rank(x) = 1 + sum over all z but x and the query of sigmoid((S_qz - S_qx) / similarity_temperature)

    with P the number of positives x of the query; a query without one does not count. With both temperatures towards 0
    it is 1 less the recall at k, as far as that can be reached with P positives, in which a positive at rank k itself
    counts half, as the sigmoid of 0 is.

    Reference: Patel et al., "Three Things to Know about Deep Metric Learning", 2024, Eq. (5) to (7) and the division
    and clipping below them; first in Patel et al., "Recall@k Surrogate Loss with Large Batches and Similarity Mixup",
    CVPR 2022. The published code counts the query itself among the ranked; here, as in the paper, it is not.

    Args:
        k: how many of the first ranks count, one number or several, which are averaged. The paper's; with
            :class:`~vicinal.mixing.SiMix` it has 1, 2 and all multiples of 4 up to 32.
        rank_temperature: of the sigmoid that says whether a rank is among the first k.
        similarity_temperature: of the sigmoids that a rank is a sum of.
        miner: chooses pairs before the loss sees them; None keeps all.
        reduction: "contributing", the paper's mean over the queries that have a positive; "anchors", the mean over all;
            "sum".
        tile_rows: anchors handled at a time; see :class:`~vicinal.losses.base.RowLoss`.

    Raises:
        InputError: no k or one below 1, or a temperature that is not positive.

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
        self.k = tuple(k) if isinstance(k, Sequence) else (k,)
        if not self.k or not all(type(number) is int and number >= 1 for number in self.k):
            raise InputError(f"RecallAtKLoss: k = {k} must be a whole number, at least 1, or several")
        check_positive(self, rank_temperature=rank_temperature, similarity_temperature=similarity_temperature)
        self.rank_temperature = rank_temperature
        self.similarity_temperature = similarity_temperature

    def shortfall(self, rows: Rows) -> Tensor:
        above = count_above(rows.positives, rows.negatives, self.similarity_temperature)
        ranks = 1 + above + count_positives_above(rows, self.similarity_temperature)
        return 1 - torch.stack([self._recall(ranks, rows.positives, k) for k in self.k]).mean(dim=0)

    def _recall(self, ranks: Tensor, positives: Tensor, k: int) -> Tensor:
        among_first = cut_sigmoid(k - ranks, self.rank_temperature)
        found = torch.where(positives < math.inf, among_first, 0.0).sum(dim=1)
        return found.clamp_max(k) / count_positives(positives).clamp(1, k)


class SmoothAPLoss(RankingLoss):
    """Smooth-AP loss: for each query, 1 less the average precision with smooth ranks,

        1/P sum_P (1 + sum_{y in P, y != x} sigmoid(D_xy / temperature)) / (1 + sum_{z in P and N, z != x} the same)

    with D_xz = S_qz - S_qx and P the positives x of the query; a query without one does not count. The query is not
    among the ranked.

    Reference: Brown et al., "Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval", ECCV 2020, Eq. (4) to
    (6). The published code counts the query as a positive of its own.

    Args:
        temperature: of the sigmoids that a rank is a sum of.
        miner: chooses pairs before the loss sees them; None keeps all.
        reduction: "contributing", the mean over the queries that have a positive; "anchors", the mean over all; "sum".
        tile_rows: anchors handled at a time; see :class:`~vicinal.losses.base.RowLoss`.

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

    def shortfall(self, rows: Rows) -> Tensor:
        of_positives = 1 + count_positives_above(rows, self.temperature)
        negatives_above = count_above(rows.positives, rows.negatives, self.temperature)
        return _mean_imprecision(of_positives, negatives_above, rows)


class SupAPLoss(RankingLoss):
    """SupAP loss, at least 1 less the average precision: as Smooth-AP, but a positive's rank among positives is exact
    and without gradient, and each negative adds to its rank, with t = S_qz - S_qx,

        sigmoid(t / temperature)                                 where t < 0
        sigmoid(t / temperature) + 0.5                           where 0 <= t <= linear_from
        slope (t - linear_from) + what it is at linear_from      beyond

    which is never below the step it stands for and never flat where a negative is far above.

    Reference: Ramzi et al., "Robust and Decomposable Average Precision for Image Retrieval" (ROADMAP), NeurIPS 2021,
    Section 3.1. The published code has 1.44 for the value at `linear_from`, at which its function jumps down.

    Args:
        temperature: of the sigmoid.
        linear_from: the paper's delta, how far a negative lies above a positive before the function is a line.
        slope: the paper's rho, that of the line.
        miner: chooses pairs before the loss sees them; None keeps all.
        reduction: "contributing", the mean over the queries that have a positive; "anchors", the mean over all; "sum".
        tile_rows: anchors handled at a time; see :class:`~vicinal.losses.base.RowLoss`.

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
        check_not_negative(self, linear_from=linear_from, slope=slope)
        self.temperature = temperature
        self.linear_from = linear_from
        self.slope = slope

    def shortfall(self, rows: Rows) -> Tensor:
        of_positives = 1 + count_positives_above(rows, temperature=0)
        negatives_above = count_above(rows.positives, rows.negatives, self.temperature, self.linear_from, self.slope)
        return _mean_imprecision(of_positives, negatives_above, rows)


class RoadmapLoss(WeightedSum):
    """ROADMAP loss: SupAP, which orders each query's ranking, and a calibration, which makes rankings comparable,

        (1 - w) SupAP  +  w (mean_P [positive_margin - S]+  +  mean_N [S - negative_margin]+)

    Reference: Ramzi et al., "Robust and Decomposable Average Precision for Image Retrieval" (ROADMAP), NeurIPS 2021,
    Section 3.2. The two means are those of :class:`~vicinal.losses.pairs.ContrastiveLoss`, over the pairs that violate
    their margin, as in the published code.

    Args:
        calibration_weight: w, the paper's lambda, in [0, 1].
        positive_margin: similarity that positives should reach.
        negative_margin: similarity that negatives should stay below.
        temperature: of SupAP, as are the next two.
        linear_from: see :class:`SupAPLoss`.
        slope: see :class:`SupAPLoss`.
        tile_rows: anchors handled at a time; see :class:`~vicinal.losses.base.RowLoss`.

    Raises:
        InputError: the weight is not in [0, 1], or as for the two losses.

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
        if not 0 <= calibration_weight <= 1:
            raise InputError(f"RoadmapLoss: calibration_weight = {calibration_weight} must be in [0, 1]")
        ranking = SupAPLoss(temperature, linear_from, slope, tile_rows=tile_rows)
        calibration = ContrastiveLoss(positive_margin, negative_margin, tile_rows=tile_rows)
        super().__init__([ranking, calibration], [1 - calibration_weight, calibration_weight])


class BlackboxAPLoss(RankingLoss):
    """Average precision with a combinatorial gradient: 1 less the average precision of each query's exact ranking,
    after positives were lowered and negatives raised by half a margin. The gradient compares that ranking with the one
    after the similarities had moved by the gradient with respect to the ranks:

        dL/dS = (rank(S + interpolation dL/drank) - rank(S)) / interpolation

    A larger interpolation looks further and is less faithful.

    Reference: Rolinek et al., "Optimizing Rank-Based Metrics with Blackbox Differentiation", CVPR 2020, Algorithm 1,
    Eq. (9) for the average precision and Section 3.4 for the margin. Ties count as the worse rank.

    Args:
        interpolation: the paper's lambda, positive.
        margin: the paper's alpha, by how much positives should be more similar than negatives.
        miner: chooses pairs before the loss sees them; None keeps all.
        reduction: "contributing", the mean over the queries that have a positive; "anchors", the mean over all; "sum".
        tile_rows: anchors handled at a time; see :class:`~vicinal.losses.base.RowLoss`.

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

    def shortfall(self, rows: Rows) -> Tensor:
        rows = rows._replace(positives=rows.positives - self.margin / 2, negatives=rows.negatives + self.margin / 2)
        with torch.no_grad():
            of_positives, negatives_above = _exact_counts(rows)
            rank = of_positives + negatives_above
            by_rank = of_positives / (count_positives(rows.positives).clamp_min(1)[:, None] * rank**2)
            moved = rows._replace(positives=rows.positives + self.interpolation * by_rank)
            by_positives = sum(_exact_counts(moved)) - rank
            overtaken = count_points_above(moved.positives, rows.negatives)
            overtaken -= count_points_above(rows.positives, rows.negatives)
        value = _mean_imprecision(of_positives, negatives_above, rows)
        value = value + zero_with_gradient(rows.positives, by_positives / self.interpolation)
        return value + zero_with_gradient(rows.negatives, overtaken / self.interpolation)


def _exact_counts(rows: Rows) -> tuple[Tensor, Tensor]:
    """Each positive's rank among the positives, and the number of negatives above it; a tie is above."""
    of_positives = 1 + count_positives_above(rows, temperature=0)
    return of_positives, count_above(rows.positives, rows.negatives, temperature=0)


def _mean_imprecision(rank_of_positives: Tensor, negatives_above: Tensor, rows: Rows) -> Tensor:
    """1 less the mean over an anchor's positives of `rank among positives / rank`, [rows], without that difference,
    which would lose all digits where the ranking is nearly perfect.
    """
    imprecision = negatives_above / (rank_of_positives + negatives_above)
    present = torch.where(rows.positives < math.inf, imprecision, 0.0)
    return present.sum(dim=1) / count_positives(rows.positives).clamp_min(1)
