"""What pages, analyses and pictures load."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("vicinal.report.page, vicinal.analysis", "matplotlib"),
        ("vicinal.report.page, vicinal.report.plots, vicinal.report.refiner_depths", "vicinal.training"),
    ],
)
def test_what_is_not_needed_is_not_loaded(modules: str, absent: str) -> None:
    script = f"import sys, {modules}; print(any(name.startswith({absent!r}) for name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert loaded == "False\n"
