"""Every miner as a loop over one anchor's pairs; the library's must keep the same ones."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tests.losses.references import Anchor
from vicinal.utils.seeds import uniform

MinerReference = Callable[[Anchor], Anchor]


def multi_similarity(anchor: Anchor, epsilon: float = 0.1) -> Anchor:
    """Multi-similarity paper, Eq. (11) and (12)."""
    hardest_positive = min((s.item() for s in anchor.positives.values()), default=math.inf)
    hardest_negative = max((s.item() for s in anchor.negatives.values()), default=-math.inf)
    return anchor._replace(
        positives={j: s for j, s in anchor.positives.items() if s.item() < hardest_negative + epsilon},
        negatives={j: s for j, s in anchor.negatives.items() if s.item() > hardest_positive - epsilon},
    )


def hardest(anchor: Anchor, positives: int | None = 1, negatives: int | None = 1) -> Anchor:
    """The least similar positives and the most similar negatives, with all that tie with the last of them."""
    return anchor._replace(
        positives=_first(anchor.positives, positives, lambda s: s),
        negatives=_first(anchor.negatives, negatives, lambda s: -s),
    )


def easy_positive(anchor: Anchor, positives: int = 1) -> Anchor:
    """The most similar positives."""
    return anchor._replace(positives=_first(anchor.positives, positives, lambda s: -s))


def semi_hard(anchor: Anchor, margin: float | None = 0.1) -> Anchor:
    """Negatives below the hardest positive, by less than the margin."""
    if not anchor.positives:
        return anchor._replace(negatives={})
    positive = min(s.item() for s in anchor.positives.values())
    lowest = -math.inf if margin is None else positive - margin
    return anchor._replace(negatives={j: s for j, s in anchor.negatives.items() if lowest < s.item() < positive})


def distance_weighted(
    anchor: Anchor,
    draws: int | None = None,
    cutoff: float = 0.5,
    nonzero_loss_cutoff: float = 1.4,
    seed: int = 0,
    call: int = 1,
) -> Anchor:
    """Distance-weighted sampling paper, Section 4: negatives drawn in proportion to 1 / q(distance)."""
    weights = {}
    for j, s in anchor.negatives.items():
        distance = max(math.sqrt(max(2 - 2 * s.item(), 0)), cutoff)
        density = distance ** (anchor.dim - 2) * max(1 - distance**2 / 4, 1e-300) ** ((anchor.dim - 3) / 2)
        weights[j] = 1 / density if distance < nonzero_loss_cutoff else 0.0
    kept = set()
    number = len(anchor.positives) if draws is None else draws
    for draw in uniform(seed, torch.tensor([anchor.place + (call << 32)]), max(number, 1))[0, :number].tolist():
        below = 0.0
        for j, weight in weights.items():
            if below <= draw * sum(weights.values()) < below + weight:
                kept.add(j)
            below += weight
    return anchor._replace(negatives={j: s for j, s in anchor.negatives.items() if j in kept})


def chain(*miners: MinerReference) -> MinerReference:
    def mine(anchor: Anchor) -> Anchor:
        for miner in miners:
            anchor = miner(anchor)
        return anchor

    return mine


def both(first: MinerReference, second: MinerReference) -> MinerReference:
    return lambda anchor: _kept(anchor, first(anchor), second(anchor), lambda a, b: a & b)


def either(first: MinerReference, second: MinerReference) -> MinerReference:
    return lambda anchor: _kept(anchor, first(anchor), second(anchor), lambda a, b: a | b)


def _kept(anchor: Anchor, one: Anchor, other: Anchor, combine: Callable[[set[int], set[int]], set[int]]) -> Anchor:
    positives = combine(set(one.positives), set(other.positives))
    negatives = combine(set(one.negatives), set(other.negatives))
    return anchor._replace(
        positives={j: s for j, s in anchor.positives.items() if j in positives},
        negatives={j: s for j, s in anchor.negatives.items() if j in negatives},
    )


def _first(pairs: dict[int, Tensor], count: int | None, rank: Callable[[float], float]) -> dict[int, Tensor]:
    if count is None or not pairs:
        return pairs
    last = sorted(rank(s.item()) for s in pairs.values())[:count][-1]
    return {j: s for j, s in pairs.items() if rank(s.item()) <= last}
