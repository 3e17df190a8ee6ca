"""A service under thousands of mixed requests, hostile ones too, which is killed twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.serving_soak import soak


@pytest.mark.slow
def test_nothing_leaks_is_lost_or_fails(tmp_path: Path) -> None:
    assert soak(tmp_path, total=4_000, num_kills=2) == []
