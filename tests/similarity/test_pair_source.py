"""Vectors of length 1, and which pairs of them are positive and negative."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vicinal.losses import ContrastiveLoss
from vicinal.similarity import PairSource, Rows, normalize
from vicinal.similarity.embeddings import _normalize_unfused
from vicinal.similarity.rows import ClassColumns, ClassPairs
from vicinal.utils.errors import InputError

# normalize ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normalizes_as_usual_where_that_is_possible(dtype: torch.dtype) -> None:
    x = torch.randn(20, 7, generator=torch.Generator().manual_seed(0), dtype=dtype).requires_grad_()
    upstream = torch.randn(20, 7, generator=torch.Generator().manual_seed(1), dtype=dtype)
    torch.testing.assert_close(normalize(x), F.normalize(x))
    (gradient,) = torch.autograd.grad(normalize(x), x, upstream)
    torch.testing.assert_close(gradient, torch.autograd.grad(F.normalize(x), x, upstream)[0])


def test_gradient_of_normalize() -> None:
    x = torch.tensor([[1.0, -1.0, 1.0], [2.0, 0.0, 0.0], [-3.0, -3.0, 2.0]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(normalize, x)  # also where several entries, or one alone, are the largest


@pytest.mark.parametrize("length", [1e-11, 1e-6, 1.0, 1e19, 5e37])
def test_length_is_one_and_gradient_finite_for_huge_and_tiny_vectors(length: float) -> None:
    direction = torch.tensor([[3.0, -4.0, 0.0], [1.0, 1.0, 1.0]])
    x = (direction * length).requires_grad_()
    torch.testing.assert_close(normalize(x), F.normalize(direction))
    upstream = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, -1.0]])
    (gradient,) = torch.autograd.grad(normalize(x), x, upstream)
    plain = direction.clone().requires_grad_()
    (expected,) = torch.autograd.grad(F.normalize(plain), plain, upstream)
    norms = direction.norm(dim=1, keepdim=True)
    torch.testing.assert_close(gradient * (length * norms).clamp_min(1e-3), expected * norms, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("length", [0.0, 1e-40, 1e-13, 1e-6, 1e-4, 1e-3, 1.0, 3e38])
def test_compiled_and_uncompiled_normalization_agree(length: float) -> None:
    """The compiled one in plain operations, with the same bound of its gradient."""
    x = (torch.tensor([[0.6, -0.8, 0.0], [0.5, 0.5, 0.7]]) * length).requires_grad_()
    upstream = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, -1.0]])
    (expected,) = torch.autograd.grad(normalize(x), x, upstream)
    assert expected.abs().max() < 3000
    torch.testing.assert_close(_normalize_unfused(x), normalize(x))
    torch.testing.assert_close(torch.autograd.grad(_normalize_unfused(x), x, upstream)[0], expected)


# Rows -----------------------------------------------------------------------------------------------------------------

INF = math.inf
ROWS = Rows(
    torch.tensor([[0.9, 0.2, INF], [INF, INF, INF]]), torch.tensor([[-INF, -0.5], [0.1, 0.7]]), None, torch.arange(2), 4
)


def test_hardest_pairs_of_rows() -> None:
    assert ROWS.hardest_positive.tolist() == [[pytest.approx(0.2)], [INF]]
    assert ROWS.hardest_negative.tolist() == [[-0.5], [pytest.approx(0.7)]]
    assert ROWS.has_positives.tolist() == [True, False]
    assert ROWS.has_negatives.tolist() == [True, True]
    leaf = ROWS._replace(negatives=ROWS.negatives.clone().requires_grad_())
    assert not leaf.hardest_negative.requires_grad


def test_rows_keep_what_masks_name() -> None:
    kept = ROWS.keep(negatives=torch.tensor([[True, True], [False, True]]))
    assert kept.positives is ROWS.positives
    torch.testing.assert_close(kept.negatives, torch.tensor([[-INF, -0.5], [-INF, 0.7]]))
    assert kept._replace(negatives=ROWS.negatives).keep(positives=torch.zeros(2, 3).bool()).positives.eq(INF).all()
    assert not kept.keep().negatives.isfinite()[1, 0]


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


# Pair source --------------------------------------------------------------------------------------------------------

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABELS = torch.tensor([0, 1, 0, 2, 1, 0])
MASK = LABELS[:, None] == LABELS


def pairs_of(source: PairSource, start: int = 0, stop: int | None = None) -> list[tuple[set[int], set[int]]]:
    """The positive and the negative columns of anchors, as the losses would see them."""
    span = slice(start, len(source) if stop is None else stop)
    similarity = torch.arange(len(source.references), dtype=torch.float64).repeat(span.stop - start, 1)
    rows = Rows(*source.pairs(span, source.class_columns).split(similarity), *source.identities(span))
    return [
        tuple({int(column) for column in row[row.isfinite()]} for row in pair)
        for pair in zip(rows.positives, rows.negatives, strict=True)
    ]


def pairs_by_hand(labels: Tensor, others: Tensor, offset: int | None) -> list[tuple[set[int], set[int]]]:
    columns = range(len(others))
    return [
        (
            {j for j in columns if others[j] == label and not (offset is not None and j == offset + i)},
            {j for j in columns if others[j] != label},
        )
        for i, label in enumerate(labels)
    ]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_labels_relations_and_masks_say_the_same_pairs(data: st.DataObject) -> None:
    others = torch.tensor(data.draw(st.lists(st.integers(-3, 3), min_size=1, max_size=8)))
    offset = data.draw(st.one_of(st.none(), st.integers(0, len(others) - 1)))
    if offset is None:
        labels = torch.tensor(data.draw(st.lists(st.integers(-4, 4), min_size=1, max_size=5)))
    else:
        labels = others[offset : data.draw(st.integers(offset + 1, len(others)))]
    x, y = torch.ones(len(labels), 2), torch.ones(len(others), 2)
    same = labels[:, None] == others
    own = torch.zeros_like(same)
    if offset is not None:
        own[torch.arange(len(labels)), offset + torch.arange(len(labels))] = True
    expected = pairs_by_hand(labels, others, offset)
    sources = [
        PairSource.from_batch(x, labels, y, others, offset),
        PairSource.from_batch(x, labels.int(), y, others.to(torch.int16), offset),
        PairSource.from_batch(x, labels, y, others, offset, relation=lambda a, b: a[:, None] == b),
        PairSource.from_batch(x, None, y, None, offset, positive=same),
        PairSource.from_batch(x, None, y, None, offset, positive=same, negative=~same),
        PairSource.from_batch(x, None, y, None, offset, positive=same & ~own, negative=~same | own),
    ]
    start = data.draw(st.integers(0, len(labels) - 1))
    stop = data.draw(st.integers(start + 1, len(labels)))
    for source in sources:
        assert pairs_of(source) == expected
        assert pairs_of(source, start, stop) == expected[start:stop]


def test_a_batch_is_compared_with_itself() -> None:
    for source in (PairSource.from_distributed_batch(X, LABELS), PairSource.from_batch(X, LABELS)):
        assert source.references is source.anchors
        assert not source.is_distributed
    assert (len(source), source.dim, source.offset) == (6, 4, 0)
    assert pairs_of(source) == pairs_by_hand(LABELS, LABELS, 0)
    torch.testing.assert_close(source.anchors.norm(dim=1), torch.ones(6, dtype=torch.float64))


@pytest.mark.parametrize(
    ("offset", "call", "expected"),
    [(None, None, [2, 3, 4]), (3, None, [5, 6, 7]), (3, 2, [2**33 + 5, 2**33 + 6, 2**33 + 7])],
)
def test_keys_are_places_in_the_whole_batch_and_change_with_the_call(
    offset: int | None, call: int | None, expected: list[int]
) -> None:
    references, labels = (torch.cat([tensor[:3], tensor, tensor[3:]]) for tensor in (X, LABELS))
    source = PairSource.from_batch(X, LABELS, references, labels, offset)
    source = replace(source, num_calls=None if call is None else torch.tensor(call))
    rows = Rows(*source.pairs(slice(2, 5)).split(torch.zeros(3, 12)), *source.identities(slice(2, 5)))
    assert rows.keys.tolist() == expected
    assert rows.labels.tolist() == LABELS[2:5].tolist()


SAME = {"relation": lambda a, b: a[:, None] == b}


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        ((X.tolist(), LABELS), {}, "^embeddings must be a tensor, not list; convert it"),
        ((X.to(torch.complex64), LABELS), {}, r"^embeddings must be float \[n, d\]"),
        ((X.to_sparse(), LABELS), {}, r"^embeddings must be a dense tensor, not torch.sparse_coo$"),
        ((X.to("meta"), LABELS), {}, "^embeddings must be a dense tensor, not on the device meta"),
        ((X, LABELS.tolist()), {}, "^labels must be a tensor, not list; convert it with torch.as_tensor$"),
        ((X, 3), {}, "^labels must be a tensor, not int"),
        ((X, LABELS.to("meta")), {}, "^labels must be a dense tensor, not on the device meta"),
        ((X, LABELS, X.tolist(), LABELS), {}, "^references must be a tensor, not list"),
        ((X, LABELS, X, LABELS.tolist()), {}, "^reference_labels must be a tensor, not list"),
        ((X, LABELS, X.to("meta"), LABELS), {}, "^references must be a dense tensor"),
        ((X, LABELS, X, LABELS, "0"), {}, "^offset = '0' must be a whole number, or None$"),
        ((X, LABELS), {"positive": MASK.tolist()}, "^positive must be a tensor, not list"),
        ((X, LABELS), {"positive": MASK.to("meta")}, "^positive must be a dense tensor"),
        ((X, LABELS), {"positive": MASK, "negative": (~MASK).tolist()}, "^negative must be a tensor"),
        ((X, LABELS), {"relation": "same"}, "^relation must be a function of two tensors of labels, not str$"),
        ((X[:, :0], LABELS), {}, r"embeddings must be float \[n, d\], not torch.float64 \[6, 0\]"),
        ((X.long(), LABELS), {}, "embeddings must be float"),
        ((X, LABELS, X[None], LABELS), {}, "references must be float"),
        ((X,), {}, r"labels must be int \[6\], one for each row of embeddings, not None"),
        ((X, LABELS[:3]), {}, r"labels must be int \[6\], .* not torch.int64 \[3\]"),
        ((X, LABELS.to(torch.complex64)), {}, "labels must be int"),
        ((X, LABELS[:, None]), {}, r"labels must be int \[6\], .* \[6, 1\]"),
        ((X, LABELS[:3, None]), SAME, r"labels must be int \[6\]"),
        ((X,), SAME, "labels must be int"),
        ((X, LABELS, X), {}, "references are given without reference_labels"),
        ((X, LABELS, X, LABELS[:2]), {}, r"reference_labels must be int \[6\], one for each row of references"),
        ((X, None, X, LABELS), {}, "labels must be int"),
        ((X, LABELS, None, LABELS), {}, "no references are given"),
        ((X, LABELS), {"offset": 0}, "no references are given"),
        ((X, LABELS, X[:, :3], LABELS), {}, "embeddings have 4 dimensions and references 3"),
        ((X, LABELS, X, LABELS, 1), {}, "offset = 1 places 6 anchors outside the 6 references"),
        ((X, LABELS, X, LABELS, -1), {}, "offset = -1"),
        ((X, LABELS, X, LABELS.flip(0), 0), {}, "offset = 0: the labels of the anchors"),
        ((X, LABELS), {"negative": MASK}, "negative is given without positive"),
        ((X,), {"positive": MASK.long()}, r"positive must be bool \[6, 6\], not torch.int64"),
        ((X, LABELS[:3]), {"positive": MASK}, r"labels must be \[6\], .* not \[3\]"),
        ((X,), {"positive": MASK[:3]}, r"positive must be bool \[6, 6\], not torch.bool \[3, 6\]"),
        ((X,), {"positive": MASK, "negative": ~MASK[:, :2]}, r"negative must be bool \[6, 6\]"),
        ((X, None, X[:2]), {"positive": MASK}, r"positive must be bool \[6, 2\]"),
        ((X,), {"positive": MASK, "negative": MASK}, "marked in positive and in negative"),
        ((X, LABELS), {"positive": MASK, **SAME}, "relation and positive both define"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple, named: dict, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        PairSource.from_batch(*arguments, **named)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("relation", "got"),
    [
        (lambda a, b: (a[:, None] == b).int(), r"torch.int32 \[6, 6\]"),
        (lambda a, b: a == b, r"torch.bool \[6\]"),
        (lambda a, b: MASK[:2], r"torch.bool \[2, 6\]$"),
        (lambda a, b: None, "a tensor, not NoneType"),
        (lambda a, b: MASK.to("meta"), "a dense tensor"),
    ],
)
def test_a_relation_that_returns_no_mask_is_named(relation: Callable, got: str) -> None:
    with pytest.raises(InputError, match=rf"relation must (return bool \[6, 6\], not|be) {got}"):
        ContrastiveLoss()(X, LABELS, relation=relation)
