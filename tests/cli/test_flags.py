"""Help of flags that are generated from dataclasses of settings, and of the benchmarks."""

from dataclasses import dataclass
from typing import Literal

from vicinal.cli.flags import Parser, add_settings
from vicinal.cli.inputs import BENCHMARKS
from vicinal.data import benchmarks


@dataclass(frozen=True)
class Options:
    """Some options.

    Args:
        size: the size in %; None: all.
        rate: the rate.
        kind: the kind.
        scales: the scales. None takes one.
        exact: be exact.
        fractions: the fractions.
    """

    size: int | None = None
    rate: float = 0.0
    kind: Literal["a", "b"] = "a"
    scales: tuple[float, ...] | None = None
    exact: bool = False
    fractions: dict[str, float] | str | None = None


def test_help_has_the_docstring_and_the_defaults() -> None:
    parser = Parser(prog="test")
    add_settings(parser, Options)
    text = " ".join(parser.format_help().split())
    assert "--size INT the size in %; the default: all --rate FLOAT the rate (default: 0.0)" in text
    assert "--kind {a,b} the kind (default: a)" in text
    assert "--scales FLOAT [FLOAT ...] the scales. The default takes one --exact be exact --fractions" in text


def test_the_benchmarks_that_help_names() -> None:
    assert {*BENCHMARKS} == {*benchmarks.BENCHMARKS}
