"""SiMix: similarity mixup of the embeddings of a class, without computing the mixed embeddings."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vicinal.losses.base import Loss, loss_terms
from vicinal.similarity.mixed_pair_source import MixedExamples, MixedPairSource, Mixture
from vicinal.similarity.pair_source import PairSource
from vicinal.utils import distributed
from vicinal.utils.arguments import check_positive_integer, check_seed, given
from vicinal.utils.errors import InputError
from vicinal.utils.seeds import uniform

__all__ = ["SiMix"]


def __dir__() -> list[str]:
    return __all__


MAX_EXAMPLES = 2**20  # number of examples, including virtual ones, above which a batch is refused


class SiMix(Loss):
    """Similarity mixup: a loss of a batch that is extended by virtual examples `a x + (1 - a) z`, one for every pair of
    examples x, z of a class, with a drawn from U(0, 1).

    Virtual examples are anchors and references with the label of their class, as all others. They are not normalized,
    so their similarities are mixtures of those of the given examples, and their embeddings are never computed. 4
    examples of a class give 6 virtual ones, so 4,096 examples become 10,240. With references, such as a memory, virtual
    examples are made of the references too.

    Reference: Patel et al., "Three Things to Know about Deep Metric Learning", 2024, Section 3.3, Eq. (8) to (10).

    Args:
        loss: any loss that depends only on similarities, or a sum of such losses.
        virtual_per_class: number of virtual examples per class, from pairs that are chosen evenly; None: one for every
            pair. A class of m examples has m (m - 1) / 2 pairs, and the time of the loss grows with the square of the
            number of examples.
        seed: of the random numbers, which differ between calls, and depend on the order of the batch.

    Raises:
        InputError: the loss does not depend only on similarities, for example because it has a memory (whose own loss
            can be a SiMix); when called: pairs are given by masks or a relation, or there are more than 2**20 examples.

    Example:
        >>> from vicinal.losses import RecallAtKLoss
        >>> loss = SiMix(RecallAtKLoss(k=1))
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
        >>> loss(embeddings, torch.tensor([7, 7, 9, 9]))
        tensor(0.3100)
    """

    calls: Tensor

    def __init__(self, loss: Loss, virtual_per_class: int | None = None, seed: int = 0) -> None:
        super().__init__()
        check_positive_integer(self, **given(virtual_per_class=virtual_per_class))
        check_seed(self, seed)
        for term in loss_terms(loss):
            if not getattr(term, "uses_only_similarities", False):
                raise InputError(
                    "SiMix: loss must be a loss of similarities such as RecallAtKLoss(), or a sum of such losses, not "
                    f"{type(term).__name__}"
                )
        self.loss = loss
        self.virtual_per_class = virtual_per_class
        self.seed = seed
        # Part of the state, so that a resumed training draws the same numbers as an uninterrupted one.
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # the number of examples depends on the labels
    def parts(self, source: PairSource) -> dict[str, Tensor]:
        if not source.is_by_label:
            raise InputError("SiMix: examples of one class are mixed; give labels, not masks or a relation")
        self.calls += 1
        return self.loss.parts(self._mixed(source))

    def _mixed(self, source: PairSource) -> MixedPairSource:
        """The source, extended by virtual anchors and virtual references."""
        assert source.labels is not None
        assert source.reference_labels is not None
        packed = torch.cat([self.calls[None].to(source.labels.device), source.reference_labels, source.labels])
        calls, reference_labels, labels = torch.split(packed.cpu(), [1, source.num_references, len(source)])
        references = MixedExamples(source.references, reference_labels, self._mixture(reference_labels, int(calls)))
        if source.offset is not None:
            return _mix_anchors_among_references(source, references, labels)
        anchors = MixedExamples(source.anchors, labels, self._mixture(labels, int(calls), stream=1))
        return MixedPairSource.from_examples(source, anchors, references, None, len(anchors.mixture))

    def _mixture(self, labels: Tensor, calls: int, stream: int = 0) -> Mixture:
        """All examples, given and virtual ones, ordered by class. The two streams have independent random numbers."""
        order = labels.argsort(stable=True)
        sizes = labels.unique(return_counts=True)[1]  # type: ignore[no-untyped-call]
        pairs = sizes * (sizes - 1) // 2
        counts = pairs if self.virtual_per_class is None else pairs.clamp_max(self.virtual_per_class)
        num_virtual = int(counts.sum())
        if len(labels) + num_virtual > MAX_EXAMPLES:
            raise InputError(
                f"SiMix: {len(labels)} examples and {num_virtual} mixtures are more than {MAX_EXAMPLES}; give a "
                "smaller number of mixtures per class, virtual_per_class"
            )
        keys = (calls << 32) + torch.arange(num_virtual)
        coefficient, choice, rotation = uniform(self.seed, keys, 6).view(-1, 2, 3)[:, stream].unbind(1)
        first, second = _distinct_pairs(sizes, counts, choice.double(), rotation.double())
        given = torch.arange(len(labels))
        first, second = torch.cat([given, first]), torch.cat([given, second])
        coefficient = torch.cat([torch.ones_like(given, dtype=coefficient.dtype), coefficient])
        return Mixture(order[first], order[second], coefficient)[(second * len(labels) + first).argsort()]


def _mix_anchors_among_references(source: PairSource, references: MixedExamples, labels: Tensor) -> MixedPairSource:
    """Use the mixtures of two anchors as anchors; of a distributed batch each process takes a part of them."""
    begin, end = _anchor_span(source)
    mixture = references.mixture
    lowest, highest = mixture.first.minimum(mixture.second), mixture.first.maximum(mixture.second)
    is_anchor = (lowest >= begin) & (highest < end)
    mixture = mixture[is_anchor.logical_not().sort(stable=True).indices]  # anchors first
    count = int(is_anchor.sum())
    first, last = 0, count
    if source.is_distributed:
        rank, world_size = distributed.rank(), distributed.world_size()
        first, last = count * rank // world_size, count * (rank + 1) // world_size
    anchors = references._replace(mixture=mixture[first:last])
    if source.has_own_references:
        own = anchors.mixture
        own = replace(own, first=own.first - begin, second=own.second - begin)
        anchors = MixedExamples(source.anchors, labels, own)
    return MixedPairSource.from_examples(source, anchors, references._replace(mixture=mixture), first, count)


def _anchor_span(source: PairSource) -> tuple[int, int]:
    """The first and the last row, exclusive, of the anchors of all processes among the references."""
    assert source.offset is not None
    if not source.is_distributed:
        return source.offset, source.offset + len(source)
    begin = source.offset - distributed.rank() * len(source)
    return begin, begin + distributed.world_size() * len(source)


def _distinct_pairs(sizes: Tensor, counts: Tensor, choice: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor]:
    """Sample distinct pairs i < j of each class, in time and memory that do not grow with the number of all pairs.

    The pairs of a class are numbered, placed on a circle and divided, from a random start, into as many intervals as
    pairs are wanted. One pair of each interval is drawn, so all pairs are equally likely.

    Members are numbered from class to class. `choice`, in [0, 1), chooses a pair from its interval; `rotation`, in
    [0, 1), read at the first pair of each class, chooses where its intervals start.
    """
    class_of_pair = torch.arange(len(sizes)).repeat_interleave(counts)
    first_of_class = (counts.cumsum(0) - counts)[class_of_pair]
    interval = torch.arange(len(choice)) - first_of_class
    num_pairs, num_sampled = (sizes * (sizes - 1) // 2)[class_of_pair], counts[class_of_pair]
    begin, end = interval * num_pairs // num_sampled, (interval + 1) * num_pairs // num_sampled
    number = begin + (choice * (end - begin)).long() + (rotation[first_of_class] * num_pairs).long()
    number = number % num_pairs
    # The pair (i, j) with i < j has the number j (j - 1) / 2 + i; rounding of the root may be off by one.
    j = ((1 + (1 + 8 * number.double()).sqrt()) / 2).long()
    j = j - (j * (j - 1) // 2 > number).long()
    j = j + ((j + 1) * j // 2 <= number).long()
    first_member = (sizes.cumsum(0) - sizes)[class_of_pair]
    return first_member + number - j * (j - 1) // 2, first_member + j
