"""Keeping an index equal to a folder or table: new images are added, vanished ones dropped, changed ones replaced."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from vicinal.data.batches.image_dataset import NoReadableImageError
from vicinal.data.column_kinds import merged_kinds
from vicinal.data.columns import row_boxes
from vicinal.data.table import Table
from vicinal.retrieval.index.database import TIMEOUT, Database
from vicinal.retrieval.index.index import Index
from vicinal.retrieval.index.interface import ImageIndex
from vicinal.retrieval.index.metadata import FILE_COLUMNS, Metadata, converted_record, frame_of_table, kinds_and_records
from vicinal.retrieval.index.remote.engine_url import is_engine_url
from vicinal.utils.arrays import Integers
from vicinal.utils.console import log
from vicinal.utils.errors import IndexExistsError
from vicinal.utils.files import file_digest

if TYPE_CHECKING:
    from vicinal.workflows.embedded_table import EmbeddedTable

BLOCK_SIZE = 4096  # images that are embedded between two saves
NO_FILE = (-1, -1, "")


@dataclass(frozen=True)
class Changes:
    """The differences between an index and a table of images: rows of the table, or ids, int64 [n] each."""

    new: Integers
    changed: Integers  # whose files have changed since they were embedded, or may have changed
    same: Integers
    vanished: Integers  # the ids of images that are not in the table
    moved: Integers  # with the content of a file that is gone from its place
    moved_ids: Integers  # the ids that these have in the index
    num_unreadable: int = 0  # of new and changed images that are not in the index

    def __str__(self) -> str:
        numbers = {"new": self.new, "changed": self.changed, "vanished": self.vanished, "as before": self.same}
        words = [f"{len(rows):,} {name}" for name, rows in numbers.items()]
        words += [f"{len(self.moved):,} moved"] * bool(len(self.moved))
        words += [f"{self.num_unreadable:,} of them unreadable"] * bool(self.num_unreadable)
        return ", ".join(words)


def with_file_facts(table: Table) -> Table:
    """The table with size, time and hash of each file, by which later changes are found; -1 and "" without a file."""
    if not table.has("path"):
        return table
    known = {path: _file_facts(path) for path in dict.fromkeys(table.paths)}
    columns = zip(*(known[path] for path in table.paths), strict=True)
    return Table(table.frame.assign(**dict(zip(FILE_COLUMNS, columns, strict=True))))


def compare_files(metadata: Metadata, table: Table, below: str | Path | None = None) -> Changes:
    """Compare the images of an index with those of a table; only images in the folder `below` can have vanished.

    Images in folders that could not be listed have not vanished. An image is unchanged if its file has the same size
    and time, or else the same content. Images are identified by path and bounding box; of equal rows the last one
    counts. A new image with the content of a file that is gone from its place was moved.
    """
    rows = dict(zip(table.image_keys, range(len(table)), strict=True))
    keys = list(rows)
    ids = metadata.ids_by_key(keys)
    positions = np.array(list(rows.values()), dtype=np.int64)
    is_known = ids >= 0
    stored = metadata.lookup(ids[is_known]).reindex(columns=list(FILE_COLUMNS))
    paths = [table.paths[row] for row in positions[is_known]]
    facts = zip(*(stored[column] for column in FILE_COLUMNS), strict=True)
    is_same = np.array([_is_same(path, fact) for path, fact in zip(paths, facts, strict=True)], dtype=bool)
    known, new = positions[is_known], positions[~is_known]
    moved = _moved(metadata, table, new, set(keys))
    vanished = _vanished(metadata, set(keys), table.unlisted, below)
    return Changes(
        new=new[~np.isin(new, list(moved))],
        changed=known[~is_same],
        same=known[is_same],
        vanished=vanished[~np.isin(vanished, list(moved.values()))],
        moved=np.array(list(moved), dtype=np.int64),
        moved_ids=np.array(list(moved.values()), dtype=np.int64),
    )


def _moved(metadata: Metadata, table: Table, new: Integers, keys: set[str]) -> dict[int, int]:
    """The new rows whose files were elsewhere, with their ids in the index."""
    if not len(new) or not set(FILE_COLUMNS) <= set(metadata.frame):
        return {}
    is_left = np.array([key is not None and key not in keys for key in metadata.keys], dtype=bool)
    left = metadata.frame[is_left]
    is_gone = [_is_gone(path) for path in left["path"]]
    left = left[np.array(is_gone, dtype=bool) & (left["file_hash"].fillna("") != "").to_numpy(dtype=bool)]
    ids: dict[tuple[str | None, object], list[int]] = defaultdict(list)
    for content, number in zip(_contents(left, left["file_hash"]), left["id"].tolist(), strict=True):
        ids[content].append(number)  # copies have one content
    sizes, moved, rows = set(left["file_size"]), {}, table.frame.iloc[new]
    digests = [_digest_of_size(path, sizes) for path in rows["path"]]
    for row, content in zip(new.tolist(), _contents(rows, digests), strict=True):
        if ids.get(content):
            moved[row] = ids[content].pop(0)
    return moved


def _contents(frame: pd.DataFrame, digests: Iterable[str | None]) -> list[tuple[str | None, object]]:
    """The contents of the images of a frame: the digest of the file, and the bounding box within it."""
    return list(zip(digests, row_boxes(frame), strict=True))


def _digest_of_size(path: str, sizes: set[int]) -> str | None:
    """The digest of a file; None if it has another size than these or does not exist."""
    try:
        return file_digest(path) if os.stat(path).st_size in sizes else None
    except OSError:
        return None


def _is_gone(path: str) -> bool:
    """Whether a file is known not to exist; False if the system does not tell."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


