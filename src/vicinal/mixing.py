"""SiMix: virtual examples between the examples of a class, of which only the similarities are ever made."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vicinal import distributed
from vicinal.arguments import check_at_least_one, check_seed
from vicinal.errors import InputError
from vicinal.losses.base import Loss, terms_of
from vicinal.mixed_source import MixedSource, Mixture, Side
from vicinal.seeds import uniform
from vicinal.similarity import Source

__all__ = ["SiMix"]

MOST_EXAMPLES = 2**20
"""Examples, virtual ones included, beyond which no batch makes sense."""


class SiMix(Loss):
    """Similarity mixup: a loss of a batch that is extended by virtual examples, `a x + (1 - a) z` for every pair of
    examples x, z of one class, with a drawn from U(0, 1) for each.

    Virtual examples are queries and are ranked, like all others and with the label of their class. They are not
    normalised, so their similarities are mixtures of those between the given examples, and no embedding of theirs is
    ever made: 4 examples of a class make 6 virtual ones, and 4,096 examples 10,240. With references, such as a memory,
    virtual ones are made among them as among the anchors.

    Reference: Patel et al., "Three Things to Know about Deep Metric Learning", 2024, Section 3.3, Eq. (8) to (10).

    Args:
        loss: any loss of the library that is a function of similarities, or a sum of such.
        per_class: how many virtual examples a class has, of pairs drawn from all of it evenly; None: one for every
            pair. A class of m has m (m - 1) / 2, and the loss's time grows with the square of all examples.
        seed: of what is drawn, which changes from call to call, and with the order of labels.

    Raises:
        InputError: the loss has more to it than similarities, such as a memory (which can have a SiMix instead);
            when called: pairs are given by masks or a relation, or classes are so large that there are more than
            2**20 examples.

    Example:
        >>> from vicinal.losses import RecallAtKLoss
        >>> loss = SiMix(RecallAtKLoss(k=1))
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> loss(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(0.3100)
    """

    calls: Tensor

    def __init__(self, loss: Loss, per_class: int | None = None, seed: int = 0) -> None:
        super().__init__()
        check_at_least_one(self, per_class=per_class)
        check_seed(self, seed)
        for term in terms_of(loss):
            if not getattr(term, "of_similarities", False):
                raise InputError(
                    "SiMix: it takes a loss of similarities such as RecallAtKLoss(), or a sum of such, not "
                    f"{type(term).__name__}"
                )
        self.loss = loss
        self.per_class = per_class
        self.seed = seed
        # Part of the state, so that a continued training draws what an uninterrupted one would have drawn.
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # how many examples there are depends on the labels
    def _parts(self, source: Source) -> dict[str, Tensor]:
        if source.masks is not None or source.relation is not None:
            raise InputError("SiMix: examples of one class are mixed; give labels, not masks or a relation")
        self.calls += 1
        return self.loss._parts(self._mixed(source))

    def _mixed(self, source: Source) -> MixedSource:
        """The source extended by virtual examples on both sides."""
        assert source.labels is not None
        assert source.reference_labels is not None
        references = Side(source.references, source.reference_labels, self._mixture(source.reference_labels))
        if source.offset is not None:
            return _anchors_among_references(source, references)
        anchors = Side(source.anchors, source.labels, self._mixture(source.labels, of_anchors=True))
        return MixedSource.of_sides(source, anchors, references, offset=None, all_anchors=len(anchors.mixture))

    def _mixture(self, labels: Tensor, of_anchors: bool = False) -> Mixture:
        """All examples, given ones too, class by class; anchors that are no references draw numbers of their own."""
        order = labels.argsort(stable=True)
        sizes = labels.unique(return_counts=True)[1]  # type: ignore[no-untyped-call]
        pairs = sizes * (sizes - 1) // 2
        counts = pairs if self.per_class is None else pairs.clamp_max(self.per_class)
        _check_number(len(labels), int(counts.sum()))
        keys = (self.calls.to(labels.device) << 32) + torch.arange(int(counts.sum()), device=labels.device)
        share, choice, turn = uniform(self.seed, keys, 6).view(-1, 2, 3)[:, int(of_anchors)].unbind(1)
        first, second = _distinct_pairs(sizes, counts, choice.double(), turn.double())
        given = torch.arange(len(labels), device=labels.device)
        first, second = torch.cat([given, first]), torch.cat([given, second])
        share = torch.cat([torch.ones_like(given, dtype=share.dtype), share])
        return Mixture(order[first], order[second], share)[(second * len(labels) + first).argsort()]


def _anchors_among_references(source: Source, references: Side) -> MixedSource:
    """What is mixed of two anchors is an anchor too; of several processes each takes its share of them."""
    begin, end = _batch_of(source)
    mixture = references.mixture
    lowest, highest = mixture.first.minimum(mixture.second), mixture.first.maximum(mixture.second)
    is_anchor = (lowest >= begin) & (highest < end)
    mixture = mixture[is_anchor.logical_not().sort(stable=True).indices]  # the anchors first
    count = int(is_anchor.sum())
    first, last = _share_of_process(count) if source.shared else (0, count)
    vectors, labels, own = references.vectors, references.labels, mixture[first:last]
    if source.references is not source.anchors and not source.shared:
        assert source.labels is not None
        vectors, labels = source.anchors, source.labels
        own = replace(own, first=own.first - begin, second=own.second - begin)
    references = references._replace(mixture=mixture)
    return MixedSource.of_sides(source, Side(vectors, labels, own), references, offset=first, all_anchors=count)


def _batch_of(source: Source) -> tuple[int, int]:
    """From where to where the anchors of all processes are among the references."""
    assert source.offset is not None
    if not source.shared:
        return source.offset, source.offset + len(source)
    begin = source.offset - distributed.rank() * len(source)
    return begin, begin + distributed.world_size() * len(source)


def _share_of_process(examples: int) -> tuple[int, int]:
    rank, world = distributed.rank(), distributed.world_size()
    return examples * rank // world, examples * (rank + 1) // world


def _check_number(given: int, virtual: int) -> None:
    if given + virtual > MOST_EXAMPLES:
        raise InputError(
            f"SiMix: {given} examples and {virtual} mixtures are more than {MOST_EXAMPLES}; give a smaller number of "
            "mixtures of each class, per_class"
        )


def _distinct_pairs(sizes: Tensor, counts: Tensor, choice: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
    """Some pairs i < j of each class, all different, in time and memory that do not grow with those there are.

    A class's pairs are numbered, on a circle, and cut into as many stretches as are wanted, from anywhere on; each
    stretch gives one. So all pairs are chosen equally often.

    Args:
        sizes: int [classes], how many members each has; they are numbered from class to class.
        counts: int [classes], how many of its pairs are wanted, at most all.
        choice: float64 [wanted], in [0, 1), which pair of its stretch each is.
        turn: float64 [wanted], in [0, 1); the first of each class says where its stretches start.

    Returns:
        The numbers of the two members, int [wanted] both.
    """
    of_class = torch.arange(len(sizes), device=sizes.device).repeat_interleave(counts)
    first_wanted = (counts.cumsum(0) - counts)[of_class]
    stretch = torch.arange(len(choice), device=sizes.device) - first_wanted
    pairs, wanted = (sizes * (sizes - 1) // 2)[of_class], counts[of_class]
    begin, end = stretch * pairs // wanted, (stretch + 1) * pairs // wanted
    number = (begin + (choice * (end - begin)).long() + (turn[first_wanted] * pairs).long()) % pairs
    # The pairs (i, j) with i < j are number j (j - 1) / 2 + i; the root may be off by one where it is rounded.
    j = ((1 + (1 + 8 * number.double()).sqrt()) / 2).long()
    j = j - (j * (j - 1) // 2 > number).long()
    j = j + ((j + 1) * j // 2 <= number).long()
    first_member = (sizes.cumsum(0) - sizes)[of_class]
    return first_member + number - j * (j - 1) // 2, first_member + j
