"""The folder of a run on several nodes, which all of them must see."""

from __future__ import annotations

import os
import socket
import time

from vicinal.utils import distributed
from vicinal.utils.errors import InputError
from vicinal.utils.run_folder import RunFolder

WAIT_SECONDS = 30.0  # in which a network file system shows a new file on all nodes


def check_shared(run: RunFolder) -> None:
    """Check that all processes see the recipe and the lock of the run that the first process has written.

    Raises:
        InputError: some do not; where neither these nor the first process run, the process exits with status 2.
    """
    if distributed.world_size() == 1:
        return
    host, written = distributed.broadcast_object((socket.gethostname(), _content(run)))
    deadline = time.monotonic() + WAIT_SECONDS
    while (is_seen := _content(run) == written) is False and time.monotonic() < deadline:
        time.sleep(0.2)
    rank, ranks = distributed.rank(), range(distributed.world_size())
    blind = distributed.all_reduce_values([not is_seen and each == rank for each in ranks])
    if not any(blind):
        return
    if is_seen and rank > 0:
        raise SystemExit(2)
    names = ", ".join(str(each) for each in ranks if blind[each])
    raise InputError(
        f"{run.path}: the files that rank 0 writes there on {host} are not seen by rank {names}; all nodes must share "
        "the folder of a run"
    )


def _content(run: RunFolder) -> tuple[bytes | None, bytes | None]:
    """The recipe, and the lock, which names the process that trains; None for a file that is not there."""
    try:
        os.listdir(run.path)  # lets a network file system look for new files
    except OSError:
        return None, None
    found = [path.read_bytes() if path.is_file() else None for path in (run.recipe, run.lock)]
    return found[0], found[1]
