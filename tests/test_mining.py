"""Every miner against loops over one anchor's pairs, and against the paper's distribution."""

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from tests.losses.cases import MINERS
from tests.losses.references import Anchor
from vicinal.mining import DistanceWeightedMiner
from vicinal.similarity.pair_source import PairSource
from vicinal.similarity.rows import ClassPairs, MaskedPairs, Rows

NO_POSITIVE, NO_NEGATIVE = math.inf, -math.inf
DIM = 4


def one_row(positives: list[float], negatives: list[float], dim: int = DIM, dtype: torch.dtype = torch.float64) -> Rows:
    kinds = (torch.tensor([row], dtype=dtype) for row in (positives, negatives))
    return Rows(*kinds, labels=None, keys=torch.arange(1), dim=dim)


def many_rows(negatives: list[float], count: int, dim: int, positives: int = 1) -> Rows:
    return Rows(torch.full((count, positives), 0.5), torch.tensor([negatives]).repeat(count, 1), None,
                torch.arange(count), dim)  # fmt: skip


@st.composite
def rows(draw: st.DrawFn) -> Rows:
    """Few distinct similarities, so that many tie; with absent pairs, and anchors that have none of a kind."""
    count = draw(st.integers(1, 4))

    def matrix(absent: float) -> Tensor:
        entry = st.one_of(st.just(absent), st.integers(-8, 8).map(lambda k: k / 8))
        width = draw(st.integers(1, 6))
        row = st.one_of(st.lists(entry, min_size=width, max_size=width), st.just([absent] * width))
        return torch.tensor(draw(st.lists(row, min_size=count, max_size=count)), dtype=torch.float64)

    first = draw(st.integers(0, 1000))
    return Rows(matrix(NO_POSITIVE), matrix(NO_NEGATIVE), None, first + torch.arange(count), DIM)


def kept_by_hand(rows: Rows, mine) -> list[tuple[set[int], set[int]]]:
    """The columns of positives and of negatives that a loop keeps of each row."""
    kept = []
    for positives, negatives, key in zip(rows.positives, rows.negatives, rows.keys.tolist(), strict=True):
        pairs = ({j: s for j, s in enumerate(kind) if s.isfinite()} for kind in (positives, negatives))
        # The loops add the number of the call themselves.
        anchor = mine(Anchor(*pairs, label=0, place=key - (1 << 32), dim=rows.dim))
        kept.append((set(anchor.positives), set(anchor.negatives)))
    return kept


def kept(rows: Rows) -> list[tuple[set[int], set[int]]]:
    return [
        tuple(set(kind.isfinite().nonzero()[:, 0].tolist()) for kind in row)
        for row in zip(rows.positives, rows.negatives, strict=True)
    ]


@given(rows=rows())
@settings(max_examples=40, deadline=None)
def test_keeps_what_a_loop_keeps(rows: Rows) -> None:
    before = rows.positives.clone(), rows.negatives.clone()
    for name, (miner, reference) in MINERS.items():
        mined = miner(rows)
        assert kept(mined) == kept_by_hand(rows, reference), name
        # Selected pairs are as they were, others have become padding, and the given rows are untouched.
        for new, old, copy in zip(mined[:2], rows[:2], before, strict=True):
            assert torch.equal(torch.where(new.isfinite(), new, 0), torch.where(new.isfinite(), old, 0)), name
            assert torch.equal(old, copy), name
        assert (mined.positives > NO_NEGATIVE).all(), name
        assert (mined.negatives < NO_POSITIVE).all(), name


