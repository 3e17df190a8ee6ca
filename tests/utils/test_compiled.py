"""Compiled code comes from Numba's cache where that is sound, and is compiled in memory where it is not."""

import errno
import importlib.util
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba.core.caching import IndexDataCacheFile

from vicinal.utils.compiled import compiled


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "script.py"
    path.write_text("def double(numbers):\n    return 2 * numbers.sum()\n")
    return path


def cache_hits(script: Path) -> int:
    """Compile and call the function as a new process would; return how often it was found in the cache."""
    spec = importlib.util.spec_from_file_location("script", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    double = compiled(module.double)
    assert double(np.arange(4)) == 12
    return sum(double.stats.cache_hits.values())


def cached(script: Path) -> list[Path]:
    return sorted(path for path in (script.parent / "cache").rglob("*") if path.suffix in (".nbi", ".nbc"))


@pytest.mark.parametrize("damage", ["truncated", "empty", "other"])
def test_damaged_files_of_the_cache_are_replaced(damage: str, script: Path) -> None:
    assert [cache_hits(script), cache_hits(script)] == [0, 1]
    files = cached(script)
    assert [path.suffix for path in files] == [".nbc", ".nbi"]
    for path in files:
        data = path.read_bytes()
        contents = {"truncated": data[: len(data) // 2], "empty": b"", "other": b"c__nothing__\nthing\n."}
        path.write_bytes(contents[damage])
        assert [cache_hits(script), cache_hits(script)] == [0, 1]


def test_a_full_disk_is_no_error(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(IndexDataCacheFile, "_open_for_write", fail)
        assert [cache_hits(script), cache_hits(script)] == [0, 0]
    assert [cache_hits(script), cache_hits(script)] == [0, 1]


def test_no_folder_that_can_be_written_is_no_error(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr("vicinal.utils.compiled._Cache.__init__", fail)
    assert [cache_hits(script), cache_hits(script)] == [0, 0]
