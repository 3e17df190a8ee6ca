"""Data sets to measure with, one a file; each is a function from a folder that keeps it to a table."""

from collections.abc import Callable
from pathlib import Path

from vicinal.data.benchmarks.digits import digits
from vicinal.data.benchmarks.glyphs import glyphs
from vicinal.data.benchmarks.omniglot import omniglot
from vicinal.data.table import Table

BENCHMARKS: dict[str, Callable[[str | Path | None], Table]] = {
    "digits": digits,
    "glyphs": glyphs,
    "omniglot": omniglot,
}

__all__ = ["BENCHMARKS", "digits", "glyphs", "omniglot"]
