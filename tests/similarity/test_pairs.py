"""Both layouts of pairs against a matrix gone through entry by entry."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vicinal.similarity.rows import ClassColumns, ClassPairs, MaskedPairs, Pairs


class Case(NamedTuple):
    """Anchors with labels against references with labels; anchor i is reference `first + i`."""

    labels: Tensor
    others: Tensor
    first: int | None

    def positive(self, i: int, j: int) -> bool:
        return bool(self.labels[i] == self.others[j]) and (self.first is None or j != self.first + i)

    def negative(self, i: int, j: int) -> bool:
        return bool(self.labels[i] != self.others[j])

    def entries(self) -> list[tuple[int, int]]:
        return [(i, j) for i in range(len(self.labels)) for j in range(len(self.others))]

    def layouts(self) -> list[Pairs]:
        same = self.labels[:, None] == self.others
        return [
            ClassColumns(self.others, self.labels).pairs(self.labels, self.first),
            MaskedPairs.without_self(same, ~same, self.first),
        ]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Classes of any size, in any order, some without a reference; stretches of a batch that is among them, or not."""
    others = torch.tensor(draw(st.lists(st.integers(0, 4), min_size=1, max_size=9)))
    if draw(st.booleans()):
        labels = torch.tensor(draw(st.lists(st.integers(0, 6), min_size=1, max_size=5)))
        return Case(labels, others, None)
    first = draw(st.integers(0, len(others) - 1))
    return Case(others[first : draw(st.integers(first + 1, len(others)))], others, first)


def similarities(case: Case) -> Tensor:
    """No two alike, so that a value says where it comes from."""
    return torch.arange(1, len(case.labels) * len(case.others) + 1).double().view(len(case.labels), -1)


@given(cases())
@settings(max_examples=100, deadline=None)
def test_split_gives_every_pair_its_place_once(case: Case) -> None:
    whole = similarities(case)
    for pairs in case.layouts():
        positives, negatives = pairs.split(whole.clone())
        for i in range(len(case.labels)):
            columns = range(len(case.others))
            kept = sorted(positives[i][positives[i] < math.inf].tolist())
            assert kept == [whole[i, j].item() for j in columns if case.positive(i, j)]
            assert negatives[i].tolist() == [whole[i, j].item() if case.negative(i, j) else -math.inf for j in columns]
            assert (positives[i] > -math.inf).all()


@given(case=cases(), kinds=st.sampled_from(["both", "positives", "negatives"]))
@settings(max_examples=100, deadline=None)
def test_join_puts_gradients_back_where_similarities_came_from(case: Case, kinds: str) -> None:
    whole = similarities(case)
    expected = torch.zeros_like(whole)
    for i, j in case.entries():
        if case.positive(i, j) and kinds != "negatives":
            expected[i, j] = 2 * whole[i, j]
        if case.negative(i, j) and kinds != "positives":
            expected[i, j] = 3 * whole[i, j]
    for pairs in case.layouts():
        positives, negatives = pairs.split(whole.clone())
        grad_positives = torch.where(positives < math.inf, 2 * positives, 0)
        grad_negatives = torch.where(negatives > -math.inf, 3 * negatives, 0)
        joined = pairs.join(
            None if kinds == "negatives" else grad_positives, None if kinds == "positives" else grad_negatives
        )
        assert torch.equal(joined, expected)


@given(cases())
@settings(max_examples=60, deadline=None)
def test_products_are_those_of_the_joined_matrix(case: Case) -> None:
    generator = torch.Generator().manual_seed(0)
    anchors, references = (
        torch.randn(len(x), 3, generator=generator, dtype=torch.float64) for x in (case.labels, case.others)
    )
    pairs = ClassColumns(case.others, case.labels).pairs(case.labels, case.first)
    positives, _ = pairs.split(similarities(case))
    gradient = torch.where(positives < math.inf, positives, 0)
    matrix = pairs.join(gradient.clone(), None)
    of_anchors, of_references = torch.ones_like(anchors), torch.ones_like(references)  # to be added to
    pairs.add_products(gradient, anchors, references, (of_anchors, of_references))
    torch.testing.assert_close(of_anchors, 1 + matrix @ references)
    torch.testing.assert_close(of_references, 1 + matrix.T @ anchors)


def test_only_as_many_columns_as_the_largest_class_asked_for() -> None:
    columns = ClassColumns(torch.tensor([0] * 7 + [1, 2, 2]), torch.tensor([2, 1, 5]))
    assert columns.pairs(torch.tensor([2, 1]), None).columns.shape == (2, 2)
    assert columns.pairs(torch.tensor([5]), None).columns.shape == (1, 1)


def test_sparse_is_a_small_fraction_of_columns_that_are_not_too_many_numbers() -> None:
    few, most = torch.arange(100) // 2, torch.arange(100) // 50
    pairs = ClassColumns(few, few).pairs(few[:10], 0)
    assert isinstance(pairs, ClassPairs)
    assert pairs.is_sparse(dim=64)
    assert not pairs.is_sparse(dim=2**20)
    assert not ClassColumns(most, most).pairs(most[:10], 0).is_sparse(dim=64)
