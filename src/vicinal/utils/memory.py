"""How much memory is available, and checks of what is about to be allocated."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from pathlib import Path

from vicinal.utils.errors import InputError

MAX_FRACTION = 0.8  # of the available memory
CGROUP = Path("/sys/fs/cgroup")
CGROUP_FILES = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))


def check_memory(num_bytes: int, what: str) -> None:
    """Check that memory is available for what is about to be allocated, and some more for what is done with it.

    Args:
        num_bytes: the estimate.
        what: what the memory is for; the message of an error starts with it.

    Raises:
        InputError: it is more than 80 % of what is available; the message has both figures.

    Example:
        >>> check_memory(2**60, "a.npy")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        vicinal.utils.errors.InputError: a.npy: about 1,152,921,504.6 GB of memory are needed, 80 % of the ... GB \
that are available can be used
    """
    available = available_memory()
    if num_bytes > MAX_FRACTION * available:
        needed = f"about {num_bytes / 1e9:,.1f} GB of memory are needed"
        usable = f"{100 * MAX_FRACTION:g} % of the {available / 1e9:,.1f} GB that are available can be used"
        raise InputError(f"{what}: {needed}, {usable}")


def available_memory() -> int:
    """The number of bytes that this process can still allocate, by the system, its container and its own limits."""
    return max(0, min(_of_system(), _of_container(), *_of_limits()))


def _of_system() -> int:
    with suppress(OSError, ValueError):
        return _sizes(Path("/proc/meminfo"))["MemAvailable"]
    return sys.maxsize


def _of_container() -> int:
    for limit, usage in CGROUP_FILES:
        with suppress(OSError, ValueError):  # no such file, or its content is "max"
            return int((CGROUP / limit).read_text()) - int((CGROUP / usage).read_text()) + _reclaimable()
    return sys.maxsize


def _reclaimable() -> int:
    """The bytes of cached files that count as used by the container, but are given up when memory is needed."""
    with suppress(OSError, ValueError):
        found = re.search(r"^inactive_file (\d+)$", (CGROUP / "memory.stat").read_text(), re.MULTILINE)
        return int(found[1]) if found else 0
    return 0


def _of_limits() -> list[int]:
    """What is left of the limits of this process (`ulimit -v` and `ulimit -d`)."""
    try:
        import resource

        used = _sizes(Path("/proc/self/status"))
    except (ImportError, OSError, ValueError):  # not on Linux
        return [sys.maxsize]
    limits = ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData"))
    soft = [(resource.getrlimit(kind)[0], used.get(name, 0)) for kind, name in limits]
    return [sys.maxsize if limit == resource.RLIM_INFINITY else limit - each for limit, each in soft]


def _sizes(path: Path) -> dict[str, int]:
    """The sizes in a file of the kernel, with lines such as `MemFree: 12 kB`, in bytes."""
    return {name: 1024 * int(size) for name, size in re.findall(r"^(\w+):\s+(\d+) kB$", path.read_text(), re.MULTILINE)}
