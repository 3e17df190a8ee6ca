"""Every pair loss written as in its paper: slow, in float64, pair by pair. The library must compute the same.

A loss here is a function of anchors, each with the similarities of its pairs, and of the loss's constants, whose
defaults are the papers'. Nothing of the library is used; autograd gives the gradients.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tests.losses.batches import Batch


class Anchor(NamedTuple):
    """One row of the similarity matrix.

    Attributes:
        positives: column -> similarity of each positive pair, in the order of the columns.
        negatives: column -> similarity of each negative pair.
        label: the anchor's label.
        place: where the anchor is in the whole batch.
        dim: dimension of the embeddings.
    """

    positives: dict[int, Tensor]
    negatives: dict[int, Tensor]
    label: int
    place: int
    dim: int


def anchors_of(batch: Batch, normalize: bool = True) -> list[Anchor]:
    """All pairs of a batch with its references, or with itself; an anchor is not a pair of itself."""
    references = batch.embeddings if batch.references is None else batch.references
    labels = batch.labels.tolist()
    reference_labels = labels if batch.reference_labels is None else batch.reference_labels.tolist()
    offset = 0 if batch.references is None else batch.offset
    rows, columns = (_normalized(x) if normalize else x for x in (batch.embeddings, references))
    anchors = []
    # Products of all pairs at once, each summed by itself, so that those of equal vectors are equal.
    for i, similarities in enumerate((rows[:, None] * columns).sum(dim=2)):
        others = {j: s for j, s in enumerate(similarities.unbind()) if offset is None or j != offset + i}
        anchors.append(
            Anchor(
                positives={j: s for j, s in others.items() if reference_labels[j] == labels[i]},
                negatives={j: s for j, s in others.items() if reference_labels[j] != labels[i]},
                label=labels[i],
                place=i + (offset or 0),
                dim=batch.embeddings.shape[1],
            )
        )
    return anchors


def _normalized(vectors: Tensor) -> Tensor:
    return torch.stack([x / x.norm() if x.norm() > 0 else x / 1e-3 for x in vectors])


# Losses of single pairs -----------------------------------------------------------------------------------------------


def contrastive(
    anchors: list[Anchor],
    positive_margin: float | None = 0.9,
    negative_margin: float = 0.6,
    reduction: str = "violating",
) -> Tensor:
    """Contextual similarity paper, Eq. (29); multi-similarity paper, Eq. (4), where no positive has a margin."""
    if positive_margin is None:
        positives = [-s for a in anchors for s in a.positives.values()]
    else:
        positives = [torch.relu(positive_margin - s) for a in anchors for s in a.positives.values()]
    negatives = [torch.relu(s - negative_margin) for a in anchors for s in a.negatives.values()]
    if reduction == "sum":
        return _sum(positives) + _sum(negatives)
    if reduction == "anchors":
        return (_sum(positives) + _sum(negatives)) / len(anchors)
    if reduction == "pairs":
        return _mean(positives) + _mean(negatives)
    violating = positives if positive_margin is None else [p for p in positives if p > 0]
    return _mean(violating) + _mean([n for n in negatives if n > 0])


def binomial_deviance(
    anchors: list[Anchor], alpha: float = 2, beta: float = 50, base: float = 1, reduction: str = "sum"
) -> Tensor:
    """Multi-similarity paper, Eq. (9)."""

    def of(a: Anchor) -> Tensor:
        positives = [torch.log(1 + torch.exp(alpha * (base - s))) for s in a.positives.values()]
        negatives = [torch.log(1 + torch.exp(beta * (s - base))) for s in a.negatives.values()]
        return _mean(positives) + _mean(negatives)

    return _over_anchors(anchors, of, reduction, _has_a_pair)


def multi_similarity(
    anchors: list[Anchor],
    alpha: float = 2,
    beta: float = 50,
    base: float = 0.5,
    reduction: str = "anchors",
    plus_one: bool = True,
) -> Tensor:
    """Multi-similarity paper, Eq. (15); without the 1 Context Refiner, Eq. (4), where a side without pairs is 0."""

    def log(terms: list[Tensor]) -> Tensor:
        return torch.log(plus_one + _sum(terms)) if plus_one or terms else torch.zeros(())

    def of(a: Anchor) -> Tensor:
        positives = log([torch.exp(-alpha * (s - base)) for s in a.positives.values()])
        negatives = log([torch.exp(beta * (s - base)) for s in a.negatives.values()])
        return positives / alpha + negatives / beta

    return _over_anchors(anchors, of, reduction, _has_a_pair)


def circle(anchors: list[Anchor], margin: float = 0.4, scale: float = 80, reduction: str = "anchors") -> Tensor:
    """Circle loss paper, Eq. (6) to (8); its weights carry no gradient."""

    def of(a: Anchor) -> Tensor:
        negatives, positives = [], []
        for s in a.negatives.values():
            weight = torch.relu(s.detach() + margin)
            negatives.append(torch.exp(scale * weight * (s - margin)))
        for s in a.positives.values():
            weight = torch.relu(1 + margin - s.detach())
            positives.append(torch.exp(-scale * weight * (s - (1 - margin))))
        return torch.log(1 + _sum(negatives) * _sum(positives))

    return _over_anchors(anchors, of, reduction, _has_both)


# Lifted structure losses ----------------------------------------------------------------------------------------------


def lifted_structure(anchors: list[Anchor], margin: float = 1, reduction: str = "sum") -> Tensor:
    """Multi-similarity paper, Eq. (6); the logarithm of an empty sum is minus infinity, which the hinge makes 0."""

    def of(a: Anchor) -> Tensor:
        if not _has_both(a):
            return _sum([])
        positives = _sum(torch.exp(margin - s) for s in a.positives.values())
        negatives = _sum(torch.exp(s) for s in a.negatives.values())
        return torch.relu(torch.log(positives) + torch.log(negatives))

    return _over_anchors(anchors, of, reduction, _has_both)


def lifted_structure_star(
    anchors: list[Anchor], alpha: float = 2, beta: float = 50, reduction: str = "anchors"
) -> Tensor:
    """Multi-similarity paper, Eq. (16); a half without pairs adds nothing."""

    def of(a: Anchor) -> Tensor:
        value = _sum([])
        if a.positives:
            value = value + torch.log(_sum(torch.exp(-alpha * s) for s in a.positives.values())) / alpha
        if a.negatives:
            value = value + torch.log(_sum(torch.exp(beta * s) for s in a.negatives.values())) / beta
        return value

    return _over_anchors(anchors, of, reduction, _has_a_pair)


def bin_lifted(
    anchors: list[Anchor], alpha: float = 2, beta: float = 50, base: float = 1, reduction: str = "anchors"
) -> Tensor:
    """The loss whose derivative by a similarity is the weight of Eq. (10) in the multi-similarity supplement."""

    def binomial(a: Anchor) -> Tensor:
        positives = _sum(torch.log(1 + torch.exp(alpha * (base - s))) for s in a.positives.values())
        negatives = _sum(torch.log(1 + torch.exp(beta * (s - base))) for s in a.negatives.values())
        return positives / alpha + negatives / beta

    def of(a: Anchor) -> Tensor:
        return (binomial(a) + lifted_structure_star([a], alpha, beta)) / 2

    return _over_anchors(anchors, of, reduction, _has_a_pair)


# Losses of a softmax --------------------------------------------------------------------------------------------------


def nt_xent(anchors: list[Anchor], temperature: float = 0.1, reduction: str = "pairs") -> Tensor:
    """SimCLR paper, Eq. (1), for every positive pair, set against the anchor's negatives."""

    def of_pairs(a: Anchor) -> list[Tensor]:
        negatives = _sum(torch.exp(s / temperature) for s in a.negatives.values())
        numerators = [torch.exp(s / temperature) for s in a.positives.values()]
        return [-torch.log(numerator / (numerator + negatives)) for numerator in numerators]

    return _over_positive_pairs(anchors, of_pairs, reduction)


