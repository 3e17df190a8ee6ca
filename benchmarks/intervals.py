"""How often bootstrap intervals over classes hold the value that they are about, by the number of classes.

    python -m benchmarks.intervals                      # 2,000 test sets of each kind: about half an hour
    python -m benchmarks.intervals --repeats 200        # less

A test set is a sample of classes: each has its own difficulty and number of queries, and a metric is the mean over
all queries. The value that an interval is about is that of all classes, which is known here. Kinds of test sets:

- even: recall@1 near 60 %, 20 queries per class;
- high: recall@1 near 95 %, which is skewed;
- long tail: as even, with 5 to some hundred queries per class, larger classes being easier;
- mAP: scores between 0 and 1, near 40 %;
- paired: differences of two models on the same queries, -1, 0 or 1.

Methods: the percentile interval; the same with tails widened as Student's t is wider than the normal distribution
(expanded percentile: Hesterberg, "What teachers should know about the bootstrap", Am. Stat. 69, 2015); BCa (Efron,
"Better bootstrap confidence intervals", JASA 82, 1987); both; studentized, with the linearized standard error; and
Student's t with this standard error, without a bootstrap. `product` is what
`vicinal.evaluation.confidence_intervals` does.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import stats

from benchmarks.table import print_machine
from vicinal.evaluation.bootstrap import bootstrap_bounds, resample_weights
from vicinal.evaluation.resampling import Resampling, UnitTotals

Doubles = npt.NDArray[np.float64]
Sample = Callable[[np.random.Generator, int], tuple[Doubles, Doubles]]
LEVEL, RESAMPLES, LARGE = 0.95, 2000, 200_000


def even(rng: np.random.Generator, classes: int) -> tuple[Doubles, Doubles]:
    """The sums and counts of classes: 20 queries each, of which about 60 % are right."""
    counts = np.full(classes, 20)
    return rng.binomial(counts, rng.beta(1.5, 1.0, classes)).astype(float), counts.astype(float)


def high(rng: np.random.Generator, classes: int) -> tuple[Doubles, Doubles]:
    """As even, of which about 95 % are right."""
    counts = np.full(classes, 20)
    return rng.binomial(counts, rng.beta(4.75, 0.25, classes)).astype(float), counts.astype(float)


def long_tail(rng: np.random.Generator, classes: int) -> tuple[Doubles, Doubles]:
    """As even, with classes of all sizes; in larger ones more queries are right."""
    size = rng.normal(size=classes)
    counts = np.ceil(5 + 15 * np.exp(size)).astype(int)
    right = 1 / (1 + np.exp(-0.4 - 0.5 * size - rng.normal(size=classes)))
    return rng.binomial(counts, right).astype(float), counts.astype(float)


def mean_average_precision(rng: np.random.Generator, classes: int) -> tuple[Doubles, Doubles]:
    """Scores between 0 and 1, of about 0.4."""
    means = rng.beta(2.0, 3.0, classes)
    scores = rng.beta(3 * means[:, None], 3 * (1 - means[:, None]), (classes, 20))
    return scores.sum(axis=1), np.full(classes, 20.0)


def paired(rng: np.random.Generator, classes: int) -> tuple[Doubles, Doubles]:
    """Differences of two models, of which the second is right a little more often."""
    first = rng.beta(3.0, 2.0, classes)
    gain = np.clip(first + rng.normal(0.03, 0.08, classes), 0, 1)
    draws = rng.random((classes, 20))
    return ((draws < gain[:, None]).astype(float) - (draws < first[:, None])).sum(axis=1), np.full(classes, 20.0)


SAMPLES: dict[str, Sample] = {
    "even": even, "high": high, "long tail": long_tail, "mAP": mean_average_precision, "paired": paired,
}  # fmt: skip


def standard_errors(sums: Doubles, counts: Doubles, weights: Doubles) -> Doubles:
    """The linearized standard error of the ratio of weighted sums and counts, [samples]."""
    total, number = weights @ counts, weights.sum(axis=1)
    residuals = sums - (weights @ sums / total)[:, None] * counts
    squares = np.einsum("bn,bn->b", weights, residuals**2)
    result: Doubles = np.sqrt(squares * number / (number - 1)) / total
    return result


def bounds(rng: np.random.Generator, sums: Doubles, counts: Doubles) -> dict[str, tuple[float, float]]:
    """The interval of each method."""
    n, tails = len(sums), np.array([(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    weights = resample_weights(rng, RESAMPLES, n)
    means, mean = weights @ sums / (weights @ counts), sums.sum() / counts.sum()
    student = stats.t.ppf(tails, n - 1)
    expanded = stats.norm.cdf(np.sqrt(n / (n - 1)) * student)
    error = standard_errors(sums, counts, np.ones((1, n)))[0]
    errors = standard_errors(sums, counts, weights)
    ratios = (means - mean) / np.where(errors > 0, errors, np.inf)
    found = {
        "percentile": np.quantile(means, tails),
        "expanded": np.quantile(means, expanded),
        "BCa": np.quantile(means, _bca_tails(sums, counts, means, mean, tails)),
        "expanded BCa": np.quantile(means, _bca_tails(sums, counts, means, mean, expanded)),
        "studentized": mean - error * np.quantile(ratios, tails[::-1]),
        "t": mean + error * student,
    }
    totals = UnitTotals(sums[:, None], counts[:, None])
    low, high_ = bootstrap_bounds(totals, Resampling(num_resamples=RESAMPLES, seed=int(rng.integers(2**31))))
    return {name: (each[0], each[1]) for name, each in found.items()} | {"product": (low[0], high_[0])}


def _bca_tails(sums: Doubles, counts: Doubles, means: Doubles, mean: float, tails: Doubles) -> Doubles:
    below = np.clip((means < mean).mean() + (means == mean).mean() / 2, 1 / len(means), 1 - 1 / len(means))
    bias = stats.norm.ppf(below)
    left_out = (sums.sum() - sums) / (counts.sum() - counts)
    centered = left_out.mean() - left_out
    spread = (centered**2).sum() ** 1.5
    acceleration = (centered**3).sum() / (6 * spread) if spread else 0.0
    shifted = bias + stats.norm.ppf(tails)
    result: Doubles = stats.norm.cdf(bias + shifted / (1 - acceleration * shifted))
    return result


def main() -> None:
    """Print the coverage and the mean width of each method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--classes", type=int, nargs="+", default=[5, 10, 20, 30, 50, 100])
    arguments = parser.parse_args()
    print_machine()
    print(
        "| test set | classes | " + " | ".join(bounds(np.random.default_rng(0), np.arange(3.0), np.full(3, 3.0))) + " |"
    )
    for name, sample in SAMPLES.items():
        sums, counts = sample(np.random.default_rng(1), LARGE)
        value = sums.sum() / counts.sum()
        for classes in arguments.classes:
            rng = np.random.default_rng([2, classes])
            hits: dict[str, list[bool]] = {}
            widths: dict[str, list[float]] = {}
            for _ in range(arguments.repeats):
                for method, (low, top) in bounds(rng, *sample(rng, classes)).items():
                    hits.setdefault(method, []).append(low <= value <= top)
                    widths.setdefault(method, []).append(top - low)
            cells = [f"{np.mean(hits[each]):.3f} ({np.mean(widths[each]):.3f})" for each in hits]
            print(f"| {name} | {classes} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
