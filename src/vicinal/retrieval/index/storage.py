"""The folder of an index: data files named by their content, and a `config.json` that names the current ones.

`config.json` is replaced last, in one step, so a reader sees the old files or the new ones, never a mixture. Data files
that the config no longer names are deleted afterwards. Any number of processes may read while one writes: a reader
opens all files before it reads them, and an open file stays readable when it is deleted. Processes write one at a time,
by a lock.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from vicinal.retrieval.index.build_progress import delete_stale_stage, interruption
from vicinal.retrieval.index.engines.half_store import HalfStore, all_finite
from vicinal.utils.errors import InputError, one_line
from vicinal.utils.files import file_digest, temporary_files, write_blocks, write_bytes
from vicinal.utils.locks import hold_lock
from vicinal.utils.memory import check_memory

if TYPE_CHECKING:
    import pandas as pd

FORMAT = "vicinal-index"
CONFIG = "config.json"
VECTORS, CONTEXT, METADATA = "vectors", "context", "metadata"  # the data files, such as vectors-<hash>.faiss
ORIGINALS = "originals"  # beside codes: the vectors themselves, which stay in their file
SUFFIXES = {VECTORS: ".faiss", CONTEXT: ".faiss", METADATA: ".parquet", ORIGINALS: ".f16"}
PARTS = {  # by version: refined indexes have a context, those that are searched by codes have originals
    1: {VECTORS, METADATA},
    2: {VECTORS, CONTEXT, METADATA},
    3: {VECTORS, METADATA, ORIGINALS},
    4: {VECTORS, CONTEXT, METADATA, ORIGINALS},
}
READ_ATTEMPTS, READ_PAUSE = 5, 0.01  # a writer may delete files between the reading of their names and their opening
LOCK = ".lock"
MAX_CONFIG_BYTES = 2**20
READ_BLOCK = 2**20
COPIES = 2  # of a file in memory: its bytes, and what they are read as


@dataclass(frozen=True)
class IndexFiles:
    """The content of an index's folder.

    Attributes:
        config: values that can be written as JSON.
        vectors: the serialized vectors to search.
        metadata: one row per vector that can be found.
        context: the serialized unrefined embeddings of an index of refined ones, else None.
        originals: the vectors whose codes are in `vectors`, else None. They are read from their file when they are
            needed; what they are is checked when the file is opened.

    Example:
        >>> import pandas as pd, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     names = IndexFiles({"dim": 2}, b"vectors", pd.DataFrame({"id": [0]})).save(Path(folder))
        ...     files = IndexFiles.load(Path(folder))
        >>> files.config["dim"], files.vectors, len(files.metadata), files.context
        (2, b'vectors', 1, None)
    """

    config: dict[str, Any]
    vectors: bytes
    metadata: pd.DataFrame
    context: bytes | None = None
    originals: HalfStore | None = None

    def save(self, folder: Path) -> dict[str, str]:
        """Replace the index in `folder` by this one; the folder is made if missing, other files in it stay.

        The caller holds the lock, see :func:`write_lock`.

        Returns:
            The names of the data files, which identify the content.

        Raises:
            InputError: `folder` is a file, or holds something else than an index.
            OSError: a file cannot be written; the old index stays.
        """
        check_target(folder)
        parquet = BytesIO()
        self.metadata.to_parquet(parquet, index=False)
        data = {VECTORS: self.vectors, METADATA: parquet.getvalue()}
        if self.context is not None:
            data[CONTEXT] = self.context
        names = {part: _name_of(part, content) for part, content in data.items()}
        if self.originals is not None:
            names[ORIGINALS] = self._name_of_originals(folder)
        version = next(version for version, parts in PARTS.items() if parts == set(names))
        config = {"format": FORMAT, "version": version, **self.config, "files": names}
        try:
            for part, name in names.items():
                if part in data:
                    write_bytes(folder / name, data[part])
                elif self.originals is not None and self.originals.path != folder / name:
                    write_blocks(folder / name, self.originals.blocks())
            write_bytes(folder / CONFIG, (json.dumps(config, indent=2) + "\n").encode())
        finally:
            _delete_unused(folder)
        delete_stale_stage(folder)
        return names

    def _name_of_originals(self, folder: Path) -> str:
        """The name of the file of the originals; if they have not changed, it is not read for that."""
        assert self.originals is not None
        path = self.originals.path
        if path is not None and path.parent == folder and path.exists():
            return path.name
        digest = hashlib.sha256()
        for block in self.originals.blocks():
            digest.update(block)
        return _name(ORIGINALS, digest.hexdigest())

    @classmethod
    def load(cls, folder: Path) -> IndexFiles:
        """Read all files of one and the same index.

        Raises:
            InputError: there is no index, it is of a later format, or damaged.
        """
        for _ in range(READ_ATTEMPTS):
            config = _read_config(folder)
            try:
                with ExitStack() as stack:
                    opened = {part: stack.enter_context(_open(folder / name)) for part, name in config["files"].items()}
                    originals = _map_originals(opened.pop(ORIGINALS), config) if ORIGINALS in opened else None
                    data = {part: _read_part(file, part) for part, file in opened.items()}
            except FileNotFoundError as error:
                missing = error.filename
                time.sleep(READ_PAUSE)
                continue
            from vicinal.data.parquet_files import read_frame

            metadata = read_frame(folder / config["files"][METADATA], data[METADATA], pandas_types=True)
            return cls(config, data[VECTORS], metadata, data.get(CONTEXT), originals)
        raise InputError(f"{folder}: the index is damaged, {missing} is missing; build it again")


@contextmanager
def write_lock(folder: Path, timeout: float) -> Iterator[None]:
    """Hold the lock of the index in `folder` for a block: no other process writes; the folder is made if missing.

    Raises:
        InputError: `folder` is a file or holds something else than an index, or the lock is still held after `timeout`
            seconds.
        OSError: the folder cannot be written.
    """
    check_target(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with hold_lock(folder / LOCK, timeout, f"write the index {folder}"):
        yield


def adopt_originals(path: Path, folder: Path) -> Path:
    """Give a file of vectors the name by which the index in `folder` may have it, and return that.

    The file keeps its old name as well, and is not copied; where the file system cannot do that, `path` is returned,
    and the index copies the file when it is saved. The caller holds the lock until then.
    """
    target = folder / _name(ORIGINALS, file_digest(path))
    temporary = folder / f".{target.name}.{secrets.token_hex(4)}.tmp"
    try:
        os.link(path, temporary)
        os.replace(temporary, target)  # one that is there may be damaged
    except OSError:
        return path
    finally:
        temporary.unlink(missing_ok=True)  # it stays where both are one file already
    return target


def current_files(folder: Path) -> dict[str, str] | None:
    """Return the names of the data files of the index in `folder`, which identify its content; None without one."""
    return _read_config(folder)["files"] if (folder / CONFIG).exists() else None


def check_target(folder: Path) -> None:
    """Raise InputError if an index cannot be saved to `folder`: it is a file, or holds something else."""
    if folder.is_file():
        raise InputError(f"{folder} is a file; an index is saved to a folder")
    if (folder / CONFIG).exists():
        _read_config(folder)
    elif folder.is_dir():
        others = sorted(path.name for path in {*folder.iterdir()} - {*_index_files(folder)} if path.name[0] != ".")
        if others:
            raise InputError(f"{folder} is not an index and holds {others[0]}; give an index a folder of its own")


def _index_files(folder: Path) -> list[Path]:
    """The data files of an index, of any generation, and the temporary files of a killed writer."""
    files = temporary_files(folder / CONFIG)
    for part, suffix in SUFFIXES.items():
        files += [*folder.glob(f"{part}-*{suffix}"), *folder.glob(f".{part}-*{suffix}.*.tmp")]
    return files


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    try:
        with _open(path) as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        absent = f"{folder} is not an index: it has no {CONFIG}; build one with `vicinal index`"
        raise InputError(interruption(folder) or absent) from None
    try:
        config = json.loads(content) if len(content) <= MAX_CONFIG_BYTES else None
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not the config of an index: it is not JSON") from None
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise InputError(f"{path} is not the config of an index: its format is not {FORMAT!r}")
    if config.get("version") not in list(PARTS):
        version = one_line(str(config.get("version")), 80)
        raise InputError(f"{path} has version {version}; this Vicinal reads versions 1 to {max(PARTS)}")
    names = config.get("files")
    if (
        not isinstance(names, dict)
        or set(names) != PARTS[config["version"]]
        or not all(re.fullmatch(f"{part}-[0-9a-f]{{32}}{SUFFIXES[part]}", str(names[part])) for part in names)
    ):
        raise InputError(f"{path} is damaged: it does not name the index's files; build the index again")
    return config


def _open(path: Path) -> BinaryIO:
    """Open a regular file; the reading of another kind of file might block, or never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise InputError(f"{path} is not a regular file; build the index again")
    return path.open("rb")