def n_pairs(anchors: list[Anchor], scale: float = 1, reduction: str = "pairs") -> Tensor:
    """N-pairs paper, Eq. (8), for every positive pair."""

    def of_pairs(a: Anchor) -> list[Tensor]:
        return [
            torch.log(1 + _sum(torch.exp(scale * (n - p)) for n in a.negatives.values())) for p in a.positives.values()
        ]

    return _over_positive_pairs(anchors, of_pairs, reduction)


def nca(anchors: list[Anchor], scale: float = 1, reduction: str = "sum") -> Tensor:
    """Multi-similarity supplement, Eq. (1), with the sign that makes it a loss."""

    def of(a: Anchor) -> Tensor:
        if not a.positives:
            return _sum([])
        positives = _sum(torch.exp(scale * s) for s in a.positives.values())
        everything = positives + _sum(torch.exp(scale * s) for s in a.negatives.values())
        return torch.log(everything) - torch.log(positives)

    return _over_anchors(anchors, of, reduction, _has_a_positive)


def sup_con(anchors: list[Anchor], temperature: float = 0.1, reduction: str = "sum") -> Tensor:
    """Supervised contrastive paper, Eq. (2)."""

    def of(a: Anchor) -> Tensor:
        everything = _sum(torch.exp(s / temperature) for s in [*a.positives.values(), *a.negatives.values()])
        return -_mean([torch.log(torch.exp(s / temperature) / everything) for s in a.positives.values()])

    return _over_anchors(anchors, of, reduction, _has_a_positive)


