r"""Metrix: mixup of positives and negatives, and of their labels, without computing the mixed embeddings.

A loss of your own that goes around others. `vicinal train` takes it from this file:

    PYTHONPATH=examples vicinal train recipes/digits.yaml --out run --allow_import metrix \
        --loss metrix.Metrix --loss.loss.class_path ContrastiveLoss --loss.weight 0.4
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from vicinal.losses.base import Loss, zero_loss
from vicinal.losses.proxy_anchor import ProxyAnchorLoss
from vicinal.losses.row_loss import PairLoss, RowLoss
from vicinal.similarity.pair_source import PairSource
from vicinal.similarity.rows import Rows
from vicinal.similarity.tiles import sum_over_rows, values_of_rows
from vicinal.utils.arguments import check_nonnegative, check_positive, check_seed, shown
from vicinal.utils.devices import default_tile_rows, ieee_products, tile_elements
from vicinal.utils.errors import InputError
from vicinal.utils.seeds import derive_seed, uniform

MixedPairs = Literal["positive-negative", "anchor-negative", "both"]
MIXED_PAIRS = ("positive-negative", "anchor-negative", "both")

NUM_QUANTILES = 4096
"""Number of values that a mixing coefficient can have, equally likely quantiles of its distribution."""
STREAMS = 0x4D65, 0x4D66
"""Of random numbers, one for partners and one for negatives; a miner with the same seed has others."""


class Metrix(PairLoss):
    """Metric mix: a loss of a batch plus a weight times the same loss of mixed examples, whose labels are mixed too.

    For an anchor a, a mixed example `v = lambda p + (1 - lambda) n` of a positive p and a negative n is a positive to
    the degree lambda and a negative to the degree 1 - lambda. Where the loss of an anchor is

        tau( sigma_P( sum_P rho_P(S_ap) ) + sigma_N( sum_N rho_N(S_an) ) )

    that of its mixed examples V is

        tau( sigma_P( sum_V lambda rho_P(S_av) ) + sigma_N( sum_V (1 - lambda) rho_N(S_av) ) )

    This is the paper's Metrix/embed. Metrix/input and Metrix/feature, for which the network embeds mixed images or
    mixed feature maps, are not implemented. What the paper leaves open is done as follows:

    - Every positive of an anchor is mixed with every negative, each pair with its own lambda from Beta(alpha, alpha).
      The coefficients of an anchor are pairwise independent.
    - Mixed examples are not normalized, `S_av = lambda S_ap + (1 - lambda) S_an`; their embeddings are never computed.
    - Positives and negatives are those that the miner of the loss selects.
    - Where the loss divides by a number of pairs, or of violating pairs, a mixed example counts as lambda positive and
      1 - lambda negative pairs.

    Time grows with the number of mixed examples, as that of a triplet loss does, and memory with the references times
    the largest number of positives of an anchor.

    Reference: Venkataramanan et al., "It Takes Two to Tango: Mixup for Deep Metric Learning", ICLR 2022, Section 3 and
    Table 1. On CUB with the contrastive loss its authors report Recall@1 of 64.7 without mixing, 66.4 for Metrix/embed
    and 67.4 for Metrix/feature (https://github.com/billpsomas/Metrix_ICLR22).

    Args:
        loss: one of the additive losses ContrastiveLoss, MultiSimilarityLoss, BinomialDevianceLoss, BinLiftedLoss,
            LiftedStructureLoss, LiftedStructureStarLoss, NCALoss and CircleLoss; ProxyAnchorLoss, whose anchors are the
            centers; or a `RowLoss` of your own with `supports_weights`.
        weight: of the loss of mixed examples, the paper's w.
        alpha: both parameters of the beta distribution.
        pairs: "positive-negative"; "anchor-negative", where the anchor itself takes the place of the positive and is
            similar to itself by 1; "both", all of these mixed examples together.
        seed: of the random numbers, which differ between calls, and depend on the order of the batch.
        tile_rows: number of anchors in a tile; see :class:`~vicinal.losses.RowLoss`.

    Raises:
        InputError: the loss is none of these, or an argument is out of range.

    Example:
        >>> from vicinal.losses import ContrastiveLoss
        >>> loss = Metrix(ContrastiveLoss())
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> loss.parts(PairSource.from_batch(embeddings, torch.tensor([7, 7, 9, 9])))
        {'ContrastiveLoss': tensor(0.4000), 'ContrastiveLoss (mixed)': tensor(0.2202)}
    """

    loss: Loss
    quantiles: Tensor

    def __init__(
        self,
        loss: Loss,
        weight: float = 0.4,
        alpha: float = 2.0,
        pairs: MixedPairs = "positive-negative",
        seed: int = 0,
        tile_rows: int | None = None,
    ) -> None:
        super().__init__(tile_rows=tile_rows)
        if not isinstance(loss, ProxyAnchorLoss) and not (isinstance(loss, RowLoss) and loss.supports_weights):
            raise InputError(
                "Metrix: loss must be an additive loss such as ContrastiveLoss(), MultiSimilarityLoss() or "
                f"ProxyAnchorLoss(), not {type(loss).__name__}"
            )
        check_nonnegative(self, weight=weight)
        check_positive(self, alpha=alpha)
        check_seed(self, seed)
        if pairs not in MIXED_PAIRS:
            raise InputError(f"Metrix: pairs = {shown(pairs)} must be one of {', '.join(MIXED_PAIRS)}")
        self.loss, self.weight, self.alpha, self.pairs, self.seed = loss, weight, alpha, pairs, seed
        self.miner = loss.miner if isinstance(loss, RowLoss) else None
        self.uses_only_similarities = loss.uses_only_similarities  # type: ignore[misc]
        # Part of the state, so that a resumed training draws the same numbers as an uninterrupted one.
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("quantiles", _beta_quantiles(alpha).clone(), persistent=False)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # the number of mixed examples depends on the labels
    def parts(self, source: PairSource) -> dict[str, Tensor]:
        self._check_device(source.anchors.device)
        self.calls += 1
        source = replace(source, num_calls=self.calls.clone())
        with torch.autocast(source.anchors.device.type, enabled=False), ieee_products(source.anchors.device):
            clean, mixed = self._clean_and_mixed(source)
            zero = zero_loss(source).detach()
        name = type(self.loss).__name__
        return {name: clean + zero, f"{name} (mixed)": self.weight * mixed + zero}

    def _clean_and_mixed(self, source: PairSource) -> tuple[Tensor, Tensor]:
        loss = self.loss
        if source.is_empty:
            return loss.value(source), zero_loss(source)
        if isinstance(loss, ProxyAnchorLoss):
            centers = loss.center_rows(source)
            sums = sum_over_rows(centers, lambda rows: loss.row_terms(self._mix(rows)), (), self._tile_rows(centers))
            return loss.value(source), loss.reduce(sums, centers)
        assert isinstance(loss, RowLoss)

        def terms(rows: Rows) -> tuple[Tensor, ...]:
            return *loss.row_terms(rows), *loss.row_terms(self._mix(rows))

        sums = sum_over_rows(source, terms, list(loss.parameters()), self._tile_rows(source), loss.miner)
        half = len(sums) // 2
        return loss.reduce(sums[:half], source), loss.reduce(sums[half:], source)

    def _anchor_values(self, source: PairSource) -> Tensor:
        loss = self.loss
        if not isinstance(loss, RowLoss) or source.is_empty:
            return loss._anchor_values(source)

        def values(rows: Rows) -> Tensor:
            return loss.row_values(rows) + self.weight * loss.row_values(self._mix(rows))

        return values_of_rows(source, values, self._tile_rows(source), loss.miner)

    def _tile_rows(self, source: PairSource) -> int:
        """The number of anchors whose mixed examples fit into a tile."""
        if self.tile_rows is not None:
            return self.tile_rows
        device = source.anchors.device
        step = default_tile_rows(source.num_references, device)
        spans = (slice(start, min(start + step, len(source))) for start in range(0, len(source), step))
        most = max(int(source.pairs(span, by_class=True).positive.sum(dim=1).amax()) for span in spans)
        return max(1, min(step, tile_elements(device) // (source.num_references * (most + 1))))

    def _mix(self, rows: Rows) -> Rows:
        """The mixed examples of each anchor, [rows, partners x negatives], as positives and as negatives with weights.

        The partners of the negatives are the anchor's positives, the anchor itself, or both.
        """
        partners = self._partners(rows)
        coefficient = self._coefficients(rows, partners.shape[1])
        is_partner, is_negative = partners < math.inf, rows.negatives > -math.inf
        is_pair = is_partner[:, :, None] & is_negative[:, None]
        # Without the infinities of padding, whose mixture would be NaN.
        partners, negatives = torch.where(is_partner, partners, 0.0), torch.where(is_negative, rows.negatives, 0.0)
        mixed = torch.lerp(negatives[:, None], partners[:, :, None], coefficient)
        return rows._replace(
            positives=torch.where(is_pair, mixed, math.inf).flatten(1),
            negatives=torch.where(is_pair, mixed, -math.inf).flatten(1),
            positive_weights=(coefficient * is_pair).flatten(1),
            negative_weights=((1 - coefficient) * is_pair).flatten(1),
        )

    def _partners(self, rows: Rows) -> Tensor:
        """The similarities of an anchor to what its negatives are mixed with, [rows, partners], padded with +inf."""
        itself = torch.ones_like(rows.positives[:, :1])
        if self.pairs == "anchor-negative":
            return itself
        present = rows.positives.detach() < math.inf
        most = max(1, int(present.sum(dim=1).amax()))
        # In the order of their columns, so that coefficients do not depend on how the pairs are stored.
        columns = present.byte().argsort(dim=1, descending=True, stable=True)[:, :most]
        positives = rows.positives.gather(1, columns)
        return positives if self.pairs == "positive-negative" else torch.cat([itself, positives], dim=1)

    def _coefficients(self, rows: Rows, num_partners: int) -> Tensor:
        """The coefficients of the partners, [rows, partners, negatives], in the type of the similarities."""
        # The sum of two uniform numbers modulo 1 is uniform, and any two of these sums are independent. One random
        # number for each partner and one for each negative is much faster than one for each pair.
        of_partners, of_negatives = (
            uniform(derive_seed(stream, self.seed), rows.keys, number)
            for stream, number in zip(STREAMS, (num_partners, rows.negatives.shape[1]), strict=True)
        )
        quantile = (NUM_QUANTILES * (of_partners[:, :, None] + of_negatives[:, None])).long() % NUM_QUANTILES
        return self.quantiles.to(rows.negatives)[quantile]


@lru_cache
def _beta_quantiles(alpha: float) -> Tensor:
    """Quantiles of the distribution Beta(alpha, alpha), float32 [NUM_QUANTILES]."""
    from scipy.special import betaincinv  # slow to import

    levels = (torch.arange(NUM_QUANTILES, dtype=torch.float64) + 0.5) / NUM_QUANTILES
    return torch.as_tensor(betaincinv(alpha, alpha, levels.numpy())).float()
