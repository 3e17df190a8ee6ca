"""Memory: the available amount, the allocator of the C library, and temporary files that are mapped into memory."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from vicinal.utils.arrays import Floats

MAX_FRACTION = 0.8  # of the available memory
CGROUP = Path("/sys/fs/cgroup")
CGROUP_FILES = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
SWITCH = "VICINAL_KEEP_LARGE_BLOCKS"
OWN_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_")  # of the user, for glibc
OTHER_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")
# Parameters of mallopt in glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
MAX_BLOCK = 2**30  # bytes of the largest block that is kept
MAX_FREE = 2**31 - 1  # bytes of free memory that are kept at the end of the heap; the largest int


def check_memory(num_bytes: int, what: str) -> None:
    """Raise InputError, which begins with `what`, if an allocation takes more than 80 % of the available memory."""
    available = available_memory()
    if num_bytes > MAX_FRACTION * available:
        needed = f"about {num_bytes / 1e9:,.1f} GB of memory are needed"
        usable = f"{100 * MAX_FRACTION:g} % of the {available / 1e9:,.1f} GB that are available can be used"
        raise InputError(f"{what}: {needed}, {usable}")


def available_memory() -> int:
    """The number of bytes that this process can still allocate, by the system, its container and its own limits."""
    return max(0, min(_system_available(), _container_available(), *_limits_available()))


def _system_available() -> int:
    with suppress(OSError, ValueError):
        return _sizes(Path("/proc/meminfo"))["MemAvailable"]
    return sys.maxsize


def _container_available() -> int:
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


def _limits_available() -> list[int]:
    """The bytes that are left of the limits of this process (`ulimit -v` and `ulimit -d`)."""
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


@cache
def keep_large_blocks() -> bool:
    """Let the C library keep the memory of large blocks that are freed, for the whole process.

    By default glibc returns every block above 32 MB to the kernel as soon as it is freed, and smaller ones often. A
    network frees and allocates such blocks in every layer, and the kernel clears each page again: up to two thirds of
    the time of an embedding on a CPU. Models, losses and the command call this function; call it in your own loops
    before they start. Only the first call has an effect.

    Nothing is changed where the C library is not glibc (musl, macOS, Windows), where another allocator is preloaded
    (jemalloc, tcmalloc, mimalloc), where the environment sets glibc's thresholds itself, or with
    ``VICINAL_KEEP_LARGE_BLOCKS=0`` in the environment.

    Returns:
        Whether large blocks are kept.

    Example:
        >>> kept = keep_large_blocks()
        >>> kept == keep_large_blocks()
        True
    """
    if _is_set_by_user() or not _is_glibc():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(M_ARENA_MAX, 1)  # all threads share one heap; those of other threads cannot hold blocks above 64 MB
    # Versions before 2.35 refuse so large a threshold.
    return bool(mallopt(M_MMAP_THRESHOLD, MAX_BLOCK) and mallopt(M_TRIM_THRESHOLD, MAX_FREE))


def _is_set_by_user() -> bool:
    """Whether the environment switches this module off, sets thresholds of glibc or preloads another allocator."""
    environment = os.environ
    return (
        environment.get(SWITCH, "1") == "0"
        or any(name in environment for name in OWN_SETTINGS)
        or "glibc.malloc" in environment.get("GLIBC_TUNABLES", "")
        or any(name in environment.get("LD_PRELOAD", "") for name in OTHER_ALLOCATORS)
    )


def _is_glibc() -> bool:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") is not None
    except (AttributeError, ValueError, OSError):  # Windows has no confstr, other C libraries not this name
        return False


def temporary_map(blocks: Iterable[Floats], shape: tuple[int, int], what: str) -> Floats:
    """Write blocks of rows to a temporary file without a name, as float32, and map it into memory, read-only.

    The system deletes the file as soon as no process maps it, also when they are killed. It is in the folder that the
    environment variable `TMPDIR` names. Of the processes of a group on one machine, which all call this function, the
    first consumes the blocks, and the others map its file.

    Args:
        blocks: [some, dim] each.
        shape: the rows and columns of all blocks together.
        what: the name of the rows, for the InputError if there is not enough space.
    """
    from vicinal.utils import distributed  # imports torch, which quick commands do without

    with tempfile.TemporaryFile() as file:
        if distributed.world_size() == 1:
            return _write_blocks(file, blocks, shape, what)
        machines = distributed.all_gather_objects(platform.node())
        first = machines.index(platform.node())
        own = _write_blocks(file, blocks, shape, what) if first == distributed.rank() else None
        paths = distributed.all_gather_objects(f"/proc/{os.getpid()}/fd/{file.fileno()}")
        try:
            return _mapped(paths[first], shape) if own is None else own
        except OSError:  # not Linux, or another machine of that name
            return _write_blocks(file, blocks, shape, what)
        finally:
            distributed.barrier()  # until then the file of the first process stays open


def _write_blocks(file: BinaryIO, blocks: Iterable[Floats], shape: tuple[int, int], what: str) -> Floats:
    import numpy as np

    needed, folder = 4 * shape[0] * shape[1], tempfile.gettempdir()
    if needed > (free := shutil.disk_usage(folder).free):
        raise InputError(
            f"{what}: {needed / 1e9:,.1f} GB are needed for a temporary file, {folder} has {free / 1e9:,.1f} GB; name "
            "another folder by the environment variable TMPDIR"
        )
    for block in blocks:
        with np.errstate(over="ignore"):  # a number too large for float32 becomes infinite
            file.write(np.ascontiguousarray(block, dtype=np.float32).data)
    file.flush()
    return _mapped(file, shape)


def _mapped(file: BinaryIO | str, shape: tuple[int, int]) -> Floats:
    import numpy as np

    return np.memmap(file, np.float32, "r", shape=shape)