# Triplets, margins, histograms ----------------------------------------------------------------------------------------


def triplet(
    anchors: list[Anchor], margin: float = 0.1, triplets: str = "all", soft: bool = False, reduction: str = "pairs"
) -> Tensor:
    """Multi-similarity paper, Eq. (5); the soft margin of Hermans et al.; the semi-hard triplets of FaceNet."""
    values = []
    for a in anchors:
        for positive in a.positives.values():
            for negative in a.negatives.values():
                if triplets == "all" or positive - margin < negative < positive:
                    violation = negative - positive + margin
                    values.append(torch.log(1 + torch.exp(violation)) if soft else torch.relu(violation))
    if reduction == "sum":
        return _sum(values)
    if reduction == "anchors":
        return _sum(values) / len(anchors)
    return _mean(values if reduction == "pairs" else [value for value in values if value > 0])


def margin(
    anchors: list[Anchor],
    beta: Tensor,
    margin: float = 0.2,
    num_classes: int | None = None,
    nu: float = 0,
    reduction: str = "violating",
) -> Tensor:
    """Distance-weighted sampling paper, Eq. (4) and (5); `beta` has one entry, or one for each class."""
    losses, regularization = [], _sum([])
    for a in anchors:
        boundary = beta[0] if num_classes is None else beta[a.label]
        losses += [torch.relu(margin + _distance(s) - boundary) for s in a.positives.values()]
        losses += [torch.relu(margin - _distance(s) + boundary) for s in a.negatives.values()]
        if _has_a_pair(a):
            regularization = regularization + nu * boundary
    total = _sum(losses) + regularization
    if reduction == "sum":
        return total
    counts = {"anchors": len(anchors), "pairs": len(losses), "violating": sum(bool(loss > 0) for loss in losses)}
    return total / max(counts[reduction], 1)


def _distance(similarity: Tensor) -> Tensor:
    """Euclidean distance of vectors of length 1; that of equal ones is the least that float64 can tell from 0."""
    squared = 2 - 2 * similarity
    return squared.sqrt() if squared > 2.3e-16 else similarity.new_tensor(math.sqrt(2.2e-16))


def histogram(anchors: list[Anchor], bins: int = 100) -> Tensor:
    """Multi-similarity supplement, Eq. (3) to (5)."""
    positives = _histogram([s for a in anchors for s in a.positives.values()], bins)
    negatives = _histogram([s for a in anchors for s in a.negatives.values()], bins)
    total = below = _sum([])
    for positive, negative in zip(positives, negatives, strict=True):
        below = below + positive  # positives at the nodes up to this one
        total = total + negative * below
    return total


def _histogram(similarities: list[Tensor], bins: int) -> list[Tensor]:
    """Height of each node: Eq. (4), with the triangle of Eq. (5). On a node the slope is that of its right side."""
    width = 2 / bins
    node = [-1 + (r - 1) * width for r in range(bins + 3)]  # node[r + 1] is the paper's t_r
    heights = [_sum([]) for _ in range(bins + 1)]
    for s in similarities:
        at = s.item()
        for r in range(bins + 1):
            if node[r] <= at < node[r + 1]:
                heights[r] = heights[r] + (s - node[r]) / width / len(similarities)
            elif node[r + 1] <= at < node[r + 2]:
                heights[r] = heights[r] + (node[r + 2] - s) / width / len(similarities)
    return heights


# Ranking losses -------------------------------------------------------------------------------------------------------


