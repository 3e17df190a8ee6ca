"""The manifest of a shard of embeddings: which rows of which source, by which model, in which parts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from vicinal.utils.errors import InputError, one_line
from vicinal.utils.files import read_bytes, write_bytes

FORMAT, VERSION, CHECKSUM = "vicinal embedding shard", 1, "sha256"
MANIFEST, FOLDERS = "manifest.json", "shard-*-of-*"
FOLDER_NAME = re.compile(r"shard-([1-9]\d{0,8})-of-([1-9]\d{0,8})")


@dataclass(frozen=True)
class ShardPart:
    """One part of a shard; without embeddings, since none of its images can be read, it has no file.

    `unreadable` has the row of the source and the error of each image that was left out.
    """

    num_embeddings: int
    dim: int = 0
    sha256: str = ""
    unreadable: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ShardManifest:
    """The content of a shard of embeddings.

    The rows of the source are divided into consecutive shards, from 1, whose sizes differ by at most one, and those of
    a shard into consecutive parts of `part_size` rows, of which the last may have fewer. `parts` are the complete ones;
    `model` is the fingerprint of the model and the steps after it.
    """

    shard: int
    num_shards: int
    source: str
    num_rows: int
    rows_sha256: str
    model: str
    precision: str
    on_error: str
    part_size: int
    parts: tuple[ShardPart, ...] = ()

    @property
    def name(self) -> str:
        """The name of the shard in messages."""
        return f"{self.shard}/{self.num_shards}"

    @property
    def rows(self) -> range:
        """The rows of the source that the shard holds."""
        start, stop = (each * self.num_rows // self.num_shards for each in (self.shard - 1, self.shard))
        return range(start, stop)

    @property
    def num_parts(self) -> int:
        """The number of parts when the shard is complete."""
        return -(-len(self.rows) // self.part_size)

    @property
    def is_complete(self) -> bool:
        """Whether all parts are embedded."""
        return len(self.parts) == self.num_parts

    @property
    def num_embeddings(self) -> int:
        """The number of embeddings in all parts."""
        return sum(part.num_embeddings for part in self.parts)

    @property
    def unreadable(self) -> dict[int, str]:
        """The row of the source and the error of each image that was left out."""
        return {row: error for part in self.parts for row, error in part.unreadable.items()}

    def folder(self, shards: str | Path) -> Path:
        """The folder of the shard in that of all shards."""
        return Path(shards, f"shard-{self.shard}-of-{self.num_shards}")

    def part_file(self, shards: str | Path, number: int) -> Path:
        """The file of a part."""
        return self.folder(shards) / f"part-{number:06d}.parquet"

    def with_part(self, number: int, part: ShardPart) -> ShardManifest:
        """The manifest with a part replaced, or with one part more."""
        return replace(self, parts=(*self.parts[:number], part, *self.parts[number + 1 :]))

    def difference(self, other: ShardManifest) -> str | None:
        """The first setting in which two shards differ, such as "precision 32, not bf16"; None without one."""
        for what in ("model", "precision", "on_error", "num_shards", "part_size"):
            mine, others = getattr(self, what), getattr(other, what)
            if mine != others:
                return f"{what} {mine}, not {others}"
        if (self.num_rows, self.rows_sha256) != (other.num_rows, other.rows_sha256):
            return f"{self._source()}, not {other._source()}"
        return None

    def _source(self) -> str:
        return f"{self.source} ({self.num_rows:,} rows, SHA-256 {self.rows_sha256[:8]})"

    def save(self, shards: str | Path) -> None:
        """Write the manifest atomically."""
        content = json.loads(json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}))  # keys become texts
        text = json.dumps({**content, CHECKSUM: _checksum(content)}, indent=1)
        write_bytes(self.folder(shards) / MANIFEST, text.encode())

    @classmethod
    def load(cls, path: Path) -> ShardManifest:
        """Read a manifest."""
        text = read_bytes(path)
        try:
            content = json.loads(text)
            if content.pop(CHECKSUM) != _checksum(content):
                raise ValueError("its content has changed")
            if (content.pop("format"), content.pop("version")) != (FORMAT, VERSION):
                raise ValueError("it has another format or version")
            parts = tuple(map(_read_part, content.pop("parts")))
            manifest = cls(**content, parts=parts)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InputError(
                f"{path}: not the manifest of a shard of embeddings ({one_line(error, 120)}); delete {path.parent} and "
                "embed this shard again"
            ) from None
        if path.parent.name != manifest.folder("").name:
            raise InputError(f"{path}: is of shard {manifest.name}; its folder must be {manifest.folder('').name}")
        return manifest


def _checksum(content: Mapping[str, Any]) -> str:
    """The SHA-256 of the content of a manifest."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_part(content: Any) -> ShardPart:
    unreadable = {int(row): str(error) for row, error in content.pop("unreadable").items()}
    return ShardPart(**content, unreadable=unreadable)


def read_manifests(shards: str | Path) -> list[ShardManifest]:
    """The manifests of the shards in a folder, in order."""
    found = [ShardManifest.load(path) for path in _manifest_files(shards)]
    return sorted(found, key=lambda each: (each.num_shards, each.shard))


def holds_shards(folder: str | Path) -> bool:
    """Whether a path is a folder of shards of embeddings."""
    path = next(_manifest_files(folder), None)
    if path is None:
        return False
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return True  # reading it raises the error
    return isinstance(content, dict) and content.get("format") == FORMAT


def _manifest_files(folder: str | Path) -> Iterator[Path]:
    """The manifests in a folder, if it exists."""
    if str(folder) and Path(folder).is_dir():
        found = (each for each in Path(folder).glob(FOLDERS) if FOLDER_NAME.fullmatch(each.name))
        yield from (each / MANIFEST for each in sorted(found) if (each / MANIFEST).is_file())
