import subprocess
import sys

import pytest

from vicinal.utils import memory as allocator

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
IS_GLIBC = allocator._is_glibc()


def page_faults(mode: str) -> int:
    command = [sys.executable, "-c", FAULTS, mode]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not IS_GLIBC, reason="the C library is not glibc")
def test_a_freed_block_is_used_again_without_page_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (allocator.SWITCH, "LD_PRELOAD", "GLIBC_TUNABLES", *allocator.OWN_SETTINGS):
        monkeypatch.delenv(name, raising=False)
    assert page_faults("keep") < 100
    assert page_faults("default") > 10_000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (allocator.SWITCH, "0"),
        ("MALLOC_TRIM_THRESHOLD_", "1000000"),
        ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=1000"),
        ("LD_PRELOAD", "/usr/lib/libjemalloc.so.2"),
    ],
)
def test_settings_of_the_user_are_left_alone(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: pytest.fail("the C library was called"))
    assert not allocator.keep_large_blocks.__wrapped__()


def test_nothing_is_done_without_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "_is_glibc", lambda: False)
    monkeypatch.setattr(allocator, "_is_set_by_user", lambda: False)
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: pytest.fail("the C library was called"))
    assert not allocator.keep_large_blocks.__wrapped__()
