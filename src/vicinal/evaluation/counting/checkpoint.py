"""Checkpoints of a ranking: what has been counted so far, in files, so that an interrupted evaluation goes on."""

from __future__ import annotations

import io
import re
import time
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np

from vicinal.utils import distributed
from vicinal.utils.arrays import Booleans, ShortIntegers
from vicinal.utils.console import is_main_process
from vicinal.utils.errors import InputError
from vicinal.utils.files import write_bytes
from vicinal.utils.locks import hold_lock

SECONDS_BETWEEN_SAVES = 60.0
LOCK = ".lock"
COUNTS = re.compile(r"counts-\d+-\d+\.npz")
TEMPORARY_COUNTS = re.compile(r"\.counts-\d+-\d+\.npz\.[0-9a-f]{8}\.tmp")


class Counting(Protocol):
    """What counts for some queries at one level; see :class:`~vicinal.evaluation.counting.counter.Counter`."""

    @property
    def num_before(self) -> ShortIntegers: ...

    @property
    def is_tied(self) -> Booleans: ...

    def restore(self, num_before: ShortIntegers, is_tied: Booleans) -> None: ...


class CountCheckpoint:
    """The counts of one process for some queries, in a file that is written every minute.

    Args:
        folder: where the files of an evaluation are.
        start: the first of the queries, by which the file is named.
        rank: number of this process, by which it is named too.
        fingerprint: of all that determines the counts; a file with another one is refused.
        counters: what counts, at each level of labels.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     first = list(CountCheckpoint(Path(folder), 0, 0, "1f", []).uncounted([0, 100, 200], total=3))
        ...     again = list(CountCheckpoint(Path(folder), 0, 0, "1f", []).uncounted([0, 100, 200], total=3))
        >>> first, again
        ([0, 100, 200], [])
    """

    def __init__(self, folder: Path, start: int, rank: int, fingerprint: str, counters: Sequence[Counting]) -> None:
        self.path = folder / f"counts-{start}-{rank}.npz"
        self._fingerprint, self._counters = fingerprint, counters

    def uncounted(self, tops: Iterable[int], total: int) -> Iterator[int]:
        """Yield the rows of tiles that are not counted yet; each must be counted before the next is asked for.

        Args:
            tops: all rows of tiles.
            total: their number.

        Raises:
            InputError: the file is of another evaluation.
            OSError: the file cannot be written.
        """
        done, saved_at = self._load(), time.monotonic()
        for top in islice(tops, done, None):
            yield top
            done += 1
            if done == total or time.monotonic() - saved_at >= SECONDS_BETWEEN_SAVES:
                self._save(done)
                saved_at = time.monotonic()

    def _save(self, done: int) -> None:
        arrays: dict[str, np.ndarray] = {"done": np.array(done), "fingerprint": np.array(self._fingerprint)}
        for level, counter in enumerate(self._counters):
            arrays |= {f"num_before_{level}": counter.num_before, f"is_tied_{level}": counter.is_tied}
        file = io.BytesIO()
        np.savez(file, **arrays)  # type: ignore[arg-type]
        write_bytes(self.path, file.getbuffer())

    def _load(self) -> int:
        """Restore the counts; return how many rows of tiles they are of, 0 without a file."""
        try:
            with np.load(self.path, allow_pickle=False) as arrays:
                if str(arrays["fingerprint"]) != self._fingerprint:
                    raise ValueError("another evaluation")
                for level, counter in enumerate(self._counters):
                    counter.restore(arrays[f"num_before_{level}"], arrays[f"is_tied_{level}"])
                return int(arrays["done"])
        except FileNotFoundError:
            return 0
        except (KeyError, ValueError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile):  # of a damaged file too
            raise InputError(
                f"{self.path.parent} holds the checkpoint of another evaluation: other embeddings, labels, settings or "
                "number of processes; delete it, or name another folder"
            ) from None


@contextmanager
def holding_checkpoint(folder: str | Path | None) -> Iterator[None]:
    """Keep a folder of checkpoints to this evaluation for a block, at the end of which its files are deleted.

    The folder is created if it does not exist, so that one that cannot be written is noticed before anything is
    counted. After an error the counts stay, and the next evaluation goes on from there. The processes of
    `torch.distributed` that divide the evaluation all open this context: the main process holds the folder for all, and
    when all are done, each deletes what is on its disk, which nodes need not share.

    Args:
        folder: None: there is no checkpoint.

    Raises:
        InputError: another process holds the folder, or it is a file.
        OSError: it cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, holding_checkpoint(f"{folder}/counts"):
        ...     [path.name for path in Path(folder, "counts").iterdir()]
        ['.lock']
    """
    if folder is None:
        yield
        return
    with _held(Path(folder)) if is_main_process() else nullcontext():
        yield
        distributed.barrier()
        _delete_counts(Path(folder))


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder for a block; at the end a folder without counts and other files is deleted."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is no folder; name another place for the checkpoint")
    folder.mkdir(parents=True, exist_ok=True)
    with hold_lock(folder / LOCK, 0, f"evaluate with the checkpoint {folder}"):
        try:
            yield
        finally:
            if not _files(folder, COUNTS):
                (folder / LOCK).unlink(missing_ok=True)
                _delete_counts(folder)


def _delete_counts(folder: Path) -> None:
    """Delete the files of an evaluation that is done, and the folder if nothing else is in it."""
    for path in _files(folder, COUNTS) + _files(folder, TEMPORARY_COUNTS):  # of a killed process
        path.unlink(missing_ok=True)
    with suppress(OSError):  # missing, or not empty
        folder.rmdir()


def _files(folder: Path, name: re.Pattern[str]) -> list[Path]:
    return [path for path in folder.glob("*.*") if name.fullmatch(path.name)]
