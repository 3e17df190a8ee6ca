"""Mutated files are read, or refused in one line; and the fuzzing finds what is neither."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests import fuzz
from vicinal.utils.errors import InputError


@pytest.mark.slow
def test_mutated_files_are_read_or_refused(tmp_path: Path) -> None:
    counts, findings = fuzz.fuzz(list(fuzz.KINDS), seconds=2, seed=0, parent=tmp_path)
    assert not findings
    assert {kind for each in counts for kind in fuzz.KINDS if each.startswith(f"{kind}:")} == set(fuzz.KINDS)


def fails() -> None:
    raise KeyError("label")


def says_much() -> None:
    raise InputError("first line\nsecond line")


@pytest.mark.parametrize(
    ("read", "found"),
    [
        (lambda: None, "read"),
        (lambda: Path("copy").write_text(""), "read"),
        (fails, "KeyError: 'label'"),
        (says_much, "an error of several lines"),
        (lambda: os.system("true"), "os.system"),
        (lambda: Path("~/fuzzed").expanduser().write_text(""), "/fuzzed"),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "the process ended by SIGTERM"),
        (lambda: np.ones(3 * 2**27), "MemoryError"),
        (lambda: [None for _ in iter(int, 1)], "more than 1 s"),
    ],
)
def test_what_is_found(read: Callable[[], object], found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(fuzz, "SECONDS", 1)
    monkeypatch.setitem(fuzz.KINDS, "case", fuzz.Kind(lambda folder: None, lambda folder: read()))
    (tmp_path / "case").mkdir()
    assert found in fuzz.outcome("case", tmp_path / "case")
