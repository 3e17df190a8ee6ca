"""Arrays in temporary files, mapped into memory: what is larger than the memory that a process may take."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Iterable
from typing import BinaryIO

import numpy as np

from vicinal.utils import distributed
from vicinal.utils.arrays import Floats
from vicinal.utils.errors import InputError


def temporary_map(blocks: Iterable[Floats], shape: tuple[int, int], what: str) -> Floats:
    """Write blocks of rows to a temporary file without a name, and map it into memory.

    The system deletes the file as soon as no process maps it, also when they are killed. It is in the folder that the
    environment variable `TMPDIR` names. Of the processes of a group on one machine, which all call this function, the
    first consumes the blocks, and the others map its file.

    Args:
        blocks: [some, dim] each; they are converted to float32.
        shape: the rows and columns of all blocks together.
        what: what the rows are; the message of an error starts with it.

    Returns:
        float32 [rows, dim], read-only.

    Raises:
        InputError: there is not enough space.

    Example:
        >>> temporary_map([np.zeros((1, 2), np.float32), np.ones((2, 2), np.float32)], (3, 2), "vectors").sum()
        np.float32(4.0)
    """
    with tempfile.TemporaryFile() as file:
        if distributed.world_size() == 1:
            return _written(file, blocks, shape, what)
        machines = distributed.all_gather_objects(platform.node())
        first = machines.index(platform.node())
        own = _written(file, blocks, shape, what) if first == distributed.rank() else None
        paths = distributed.all_gather_objects(f"/proc/{os.getpid()}/fd/{file.fileno()}")
        try:
            return _mapped(paths[first], shape) if own is None else own
        except OSError:  # not Linux, or another machine of that name
            return _written(file, blocks, shape, what)
        finally:
            distributed.barrier()  # until then the file of the first process stays open


def _written(file: BinaryIO, blocks: Iterable[Floats], shape: tuple[int, int], what: str) -> Floats:
    """Write all blocks to a file, and map it."""
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
    return np.memmap(file, np.float32, "r", shape=shape)
