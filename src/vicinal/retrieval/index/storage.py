"""The folder of an index: data files named by their content, and a `config.json` that names the current ones.

`config.json` is replaced last, in one step, so a reader sees the old files or the new ones, never a mixture. Data files
that the config no longer names are deleted afterwards. Any number of processes may read while one writes.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vicinal.utils.errors import InputError
from vicinal.utils.files import temporary_files, write_bytes

if TYPE_CHECKING:
    import pandas as pd

FORMAT = "vicinal-index"
CONFIG = "config.json"
VECTORS, CONTEXT, METADATA = "vectors", "context", "metadata"  # the data files, such as vectors-<hash>.faiss
SUFFIXES = {VECTORS: ".faiss", CONTEXT: ".faiss", METADATA: ".parquet"}
PARTS = {1: {VECTORS, METADATA}, 2: {VECTORS, CONTEXT, METADATA}}  # by version; only refined indexes need the second
READ_ATTEMPTS = 5


@dataclass(frozen=True)
class IndexFiles:
    """The content of an index's folder.

    Attributes:
        config: values that can be written as JSON.
        vectors: the serialised vectors to search.
        metadata: one row per vector that can be found.
        context: the serialised unrefined embeddings of an index of refined ones, else None.

    Example:
        >>> import pandas as pd, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     IndexFiles({"dim": 2}, b"vectors", pd.DataFrame({"id": [0]})).save(Path(folder))
        ...     files = IndexFiles.load(Path(folder))
        >>> files.config["dim"], files.vectors, len(files.metadata), files.context
        (2, b'vectors', 1, None)
    """

    config: dict[str, Any]
    vectors: bytes
    metadata: pd.DataFrame
    context: bytes | None = None

    def save(self, folder: Path) -> None:
        """Replace the index in `folder` by this one; the folder is made if missing, other files in it stay.

        Raises:
            InputError: `folder` is a file, or holds the config of something else.
            OSError: a file cannot be written; the old index stays.
        """
        if folder.is_file():
            raise InputError(f"{folder} is a file; an index is saved to a folder")
        if (folder / CONFIG).exists():
            _read_config(folder)
        parquet = BytesIO()
        self.metadata.to_parquet(parquet, index=False)
        data = {VECTORS: self.vectors, METADATA: parquet.getvalue()}
        if self.context is not None:
            data[CONTEXT] = self.context
        names = {part: f"{part}-{_digest(content)}{SUFFIXES[part]}" for part, content in data.items()}
        version = next(version for version, parts in PARTS.items() if parts == set(data))
        config = {"format": FORMAT, "version": version, **self.config, "files": names}
        try:
            for part, name in names.items():
                write_bytes(folder / name, data[part])
            write_bytes(folder / CONFIG, (json.dumps(config, indent=2) + "\n").encode())
        finally:
            _delete_unused(folder)

    @classmethod
    def load(cls, folder: Path) -> IndexFiles:
        """Read all files of one and the same index.

        Raises:
            InputError: there is no index, it is of a later format, or damaged.
        """
        import pandas as pd

        for attempt in range(READ_ATTEMPTS):
            config = _read_config(folder)
            try:
                data = {part: _read_part(folder, config, part) for part in config["files"]}
                return cls(config, data[VECTORS], pd.read_parquet(BytesIO(data[METADATA])), data.get(CONTEXT))
            except FileNotFoundError as error:  # a writer may just have replaced the config and deleted these files
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
        raise InputError(f"{path} is not the config of an index: it is not JSON") from None
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise InputError(f"{path} is not the config of an index: its format is not {FORMAT!r}")
    if config.get("version") not in list(PARTS):
        raise InputError(f"{path} has version {config.get('version')}; this Vicinal reads versions 1 and 2")
    names = config.get("files")
    if (
        not isinstance(names, dict)
        or set(names) != PARTS[config["version"]]
        or any(Path(str(name)).name != name for name in names.values())
    ):
        raise InputError(f"{path} is damaged: it does not name the index's files; build the index again")
    return config


def _read_part(folder: Path, config: dict[str, Any], part: str) -> bytes:
    name = config["files"][part]
    data = (folder / name).read_bytes()
    if name != f"{part}-{_digest(data)}{SUFFIXES[part]}":
        raise InputError(f"{folder / name} is damaged: its content is not what was written; build the index again")
    return data


def _delete_unused(folder: Path) -> None:
    """Delete the data files that the config does not name, and the temporary files of a killed writer."""
    try:
        current = set(_read_config(folder)["files"].values())
    except InputError:
        current = set()
    unused = temporary_files(folder / CONFIG)
    for part, suffix in SUFFIXES.items():
        unused += [*folder.glob(f"{part}-*{suffix}"), *folder.glob(f".{part}-*{suffix}.*.tmp")]
    for path in unused:
        if path.name not in current:
            path.unlink(missing_ok=True)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
