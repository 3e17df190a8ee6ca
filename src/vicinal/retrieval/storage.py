"""The folder of an index: data files named by their content, and a `config.json` that says which of them count.

`config.json` is replaced last, in one step, so a reader sees the former files or the new ones, never a mixture. What no
config names any more is swept afterwards. Any number of processes may read while one writes.
"""

from __future__ import annotations

import hashlib
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd

from vicinal.errors import InputError
from vicinal.files import leftovers, write_bytes

FORMAT = "vicinal-index"
CONFIG = "config.json"
VECTORS, CONTEXT, ITEMS = "vectors", "context", "items"  # the data files, such as vectors-<hash>.faiss
SUFFIXES = {VECTORS: ".faiss", CONTEXT: ".faiss", ITEMS: ".parquet"}
PARTS = {1: {VECTORS, ITEMS}, 2: {VECTORS, CONTEXT, ITEMS}}  # of each version; only refined indexes need the second
READ_ATTEMPTS = 5


def save_files(
    folder: Path, config: dict[str, Any], vectors: bytes, items: pd.DataFrame, context: bytes | None = None
) -> None:
    """Replace the index in `folder` by this one.

    Args:
        folder: made if missing; other files in it stay.
        config: facts that can be written as JSON.
        vectors: the serialised search structure.
        items: a row a vector that can be found.
        context: the serialised structure of the embeddings as they came, of an index of refined ones.

    Raises:
        InputError: `folder` is a file, or holds the config of something else.
        OSError: a file cannot be written; the former index stays.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_files(Path(folder), {"dim": 2}, b"vectors", pd.DataFrame({"id": [0]}))
        ...     config, vectors, items, context = load_files(Path(folder))
        >>> config["dim"], vectors, len(items), context
        (2, b'vectors', 1, None)
    """
    if folder.is_file():
        raise InputError(f"{folder} is a file; an index is saved to a folder")
    if (folder / CONFIG).exists():
        _read_config(folder)
    parquet = BytesIO()
    items.to_parquet(parquet, index=False)
    data = {VECTORS: vectors, ITEMS: parquet.getvalue()} | ({} if context is None else {CONTEXT: context})
    names = {part: f"{part}-{_digest(content)}{SUFFIXES[part]}" for part, content in data.items()}
    version = next(version for version, parts in PARTS.items() if parts == set(data))
    whole = {"format": FORMAT, "version": version, **config, "files": names}
    try:
        for part, name in names.items():
            write_bytes(folder / name, data[part])
        write_bytes(folder / CONFIG, (json.dumps(whole, indent=2) + "\n").encode())
    finally:
        _sweep(folder)


def load_files(folder: Path) -> tuple[dict[str, Any], bytes, pd.DataFrame, bytes | None]:
    """Read config, vectors, items and context, None if it has none, of one and the same index.

    Raises:
        InputError: no index there, of a later format, or damaged.
    """
    for attempt in range(READ_ATTEMPTS):
        config = _read_config(folder)
        try:
            data = {part: _read_part(folder, config, part) for part in config["files"]}
            return config, data[VECTORS], pd.read_parquet(BytesIO(data[ITEMS])), data.get(CONTEXT)
        except FileNotFoundError as error:  # a writer may just have replaced the config and swept these files
            if attempt == READ_ATTEMPTS - 1 or _read_config(folder) == config:
                raise InputError(
                    f"{folder}: the index is damaged, {error.filename} is missing; build it again"
                ) from None
    raise AssertionError("unreachable")


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{folder} is not an index: it has no {CONFIG}; build one with `vicinal index`") from None
    except ValueError:
        raise InputError(f"{path} is not the config of an index: it is no JSON") from None
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise InputError(f"{path} is not the config of an index: its format is not {FORMAT!r}")
    if config.get("version") not in list(PARTS):
        raise InputError(f"{path} has version {config.get('version')}; this Vicinal reads versions 1 and 2")
    names = config.get("files")
    if (
        not isinstance(names, dict)
        or set(names) != PARTS[config["version"]]
        or any(Path(str(n)).name != n for n in names.values())
    ):
        raise InputError(f"{path} is damaged: it does not name the index's files; build the index again")
    return config


def _read_part(folder: Path, config: dict[str, Any], part: str) -> bytes:
    name = config["files"][part]
    data = (folder / name).read_bytes()
    if name != f"{part}-{_digest(data)}{SUFFIXES[part]}":
        raise InputError(f"{folder / name} is damaged: its content is not what was written; build the index again")
    return data


def _sweep(folder: Path) -> None:
    """Delete the data files that the config does not name, and whatever a killed writer left half-written."""
    try:
        kept = set(_read_config(folder)["files"].values())
    except InputError:
        kept = set()
    swept = leftovers(folder / CONFIG)
    for part, suffix in SUFFIXES.items():
        swept += [*folder.glob(f"{part}-*{suffix}"), *folder.glob(f".{part}-*{suffix}.*.tmp")]
    for path in swept:
        if path.name not in kept:
            path.unlink(missing_ok=True)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
