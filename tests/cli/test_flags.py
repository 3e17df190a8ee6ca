"""Flags generated from dataclasses of settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from vicinal.cli.flags import Parser, add_settings, read_settings
from vicinal.cli.inputs import BENCHMARKS
from vicinal.data import benchmarks
from vicinal.utils.errors import InputError


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
        name: the name.
    """

    size: int | None = None
    rate: float = 0.0
    kind: Literal["a", "b"] = "a"
    scales: tuple[float, ...] | None = None
    exact: bool = False
    fractions: dict[str, float] | str | None = None
    name: str = "x"

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise InputError(f"rate = {self.rate} must not be negative")


def parser(prefix: str = "") -> Parser:
    made = Parser(prog="test")
    add_settings(made, Options, prefix=prefix)
    return made


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], Options()),
        (["--size", "3", "--rate=0.5", "--kind", "b"], Options(3, 0.5, "b")),
        (["--scales", "1", "0.7", "--exact"], Options(scales=[1.0, 0.7], exact=True)),  # type: ignore[arg-type]
        (["--fractions", "{train: 0.8, val: 0.2}"], Options(fractions={"train": 0.8, "val": 0.2})),
        (["--fractions", "file.csv", "--name", "y"], Options(fractions="file.csv", name="y")),
    ],
)
def test_values_are_read_by_type(words: list[str], expected: Options) -> None:
    assert read_settings(Options, parser().parse_args(words)) == expected


def test_a_prefix_and_further_values() -> None:
    arguments = parser("noise.").parse_args(["--noise.rate", "0.25"])
    assert read_settings(Options, arguments, "noise.", name="z") == Options(rate=0.25, name="z")


def test_help_has_the_docstring_and_the_defaults() -> None:
    text = " ".join(parser().format_help().split())
    assert "--size INT the size in %; the default: all --rate FLOAT the rate (default: 0.0)" in text
    assert "--kind {a,b} the kind (default: a)" in text
    assert "--scales FLOAT [FLOAT ...] the scales. The default takes one --exact be exact --fractions" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--size", "many"], "argument --size: many is not an integer"),
        (["--kind", "c"], "argument --kind: invalid choice: 'c'"),
        (["--scales"], "argument --scales: expected at least one argument"),
        (["--siz", "3"], "unrecognized arguments: --siz 3"),
    ],
)
def test_an_error_is_one_line(words: list[str], message: str, capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        parser().parse_args(words)
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith(f"test: error: {message}")


def test_the_benchmarks_that_help_names() -> None:
    assert {*BENCHMARKS} == {*benchmarks.BENCHMARKS}
