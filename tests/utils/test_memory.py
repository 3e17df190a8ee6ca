"""What is available, by the system, the container and the limits of the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vicinal.utils import memory
from vicinal.utils.errors import InputError
from vicinal.utils.memory import available_memory, check_memory


def test_a_limit_of_the_process_counts() -> None:
    script = (
        "import resource; from vicinal.utils.memory import available_memory\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30)); print(available_memory())"
    )
    out = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert 2**28 < int(out) < 2**30


def test_a_limit_of_the_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    free = available_memory()
    assert free > 2**20
    for name, text in (("memory.max", "3000"), ("memory.current", "2500"), ("memory.stat", "anon 7\ninactive_file 40")):
        (tmp_path / name).write_text(text)
    assert available_memory() == 540
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory() > 2**20
    (tmp_path / "memory.stat").unlink()
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("900")
    (tmp_path / "memory" / "memory.usage_in_bytes").write_text("1000")
    assert available_memory() == 0


def test_an_estimate_above_it_is_an_error_with_both_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 2_000_000_000)
    check_memory(1_600_000_000, "v.npy")
    message = r"^v\.npy: about 1\.7 GB of memory are needed, 80 % of the 2\.0 GB that are available can be used$"
    with pytest.raises(InputError, match=message):
        check_memory(1_700_000_000, "v.npy")
