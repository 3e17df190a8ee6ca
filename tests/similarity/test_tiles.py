"""The walk over a source equals autograd through the whole matrix, for any function of rows."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vicinal.similarity import PairSource, Rows
from vicinal.similarity.rows import MaskedPairs
from vicinal.similarity.tiles import sum_over_rows

TILES = [None, 1, 3, 7, 100]
N, DIM = 20, 4


def exponentials(rows: Rows) -> tuple[Tensor, ...]:
    """Both kinds of pairs, mixed with each other row by row."""
    positives, negatives = (-rows.positives).exp().sum(dim=1), rows.negatives.exp().sum(dim=1)
    return ((1 + positives * negatives).log(),)


def only_positives(rows: Rows) -> tuple[Tensor, ...]:
    return ((-3 * rows.positives).exp().sum(dim=1),)


def only_negatives(rows: Rows) -> tuple[Tensor, ...]:
    return ((2 * rows.negatives).exp().sum(dim=1).sqrt(),)


def several(rows: Rows) -> tuple[Tensor, ...]:
    """A count, which has no gradient, amid terms that have one."""
    count = (rows.positives < math.inf).sum(dim=1)
    return *only_negatives(rows), count, *only_positives(rows), *exponentials(rows)


def of_labels(rows: Rows) -> tuple[Tensor, ...]:
    """Something of each anchor itself."""
    return (rows.labels * (-rows.positives).exp().sum(dim=1) + rows.keys * rows.negatives.exp().sum(dim=1),)


def nothing_of_pairs(rows: Rows) -> tuple[Tensor, ...]:
    return (torch.ones_like(rows.labels), *only_positives(rows))


FUNCTIONS = [exponentials, only_positives, only_negatives, several, of_labels, nothing_of_pairs]


def batch(classes: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(classes)
    x = torch.randn(N, DIM, generator=generator, dtype=torch.float64)
    return x, torch.arange(N)[torch.randperm(N, generator=generator)] % classes


def with_itself(x: Tensor, y: Tensor, labels: Tensor) -> PairSource:
    return PairSource.from_batch(x, labels)


def stretch_of_references(x: Tensor, y: Tensor, labels: Tensor) -> PairSource:
    return PairSource.from_batch(x[4:13], labels[4:13], torch.cat([x, y]), torch.cat([labels, labels]), 4)


def others(x: Tensor, y: Tensor, labels: Tensor) -> PairSource:
    return PairSource.from_batch(x, labels, y[:15], labels.flip(0)[:15])


def fixed_references(x: Tensor, y: Tensor, labels: Tensor) -> PairSource:
    return PairSource.from_batch(x, labels, y.detach(), labels)


def fixed_anchors(x: Tensor, y: Tensor, labels: Tensor) -> PairSource:
    return PairSource.from_batch(x.detach(), labels, y, labels, 0)


def masks(x: Tensor, y: Tensor, labels: Tensor) -> PairSource:
    """Some pairs are neither; labels come along."""
    known = (torch.arange(N)[:, None] + torch.arange(N)) % 3 > 0
    same = labels[:, None] == labels
    return PairSource.from_batch(x, labels, positive=same & known, negative=~same & known)


SOURCES = [with_itself, stretch_of_references, others, fixed_references, fixed_anchors, masks]


def plainly(source: PairSource, row_terms: Callable) -> tuple[Tensor, ...]:
    """The whole matrix and its masks, differentiated by autograd."""
    similarity = source.anchors @ source.references.T
    positive, negative = source.masks or (None, None)
    if positive is None:
        positive = source.labels[:, None] == source.reference_labels
        negative = ~positive
    if source.offset is not None:
        own = torch.zeros_like(positive)
        own[torch.arange(len(source)), source.offset + torch.arange(len(source))] = True
        positive, negative = positive & ~own, negative & ~own
    rows = Rows(*MaskedPairs(positive, negative).split(similarity), *source.identities(slice(0, len(source))))
    return tuple(term.sum(0) for term in row_terms(rows))


def gradients(terms: tuple[Tensor, ...], *inputs: Tensor) -> list[Tensor | None]:
    """By each input, of a sum in which every term has another weight."""
    total = sum((i + 0.5) * term for i, term in enumerate(terms) if term.requires_grad)
    return list(torch.autograd.grad(total, inputs, allow_unused=True))


def assert_same(got: list, expected: list) -> None:
    for one, other in zip(got, expected, strict=True):
        if one is None or other is None:
            assert one is other or not (other if one is None else one).any()
        else:
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_value_and_gradients_are_those_of_the_whole_matrix(function: Callable, source: Callable) -> None:
    for classes in (2, 10, N):  # half of all columns are positives, few enough for sparse products, and none
        x, labels = batch(classes)
        x, y = x.requires_grad_(), x.flip(0).detach().requires_grad_()
        expected = plainly(source(x, y, labels), function)
        expected_gradients = gradients(expected, x, y)
        for tile_rows in TILES:
            got = sum_over_rows(source(x, y, labels), function, tile_rows=tile_rows)
            assert_same([*got], [*expected])
            assert [term.requires_grad for term in got] == [term.requires_grad for term in expected]
            assert_same(gradients(got, x, y), expected_gradients)


@pytest.mark.parametrize("tile_rows", TILES)
@pytest.mark.parametrize("learned", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("moving", [True, False])
def test_parameters_get_their_gradients(tile_rows: int | None, learned: tuple[bool, bool], moving: bool) -> None:
    x, labels = batch(5)
    x = x.requires_grad_(moving)
    slope = torch.tensor(1.5, dtype=torch.float64, requires_grad=learned[0])
    by_class = torch.linspace(-1, 1, 5, dtype=torch.float64).requires_grad_(learned[1])
    unused = torch.ones(3, requires_grad=True)

    def terms(rows: Rows) -> tuple[Tensor, ...]:
        hinges = (rows.negatives - by_class[rows.labels][:, None]).relu()
        return slope**2 * hinges.sum(dim=1), slope * (-rows.positives).exp().sum(dim=1), by_class[rows.labels] ** 2

    parameters = [slope, unused, by_class]
    wanted = [tensor for tensor in (x, *parameters) if tensor.requires_grad]
    got = sum_over_rows(PairSource.from_batch(x, labels), terms, parameters, tile_rows)
    expected = plainly(PairSource.from_batch(x, labels), terms)
    assert_same([*got], [*expected])
    assert_same(gradients(got, *wanted), gradients(expected, *wanted))


@pytest.mark.parametrize("tile_rows", TILES)
def test_without_gradients_a_term_may_be_a_vector(tile_rows: int | None) -> None:
    x, labels = batch(5)
    source = PairSource.from_batch(x.requires_grad_(), labels)

    def histograms(rows: Rows) -> tuple[Tensor, ...]:
        edges = torch.linspace(-1, 1, 6, dtype=torch.float64)
        return (rows.negatives[:, :, None] > edges).sum(dim=1), *only_positives(rows)

    with torch.no_grad():
        counts, value = sum_over_rows(source, histograms, tile_rows=tile_rows)
        expected, other = plainly(source, histograms)
    assert counts.tolist() == expected.tolist()
    torch.testing.assert_close(value, other)
    assert not value.requires_grad


def test_a_term_is_differentiated_alone_and_more_than_once() -> None:
    x, labels = batch(5)
    x = x.requires_grad_()
    for i in (0, 2, 3):
        got, expected = (walk(PairSource.from_batch(x, labels), several)[i] for walk in (sum_over_rows, plainly))
        (alone,) = torch.autograd.grad(got, x, retain_graph=True)
        torch.testing.assert_close(alone, torch.autograd.grad(expected, x)[0])
    (first,) = torch.autograd.grad(got, x, retain_graph=True)
    (second,) = torch.autograd.grad(-2 * got, x)
    torch.testing.assert_close(second, -2 * first)


def test_what_goes_in_is_left_as_it_was() -> None:
    """Rows may be overwritten, embeddings and references may not; and a source can be walked again."""
    x, labels = batch(5)
    x = x.requires_grad_()
    source = PairSource.from_batch(x, labels, x.detach().clone(), labels, 0)
    before = source.anchors.clone(), source.references.clone()
    first = sum_over_rows(source, several, tile_rows=3)
    gradients(first, x)
    assert_same([source.anchors, source.references], [*before])
    assert_same([*sum_over_rows(source, several)], [*first])


def test_the_matrix_is_not_kept_for_the_backward_pass() -> None:
    x, labels = batch(5)
    kept: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        source = PairSource.from_batch(x.requires_grad_(), labels)
        kept.clear()
        sum_over_rows(source, exponentials, tile_rows=1)
    assert max(size for size in kept if size) <= N * DIM