def recall_at_k(
    anchors: list[Anchor],
    k: int | Sequence[int] = (1, 2, 4, 8, 16),
    rank_temperature: float = 1.0,
    similarity_temperature: float = 0.01,
    reduction: str = "contributing",
) -> Tensor:
    """RS@k paper, Eq. (5) to (7), divided and clipped as said below Eq. (7)."""
    ks = [k] if isinstance(k, int) else list(k)

    def recall(ranks: list[Tensor], k: int) -> Tensor:
        found = _sum(_sigmoid(k - rank, rank_temperature) for rank in ranks)
        return found.clamp(max=k) / min(k, len(ranks))

    def error(a: Anchor) -> Tensor:
        ranks = [1 + _sum(_sigmoid(d, similarity_temperature) for d in _differences(a, x)) for x in a.positives]
        return _mean([1 - recall(ranks, k) for k in ks])

    return _over_anchors(anchors, _if_positives(error), reduction, _has_a_positive)


def smooth_ap(anchors: list[Anchor], temperature: float = 0.01, reduction: str = "contributing") -> Tensor:
    """Smooth-AP paper: the average precision whose ranks are sums of sigmoids."""

    def precision(a: Anchor, x: int) -> Tensor:
        positives = 1 + _sum(_sigmoid(s - a.positives[x], temperature) for j, s in a.positives.items() if j != x)
        return positives / (1 + _sum(_sigmoid(d, temperature) for d in _differences(a, x)))

    return _over_anchors(anchors, _one_less_mean(precision), reduction, _has_a_positive)


def sup_ap(
    anchors: list[Anchor],
    temperature: float = 0.01,
    linear_from: float = 0.05,
    slope: float = 100.0,
    reduction: str = "contributing",
) -> Tensor:
    """ROADMAP paper: ranks among positives are exact, negatives add a bound of the step."""

    def bound(t: Tensor) -> Tensor:
        if t < 0:
            return _sigmoid(t, temperature)
        if t <= linear_from:
            return _sigmoid(t, temperature) + 0.5
        return slope * (t - linear_from) + _sigmoid(t.new_tensor(linear_from), temperature) + 0.5

    def precision(a: Anchor, x: int) -> Tensor:
        positives = _rank(a.positives[x], [s for j, s in a.positives.items() if j != x])
        return positives / (positives + _sum(bound(s - a.positives[x]) for s in a.negatives.values()))

    return _over_anchors(anchors, _one_less_mean(precision), reduction, _has_a_positive)


def fast_ap(anchors: list[Anchor], bins: int = 10, reduction: str = "contributing") -> Tensor:
    """FastAP paper, over squared distances: the sum over their histogram of precision times the positives there."""

    def average_precision(a: Anchor) -> Tensor:
        positives = _distance_histogram(list(a.positives.values()), bins)
        negatives = _distance_histogram(list(a.negatives.values()), bins)
        total = found = others = _sum([])
        for positive, negative in zip(positives, negatives, strict=True):
            found, others = found + positive, others + negative
            if found + others > 1e-9:  # else the precision is not defined
                total = total + positive * found / (found + others)
        return total / len(a.positives)

    return _over_anchors(anchors, _if_positives(lambda a: 1 - average_precision(a)), reduction, _has_a_positive)


def soft_bin_ap(anchors: list[Anchor], nodes: int = 20, reduction: str = "contributing") -> Tensor:
    """The listwise loss's paper: as FastAP, over similarities from 1 down to -1 with nodes at both ends."""
    width = 2 / (nodes - 1)
    centers = [1 - m * width for m in range(nodes)]

    def average_precision(a: Anchor) -> Tensor:
        total = found = others = _sum([])
        for center in centers:
            here = _at_node(a.positives.values(), center, width)
            found, others = found + here, others + _at_node(a.negatives.values(), center, width)
            if found + others > 1e-9:  # else the precision is not defined
                total = total + found / (found + others) * here / len(a.positives)
        return total

    return _over_anchors(anchors, _if_positives(lambda a: 1 - average_precision(a)), reduction, _has_a_positive)


def _distance_histogram(similarities: list[Tensor], bins: int) -> list[Tensor]:
    """How much of squared distances `2 - 2 s` is at each of bins + 1 nodes from 0 to 4, by linear interpolation."""
    width = 4 / bins
    return [_at_node(similarities, (2 - r * width) / 2, width / 2) for r in range(bins + 1)]


def _at_node(similarities: Iterable[Tensor], node: float, width: float) -> Tensor:
    """How many are at a node: 1 on it, falling to 0 at a width from it. On it the slope is that of its right side."""
    total = _sum([])
    for s in similarities:
        widths_away = round((s.item() - node) / width, 9)  # on a node also where rounding says it is just beside
        if -1 <= widths_away < 0:
            total = total + (1 - (node - s) / width)
        elif 0 <= widths_away < 1:
            total = total + (1 - (s - node) / width)
    return total