def _vanished(metadata: Metadata, keys: set[str], unlisted: Collection[str], below: str | Path | None) -> Integers:
    folder = "" if below is None else os.path.join(os.path.abspath(below), "")
    unknown = tuple(os.path.join(os.path.abspath(each), "") for each in unlisted)
    gone = [
        key is not None and key not in keys and key.startswith(folder) and not key.startswith(unknown)
        for key in metadata.keys
    ]
    return metadata.ids[np.array(gone, dtype=bool)]


def _file_facts(path: str) -> tuple[int, int, str]:
    try:
        status = os.stat(path)
        return status.st_size, status.st_mtime_ns, file_digest(path)
    except OSError:
        return NO_FILE


def _is_same(path: str, facts: Sequence[Any]) -> bool:
    """Whether a file is unchanged since these facts were noted; False if they are missing."""
    size, time, digest = facts
    try:
        status = os.stat(path)
        if pd.isna(size) or status.st_size != size:
            return False
        return bool(status.st_mtime_ns == time) or file_digest(path) == digest
    except OSError:
        return True  # there is nothing to embed


def sync_index(
    folder: str | Path,
    table: Table,
    embed: Callable[[Table], EmbeddedTable],
    build: Callable[[EmbeddedTable], ImageIndex],
    upsert: Callable[[ImageIndex, EmbeddedTable], object],
    *,
    drop: bool = True,
    below: str | Path | None = None,
    root: str | None = None,
    timeout: float = TIMEOUT,
    block_size: int = BLOCK_SIZE,
) -> Changes:
    """Make an index hold the images of a table: embed new and changed images, and drop those that have vanished.

    The columns of unchanged and moved images are replaced by those of the table. The index is saved after each block of
    images, so that an interrupted call resumes there; other processes may search and write it meanwhile.

    Args:
        folder: of the index, or the URL of a database; it is created if it does not exist.
        table: the images, with paths.
        embed: embeds the images of some rows.
        build: creates a missing index, perhaps in a database, from the first block.
        upsert: adds a block to an index, in place of the same images.
        drop: whether images that have vanished are deleted.
        below: only images in this folder can have vanished; None: all with a path.
        root: the new root folder of the index, if images were moved and its root folder no longer exists.
        timeout: seconds to wait while another process writes the index.
        block_size: number of images that are embedded at a time.
    """
    exists = index_exists(folder, timeout)
    metadata = Metadata(pd.DataFrame({"id": np.array([], dtype=np.int64)}))
    if exists:
        with Index.load(folder, timeout) as index:
            metadata = index.rows_near(table.image_keys, None if below is None else str(below))
    changes = compare_files(metadata, table, below)
    if exists:
        _apply_without_embedding(folder, metadata, table, changes, drop, root, timeout)
    rows, num_unreadable = np.concatenate([changes.new, changes.changed]), 0
    for start in range(0, len(rows), block_size):
        facts = with_file_facts(table.take(rows[start : start + block_size]))  # of files before they are read
        try:
            embedded = embed(facts)
        except NoReadableImageError as error:
            log(f"left out: {error}")
            num_unreadable += len(facts)
            continue
        num_unreadable += len(facts) - len(embedded.table)
        exists = exists or index_exists(folder, timeout)  # another process may have built it meanwhile
        if not exists:
            exists = True
            with suppress(IndexExistsError):  # another process built it while this one did
                built = build(embedded)
                if isinstance(built, Index):
                    built.save(folder, timeout, overwrite=False)
                continue
        with Index.open(folder, timeout) as index:
            upsert(index, embedded)  # in place of changed images, or of those that another process added
        if start + block_size < len(rows):
            log(f"saved {start + block_size:,} of {len(rows):,} images to embed")
    return replace(changes, num_unreadable=num_unreadable)


def index_exists(place: str | Path, timeout: float = TIMEOUT) -> bool:
    """Whether there is an index in a folder, or at the URL of a database; raises if it is damaged."""
    if not is_engine_url(place):
        return Database.exists(Path(place))
    from vicinal.retrieval.index.remote.remote_index import RemoteIndex

    return RemoteIndex.exists(str(place), timeout)


def _apply_without_embedding(
    folder: str | Path, metadata: Metadata, table: Table, changes: Changes, drop: bool, root: str | None, timeout: float
) -> None:
    """Delete images that have vanished, and replace the columns of existing ones, if anything differs."""
    ids = np.concatenate([metadata.ids_by_key(table.take(changes.same).image_keys), changes.moved_ids])
    same = table.take(np.concatenate([changes.same, changes.moved]))
    facts = metadata.lookup(ids)[list(FILE_COLUMNS)] if len(ids) else None
    updated = same if facts is None else Table(same.frame.assign(**{name: facts[name] for name in FILE_COLUMNS}))
    differ = _differing(metadata, updated, ids)
    vanished = changes.vanished if drop else changes.vanished[:0]
    if not len(differ) and not len(vanished):
        return
    with Index.open(folder, timeout) as index:
        if len(differ):
            rows = differ[np.isin(ids[differ], index.present(ids[differ]))]  # others may have deleted some meanwhile
            index.update(ids[rows], updated.take(rows))
        index.delete(index.present(vanished))
        if len(changes.moved) and root is not None and index.root is not None and not os.path.isdir(index.root):
            index.root = root


def _differing(metadata: Metadata, table: Table, ids: Integers) -> Integers:
    """The rows of a table whose columns are not those of the images with these ids."""
    old, new = kinds_and_records(metadata.lookup(ids).drop(columns="id")), kinds_and_records(frame_of_table(table))
    kinds = merged_kinds(old[0], new[0])
    different = [
        converted_record(before, kinds) != converted_record(after, kinds)
        for before, after in zip(old[1], new[1], strict=True)
    ]
    return np.flatnonzero(different)
