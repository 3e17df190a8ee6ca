"""Seeds and draws are functions of numbers, and look like chance."""

import pytest
import torch
from scipy.stats import chisquare, kstest

from vicinal.utils.seeds import derive_seed, uniform


def test_seeds_differ_wherever_numbers_do() -> None:
    seeds = {derive_seed(a, b, c) for a in range(8) for b in range(8) for c in range(8)}
    assert len(seeds) == 512
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert derive_seed(1, 2) == derive_seed(1, 2)
    assert derive_seed(2**40, 0) != derive_seed(0, 2**40)


KEYS = {
    "one after the other": torch.arange(20_000),
    "of a later call": torch.arange(20_000) + (12345 << 32),
    "one anchor in many calls": torch.arange(20_000) << 32,
    "spread": torch.arange(20_000) * 999_983,
    "negative": -torch.arange(20_000),
}


@pytest.mark.parametrize("seed", [0, 1, 2**63 + 5])
@pytest.mark.parametrize("name", KEYS)
def test_draws_are_uniform_over_keys(name: str, seed: int) -> None:
    draws = uniform(seed, KEYS[name], 3).double()
    assert 0 <= draws.min() <= draws.max() < 1
    assert all(kstest(column, "uniform").pvalue > 1e-4 for column in draws.T)


@pytest.mark.parametrize("name", KEYS)
def test_draws_know_nothing_of_each_other(name: str) -> None:
    """Neither those of one key, nor of neighboring keys, calls or seeds: the cells of a 16 x 16 board fill evenly."""
    draws, other_seed = uniform(0, KEYS[name], 2), uniform(1, KEYS[name], 1)
    pairs = [
        (draws[:, 0], draws[:, 1]),
        (draws[:-1, 0], draws[1:, 0]),
        (draws[:-1, 0], draws[1:, 1]),
        (draws[:, 0], other_seed[:, 0]),
    ]
    for x, y in pairs:
        cells = (x * 16).long() * 16 + (y * 16).long()
        assert chisquare(torch.bincount(cells, minlength=256)).pvalue > 1e-4


def test_a_draw_depends_on_its_key_and_number_alone() -> None:
    keys = torch.tensor([5, 1 << 40, -3, 5, 77])
    whole = uniform(9, keys, 6)
    assert torch.equal(whole[0], whole[3])
    assert torch.equal(torch.cat([uniform(9, key[None], 6) for key in keys]), whole)
    assert torch.equal(uniform(9, keys.flip(0), 6).flip(0), whole)
    assert torch.equal(uniform(9, keys, 2), whole[:, :2])
    assert uniform(9, keys[:0], 6).shape == (0, 6)


def splitmix64(bits: int) -> int:
    """Its finaliser, in integers that do not overflow."""
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB % 2**64
    return bits ^ bits >> 31


@pytest.mark.parametrize("seed", [0, 7, 2**63 + 5])
def test_draws_stay_what_they_are(seed: int) -> None:
    """On every machine and in every version, for a run that is resumed draws on as it began."""
    golden, keys = 0x9E3779B97F4A7C15, [0, 1, 3 << 32, -1, 2**63 - 1]
    first = [splitmix64((key + seed * golden) % 2**64) for key in keys]
    expected = [[splitmix64((bits + draw * golden) % 2**64) >> 40 for draw in (1, 2, 3)] for bits in first]
    assert (uniform(seed, torch.tensor(keys), 3).double() * 2**24).long().tolist() == expected


@pytest.mark.slow
def test_compiled_draws_are_the_same() -> None:
    compiled = torch.compile(uniform, fullgraph=True)
    for count in (1, 17, 1000):
        keys = torch.arange(count) + (3 << 32)
        assert torch.equal(compiled(5, keys, 4), uniform(5, keys, 4))