@pytest.mark.parametrize("name", MINERS)
@pytest.mark.parametrize("offset", [None, 2])
def test_neither_layout_nor_tiles_change_the_choice(name: str, offset: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    labels, others = (torch.randint(0, 5, (n,), generator=generator) for n in (9, 14))
    x, y = (torch.randn(n, DIM, generator=generator) for n in (9, 14))
    y[3], y[7] = y[4], y[8]  # pairs that tie
    if offset is not None:
        others[offset : offset + 9], y[offset : offset + 9] = labels, x
    source = PairSource.from_batch(x, labels, y, others, offset)
    similarity = source.anchors @ source.references.T
    columns = source.class_columns
    expected = None
    for layout, kind in ((columns, ClassPairs), (None, MaskedPairs)):
        for tile in (9, 1, 2, 5):
            choice = []
            for start in range(0, 9, tile):
                span = slice(start, min(start + tile, 9))
                pairs = source.pairs(span, layout)
                assert isinstance(pairs, kind)
                mined = MINERS[name][0](Rows(*pairs.split(similarity[span].clone()), *source.identities(span)))
                choice.append(pairs.join(mined.positives.isfinite().float(), 2 * mined.negatives.isfinite().float()))
            expected = torch.cat(choice) if expected is None else expected
            assert torch.equal(torch.cat(choice), expected)
    assert expected.count_nonzero() > 0


# Below the cutoff of 0.5, in between, and beyond that of 1.4, which is reached at a similarity of 0.02.
SIMILARITIES = [0.99, 0.9, 0.7, 0.5, 0.3, 0.1, 0.05, 0.01, -0.5, NO_NEGATIVE]


def probabilities_by_hand(dim: int, similarities: list[float] = SIMILARITIES) -> list[float]:
    """In proportion to 1 / q(distance), with distances below the cutoff as far as it and none beyond the other."""
    weights = []
    for s in similarities:
        distance = max(math.sqrt(2 - 2 * s), 0.5)
        q = distance ** (dim - 2) * (1 - distance**2 / 4) ** ((dim - 3) / 2) if distance < 1.4 else math.inf
        weights.append(1 / q)
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 16])
@pytest.mark.parametrize("seed", [0, 7])
def test_draws_with_the_probabilities_of_the_paper(dim: int, seed: int) -> None:
    count = 50_000
    mined = DistanceWeightedMiner(num_samples=1, seed=seed)(many_rows(SIMILARITIES, count, dim))
    chosen = mined.negatives.isfinite()
    assert (chosen.sum(dim=1) == 1).all()
    expected = torch.tensor(probabilities_by_hand(dim), dtype=torch.float64)
    assert not chosen.sum(dim=0)[expected == 0].any()
    possible = expected * count > 5
    observed, fractions = chosen.sum(dim=0)[possible], expected[possible] / expected[possible].sum()
    assert chisquare(observed, fractions * observed.sum()).pvalue > 1e-3


@pytest.mark.parametrize("draws", [None, 3])
def test_draws_are_with_replacement_and_as_many_as_positives(draws: int | None) -> None:
    mined = DistanceWeightedMiner(draws)(many_rows(SIMILARITIES, 20_000, 3, positives=3 if draws is None else 1))
    frequency = mined.negatives.isfinite().double().mean(dim=0)
    expected = [1 - (1 - p) ** 3 for p in probabilities_by_hand(3)]
    assert frequency.tolist() == pytest.approx(expected, abs=4 * math.sqrt(0.25 / 20_000))
    assert mined.negatives.isfinite().sum(dim=1).unique().tolist() == [1, 2, 3]


def test_an_anchor_without_positives_draws_nothing_by_default() -> None:
    rows = one_row([NO_POSITIVE, NO_POSITIVE], [0.9, 0.5])
    assert kept(DistanceWeightedMiner()(rows)) == [(set(), set())]
    assert kept(DistanceWeightedMiner(num_samples=50)(rows)) == [(set(), {0, 1})]


def test_draws_depend_on_seed_and_keys_and_on_nothing_else() -> None:
    torch_state, numpy_state, python_state = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    some = many_rows(SIMILARITIES, 200, 3)
    first = DistanceWeightedMiner(num_samples=1)(some)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()
    assert random.getstate() == python_state
    torch.manual_seed(5)
    assert torch.equal(DistanceWeightedMiner(num_samples=1)(some).negatives, first.negatives)
    assert not torch.equal(DistanceWeightedMiner(num_samples=1, seed=1)(some).negatives, first.negatives)
    later = some._replace(keys=some.keys + (1 << 32))
    assert not torch.equal(DistanceWeightedMiner(num_samples=1)(later).negatives, first.negatives)
    piece = Rows(some.positives[50:80], some.negatives[50:80], None, some.keys[50:80], 3)
    assert torch.equal(DistanceWeightedMiner(num_samples=1)(piece).negatives, first.negatives[50:80])


@pytest.mark.parametrize("dim", [1, 2, 3, 512])
def test_extremes(dim: int) -> None:
    miner = DistanceWeightedMiner(num_samples=64)
    assert kept(miner(one_row([0.5], [1.0, 1.0, 1.0], dim)))[0][1] == {0, 1, 2}  # identical vectors: alike
    assert kept(miner(one_row([0.5], [0.0, -0.5, -1.0], dim)))[0][1] == set()  # all beyond the cutoff
    assert kept(miner(one_row([0.5], [NO_NEGATIVE] * 3, dim)))[0][1] == set()


def test_in_many_dimensions_the_nearest_is_all_but_certain() -> None:
    """There random points lie about 1.41 apart, and 1 / q spans more than float32 does."""
    for dtype in (torch.float32, torch.float64):
        row = one_row([0.5], [0.05, 0.9, 0.5, 0.3], 512, dtype)
        assert kept(DistanceWeightedMiner(num_samples=9)(row))[0][1] == {1}