def _read_part(file: BinaryIO, part: str) -> bytes:
    path = Path(file.name)
    check_memory(COPIES * os.fstat(file.fileno()).st_size, str(path))
    data = file.read()
    if path.name != _name_of(part, data):
        raise InputError(f"{path} is damaged: its content is not what was written; build the index again")
    return data


def _map_originals(file: BinaryIO, config: dict[str, Any]) -> HalfStore:
    """The vectors in a file, which are not read into memory; its size and its content are checked."""
    path, sizes = Path(file.name), [config.get(name) for name in ("dimensions", "images", "deleted")]
    dim, *counts = (size if isinstance(size, int) and 0 <= size < 2**40 else 0 for size in sizes)
    if not dim or 2 * dim * sum(counts) != os.fstat(file.fileno()).st_size:
        raise InputError(f"{path} is damaged: its size is not that of the index's vectors; build the index again")
    digest = hashlib.sha256()
    while block := file.read(READ_BLOCK):
        digest.update(block)
        if not all_finite(block):
            raise InputError(f"{path} is damaged: it holds NaN or infinity; build the index again")
    if path.name != _name(ORIGINALS, digest.hexdigest()):
        raise InputError(f"{path} is damaged: its content is not what was written; build the index again")
    return HalfStore.from_file(path, file, dim)


def _delete_unused(folder: Path) -> None:
    """Delete the data files that the config does not name, and the temporary files of a killed writer."""
    try:
        current = set(_read_config(folder)["files"].values())
    except InputError:
        current = set()
    for path in _index_files(folder):
        if path.name not in current:
            with suppress(PermissionError):  # where a reader has it open on Windows; the next writer deletes it
                path.unlink(missing_ok=True)


def _name_of(part: str, data: bytes) -> str:
    return _name(part, hashlib.sha256(data).hexdigest())


def _name(part: str, digest: str) -> str:
    return f"{part}-{digest[:32]}{SUFFIXES[part]}"
