"""What is available, by the system, the container and the limits of the process."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.refusals import refused_call
from vicinal.utils import memory
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
    refused_call(message, check_memory, 1_700_000_000, "v.npy")


FAULTS = """
import resource, sys
if sys.argv[1] == "keep":
    import vicinal
    assert vicinal.keep_large_blocks()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(2**26)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""
IS_GLIBC = memory._is_glibc()


def page_faults(mode: str) -> int:
    command = [sys.executable, "-c", FAULTS, mode]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not IS_GLIBC, reason="the C library is not glibc")
def test_a_freed_block_is_used_again_without_page_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (memory.SWITCH, "LD_PRELOAD", "GLIBC_TUNABLES", *memory.OWN_SETTINGS):
        monkeypatch.delenv(name, raising=False)
    assert page_faults("keep") < 100
    assert page_faults("default") > 10_000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (memory.SWITCH, "0"),
        ("MALLOC_TRIM_THRESHOLD_", "1000000"),
        ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=1000"),
        ("LD_PRELOAD", "/usr/lib/libjemalloc.so.2"),
    ],
)
def test_settings_of_the_user_are_left_alone(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: pytest.fail("the C library was called"))
    assert not memory.keep_large_blocks.__wrapped__()
    monkeypatch.undo()
    monkeypatch.setattr(memory, "_is_glibc", lambda: False)
    monkeypatch.setattr(memory, "_is_set_by_user", lambda: False)
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: pytest.fail("the C library was called"))
    assert not memory.keep_large_blocks.__wrapped__()