def blackbox_ap(
    anchors: list[Anchor], interpolation: float = 4.0, margin: float = 0.02, reduction: str = "contributing"
) -> Tensor:
    """Blackbox paper: the exact average precision, with Algorithm 1's gradient by the similarities attached to it."""

    def value(a: Anchor) -> Tensor:
        if not a.positives:
            return _sum([])
        scores = {j: s.item() - margin / 2 for j, s in a.positives.items()}
        negatives = {j: s.item() + margin / 2 for j, s in a.negatives.items()}
        of_positives = {x: _rank(scores[x], [s for j, s in scores.items() if j != x]) for x in scores}
        ranks = _ranks(scores, negatives)
        loss = 1 - sum(of_positives[x] / ranks[x] for x in scores) / len(scores)
        # d loss / d rank is of_positives / (P rank^2), by which the similarities of positives move.
        moved = {x: s + interpolation * of_positives[x] / (len(scores) * ranks[x] ** 2) for x, s in scores.items()}
        after = _ranks(moved, negatives)
        gradient = {j: (after[j] - ranks[j]) / interpolation for j in ranks}
        pairs = a.positives | a.negatives
        return loss + _sum(gradient[j] * (pairs[j] - pairs[j].detach()) for j in ranks)

    return _over_anchors(anchors, value, reduction, _has_a_positive)


def _ranks(positives: dict[int, float], negatives: dict[int, float]) -> dict[int, int]:
    """The rank of every similarity; of equal ones the positive has the worse rank."""
    ranks = {x: _rank(s, [t for j, t in (positives | negatives).items() if j != x]) for x, s in positives.items()}
    for j, s in negatives.items():
        others = [t for i, t in negatives.items() if i != j]
        ranks[j] = _rank(s, others) + sum(t > s for t in positives.values())
    return ranks


def _rank(similarity: Tensor | float, others: Sequence[Tensor | float]) -> int:
    return 1 + sum(bool(s >= similarity) for s in others)


def _sigmoid(x: Tensor, temperature: float) -> Tensor:
    return torch.sigmoid(x / temperature)


def _differences(a: Anchor, x: int) -> list[Tensor]:
    """The differences of the anchor's other similarities from that of its positive x."""
    return [s - a.positives[x] for j, s in (a.positives | a.negatives).items() if j != x]


def _if_positives(of: Callable[[Anchor], Tensor]) -> Callable[[Anchor], Tensor]:
    return lambda a: of(a) if a.positives else _sum([])


def _one_less_mean(of_positive: Callable[[Anchor, int], Tensor]) -> Callable[[Anchor], Tensor]:
    return _if_positives(lambda a: 1 - _mean([of_positive(a, x) for x in a.positives]))


# Sums and means ------------------------------------------------------------------------------------------------------


def _sum(values: Iterable[Tensor]) -> Tensor:
    return sum(values, start=torch.zeros((), dtype=torch.float64))


def _mean(values: list[Tensor]) -> Tensor:
    return _sum(values) / max(len(values), 1)


def _has_a_pair(a: Anchor) -> bool:
    return bool(a.positives or a.negatives)


def _has_both(a: Anchor) -> bool:
    return bool(a.positives and a.negatives)


def _has_a_positive(a: Anchor) -> bool:
    return bool(a.positives)


def _over_anchors(
    anchors: list[Anchor], of: Callable[[Anchor], Tensor], reduction: str, contributes: Callable[[Anchor], bool]
) -> Tensor:
    total = _sum(of(a) for a in anchors)
    count = {"sum": 1, "anchors": len(anchors), "contributing": sum(contributes(a) for a in anchors)}[reduction]
    return total / max(count, 1)


def _over_positive_pairs(anchors: list[Anchor], of_pairs: Callable[[Anchor], list[Tensor]], reduction: str) -> Tensor:
    pairs = [of_pairs(a) for a in anchors]
    if reduction == "sum":
        return _sum(value for values in pairs for value in values)
    if reduction == "pairs":
        return _mean([value for values in pairs for value in values])
    total = _sum(_mean(values) for values in pairs)
    return total / (len(anchors) if reduction == "anchors" else max(sum(bool(values) for values in pairs), 1))
