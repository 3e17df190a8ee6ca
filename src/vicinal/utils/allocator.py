"""The memory allocator of the C library: it keeps large blocks for the next layer instead of returning them."""

from __future__ import annotations

import ctypes
import os
from functools import cache

SWITCH = "VICINAL_KEEP_LARGE_BLOCKS"
OWN_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_")  # of the user, for glibc
OTHER_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")

# Parameters of mallopt in glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -3, -4, -8
MAX_BLOCK = 2**30  # bytes of the largest block that is kept
MAX_FREE = 2**31 - 1  # bytes of free memory that are kept at the end of the heap; the largest int


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
    # All threads share one heap, since those of other threads cannot hold blocks above 64 MB. Versions of glibc before
    # 2.35 refuse so large a threshold, but allow to never map blocks.
    mallopt(M_ARENA_MAX, 1)
    is_kept = mallopt(M_MMAP_THRESHOLD, MAX_BLOCK) or mallopt(M_MMAP_MAX, 0)
    return bool(is_kept and mallopt(M_TRIM_THRESHOLD, MAX_FREE))


def release_memory() -> None:
    """Return the memory of free blocks to the system, as between two phases of a job.

    Example:
        >>> release_memory()
    """
    if keep_large_blocks():
        ctypes.CDLL(None).malloc_trim(0)


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
