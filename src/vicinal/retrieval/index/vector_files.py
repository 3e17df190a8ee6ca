"""The vector files of an index, which its database names together with their digests."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from vicinal.retrieval.index.database import FILE, Database
from vicinal.retrieval.index.rescoring import HalfStore
from vicinal.utils.errors import InputError
from vicinal.utils.files import write_blocks
from vicinal.utils.memory import check_memory

VECTORS, CONTEXT, ORIGINALS = "vectors", "context", "originals"
SUFFIXES = {VECTORS: ".faiss", CONTEXT: ".faiss", ORIGINALS: ".f16"}
STALE_SECONDS = 3600.0  # a file that no database names for so long was written by a process that was killed
READ_BLOCK = 2**20
COPIES = 2  # of a file in memory: its bytes, and what they are read as
Names = dict[str, list[str]]
"""The name and the SHA-256 of the file of each part."""


def write_part(folder: Path, part: str, blocks: Iterable[bytes | memoryview]) -> list[str]:
    """Write a file of a new name; its name and digest are returned.

    Raises:
        OSError: it cannot be written.
    """
    digest, name = hashlib.sha256(), f"{part}-{secrets.token_hex(8)}{SUFFIXES[part]}"

    def digested() -> Iterator[bytes | memoryview]:
        for block in blocks:
            digest.update(block)
            yield block

    write_blocks(folder / name, digested())
    return [name, digest.hexdigest()]


def read_part(folder: Path, names: Names, part: str) -> bytes:
    """The content of a file.

    Raises:
        FileNotFoundError: it is not there, perhaps because another process has just replaced it.
        InputError: it is damaged.
    """
    path = folder / names[part][0]
    check_memory(COPIES * path.stat().st_size, str(path))
    data = path.read_bytes()
    _check(path, hashlib.sha256(data).hexdigest(), names[part][1])
    return data


def open_originals(folder: Path, names: Names, dim: int) -> HalfStore:
    """The vectors beside codes, which stay in their file; raises as :func:`read_part`."""
    path, digest = folder / names[ORIGINALS][0], hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(READ_BLOCK):
            digest.update(block)
        _check(path, digest.hexdigest(), names[ORIGINALS][1])
        return HalfStore.from_file(path, file, dim)


def _check(path: Path, digest: str, expected: str) -> None:
    if digest != expected:
        raise InputError(f"{path} is damaged: its content is not what was written; build the index again")


def are_there(folder: Path, names: Names) -> bool:
    """Whether all files of some names exist."""
    return all((folder / name).is_file() for name, _ in names.values())


def delete_unused(database: Database, folder: Path, *own: Names) -> None:
    """Delete files that the database does not name: those that this process wrote or read, and those of killed ones.

    The clock may have jumped, so that files of a process that writes now look old. They are deleted while nobody
    commits, and who commits looks whether its files are there (:func:`are_there`).

    Args:
        database: That of the index.
        folder: Its folder.
        own: Names of files that are no longer needed, unless the database names them.
    """
    with database.transaction():
        named = {name for name, _ in database.settings()["files"].values()}
        old = {name for names in own for name, _ in names.values()}
        for path in _data_files(folder):
            with suppress(OSError):  # such as where a reader has it open on Windows
                is_stale = abs(time.time() - path.stat().st_mtime) > STALE_SECONDS
                if path.name not in named and (path.name in old or is_stale):
                    path.unlink()


def check_target(folder: Path) -> None:
    """Raise InputError if an index cannot be in `folder`: it is a file, holds something else, or is in an index."""
    if folder.is_file():
        raise InputError(f"{folder} is a file; an index is kept in a folder")
    for outer in folder.absolute().parents:
        if (outer / FILE).exists():
            raise InputError(f"{folder} is inside the index {outer}; give an index a folder of its own")
    if folder.is_dir() and not (folder / FILE).exists():
        known = {*_data_files(folder)}
        others = sorted(path.name for path in folder.iterdir() if path not in known and path.name[0] != ".")
        if others:
            raise InputError(f"{folder} is not an index and holds {others[0]}; give an index a folder of its own")


def _data_files(folder: Path) -> list[Path]:
    files: list[Path] = []
    for part, suffix in SUFFIXES.items():
        files += [*folder.glob(f"{part}-*{suffix}"), *folder.glob(f".{part}-*{suffix}.*.tmp")]
    return files
