"""WebDataset shards: tar files in which members of the same name up to the first dot are one sample.

They are read by `tarfile`, not by the library webdataset: that reads members of any size into memory and runs a name
that begins with `pipe:` as a command, and nothing else of it is needed here.
"""

from __future__ import annotations

import glob
import json
import re
import tarfile
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from vicinal.data.columns import SPLIT_NAMES, is_known_column
from vicinal.data.containers import listing
from vicinal.data.images.formats import IMAGE_SUFFIXES
from vicinal.utils.arrays import Integers
from vicinal.utils.console import log
from vicinal.utils.errors import InputError, one_line, unreadable
from vicinal.utils.files import check_regular_file
from vicinal.utils.threads import thread_pool

MAX_END = 2**20  # bytes after the last member that are read; tar fills up to 10 kB by default
MAX_BYTES = 2**28  # of one member
LABELS = ("cls", "label")  # the members and keys of JSON that are labels, unless others are named
RANGE = re.compile(r"\{(\d{1,18})\.\.(\d{1,18})\}")
Members: TypeAlias = "dict[str, bytes | listing.Location]"
SPLIT_NAME = re.compile(rf"(?:^|[^a-z])({'|'.join(SPLIT_NAMES)})(?:[^a-z]|$)")


def list_webdataset(pattern: str, root: str | Path | None, columns: listing.NamedColumns) -> listing.ListedImages:
    """The images of WebDataset shards; :func:`~vicinal.data.containers.list_container` has the rules."""
    shards = find_shards(pattern)
    reader = _ShardReader(columns)

    def samples(scratch: Path) -> Iterator[listing.Sample]:
        with thread_pool() as pool:  # threads wait for the file system
            yield from _with_splits(shards, pool.map(reader.locate, shards, range(len(shards))))

    folder = listing.list_folder(root, "webdataset", shards[0].stem, columns, listing.file_versions(shards))
    return listing.list_images(folder, f"wds:{pattern}", samples, partial(_read_located, shards), columns)


def _with_splits(shards: list[Path], samples: Iterable[Iterable[listing.Sample]]) -> Iterator[listing.Sample]:
    """The samples of all shards, with the splits according to the names of the shards."""
    found = [SPLIT_NAME.search(shard.name.lower()) for shard in shards]
    splits = [SPLIT_NAMES[match[1]] if match else None for match in found]
    for split, of_shard in zip(splits, samples, strict=True):
        for sample in of_shard:
            yield listing.Sample(sample.image, sample.name, sample.values | ({"split": split} if all(splits) else {}))


def _read_located(shards: list[Path], locations: Integers) -> Iterator[bytes]:
    for number in np.unique(locations[:, 0]).tolist():
        shard = shards[number]
        try:
            with shard.open("rb") as file:
                for _, start, size in locations[locations[:, 0] == number].tolist():
                    file.seek(start)
                    content = file.read(size)
                    if len(content) != size:
                        raise InputError(f"{shard}: has changed while it was read; start again")
                    yield content
        except OSError as error:
            raise unreadable(shard, error) from None


def find_shards(pattern: str) -> list[Path]:
    """The tar files of a pattern with ranges such as `{000000..000010}` and with `*` and `?`, in order."""
    shards: list[Path] = []
    for name in _expanded(pattern):
        shards += sorted(map(Path, glob.glob(name))) if glob.has_magic(name) else [Path(name)]
    absent = [str(shard) for shard in shards if not shard.exists()]
    if absent or not shards:
        number = f"{len(absent):,} of {len(shards):,} shards are missing: {', '.join(absent[:3])}"
        found = number if absent else "no file"
        raise InputError(f"wds:{pattern}: {found}; give tar files, such as wds:train-{{000000..000010}}.tar")
    for shard in shards:
        check_regular_file(shard)
    return shards


def _expanded(pattern: str) -> Iterator[str]:
    found = RANGE.search(pattern)
    if found is None:
        yield pattern
        return
    low, high = found.groups()
    for number in range(int(low), int(high) + 1):
        yield from _expanded(f"{pattern[: found.start()]}{number:0{len(low)}d}{pattern[found.end() :]}")


class _ShardReader:
    """Reads the samples of a shard.

    `image` is the suffix of the members with images, if there are several; `labels` are those of members with labels,
    or keys in JSON.
    """

    def __init__(self, columns: listing.NamedColumns) -> None:
        self.image = columns.image and columns.image.lower()
        self.labels = LABELS if columns.label is None else (columns.label,)
        self.label_members = [suffix for label in self.labels for suffix in (label.lower(), f"{label.lower()}.txt")]

    def locate(self, shard: Path, number: int) -> list[listing.Sample]:
        """The samples with the locations of their images; the number is that of the shard."""
        samples = []
        is_said = False
        for key, members in self._groups(shard, number):
            sample = self._sample(key, members, f"{shard}, sample {key!r}")
            if (
                not is_said
                and sample.image is not None
                and "label" not in sample.values
                and "." in _suffix(sample.name)
            ):
                log(f"{shard}: {sample.name} has no label: the name of a sample ends at its first dot, here {key}")
                is_said = True
            samples.append(sample)
        return samples

    def _groups(self, shard: Path, number: int) -> Iterator[tuple[str, Members]]:
        """The name of each sample, and its members by their suffixes."""
        for key, group in groupby(self._members(shard, number), lambda member: _stem(member[0])):
            members: Members = {}
            for name, content in group:
                if _suffix(name) in members:
                    raise InputError(f"{shard}: {name!r} appears twice; every member needs its own name")
                members[_suffix(name)] = content
            yield key, members

    def _members(self, shard: Path, number: int) -> Iterator[tuple[str, bytes | listing.Location]]:
        """The members that are read: the locations of images, the contents of others. Nothing is unpacked."""
        try:
            with tarfile.open(shard, "r:") as tar:
                for member in tar:
                    suffix = _suffix(member.name)
                    is_text = suffix in ("json", *self.label_members)
                    is_image = not is_text and (suffix == self.image or _is_image(suffix))
                    if member.isdir() or _is_hidden(member.name) or not (is_text or is_image):
                        continue
                    if not member.isreg() or member.issparse():
                        raise InputError(f"{shard}: {member.name!r} is not a regular file, which shards hold")
                    if member.size > MAX_BYTES:
                        raise InputError(f"{shard}: {member.name!r} has {member.size / 1e6:,.0f} MB; at most "
                                         f"{MAX_BYTES / 1e6:,.0f} are read")  # fmt: skip
                    if is_image:
                        yield member.name, listing.Location(number, member.offset_data, member.size)
                        continue
                    file = tar.extractfile(member)
                    content = file.read() if file else b""
                    if len(content) != member.size:
                        raise tarfile.ReadError(f"{member.name!r} is truncated")
                    yield member.name, content
                _check_end(shard, tar.offset)
        except OSError as error:
            raise unreadable(shard, error) from None
        except (tarfile.TarError, EOFError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{shard}: not a readable tar file ({one_line(error)})") from None

    def _sample(self, key: str, members: Members, where: str) -> listing.Sample:
        texts = {suffix: content for suffix, content in members.items() if isinstance(content, bytes)}
        images = [suffix for suffix in members if _is_image(suffix)]
        suffix = self.image or (images[0] if images else "")
        if self.image is None and len(images) > 1:
            dots = "; the name of a sample ends at its first dot" * any("." in each for each in images)
            raise InputError(f"{where}: has several images ({', '.join(images)}){dots}; name one by path_column")
        fields = _fields(texts["json"], where) if "json" in texts else {}
        known = (name for name in fields if is_known_column(name) and name not in ("path", "label", "split"))
        values = {name: fields[name] for name in known if fields[name] is not None}
        label = next((_text(texts[each], where) for each in self.label_members if each in texts), None)
        if label is None:
            label = next((fields[each] for each in self.labels if fields.get(each) is not None), None)
        image = members.get(suffix)
        if isinstance(image, bytes):
            raise InputError(f"{where}: {suffix} is read as a label, not as an image; name another by path_column")
        return listing.Sample(image, f"{key}.{suffix}", values | ({} if label is None else {"label": label}))


def _check_end(shard: Path, offset: int) -> None:
    """Raise ReadError unless the end of an archive, zeros, follows the last member, and nothing else.

    tarfile mistakes a damaged header or the end of the file for the end of the archive.
    """
    with shard.open("rb") as file:
        file.seek(offset)
        end = file.read(MAX_END)
    if len(end) < tarfile.BLOCKSIZE or end.strip(b"\0"):
        raise tarfile.ReadError(f"damaged, truncated or joined to another archive at byte {offset:,}")


def _is_hidden(name: str) -> bool:
    """Whether a name is hidden, or below a hidden folder, such as the `._cat.jpg` that macOS adds to each file."""
    return any(part.startswith(".") and part not in (".", "..") for part in name.split("/"))


def _stem(name: str) -> str:
    folder, slash, file = name.rpartition("/")
    return folder + slash + file.partition(".")[0]


def _suffix(name: str) -> str:
    return name.rpartition("/")[2].partition(".")[2].lower()


def _is_image(suffix: str) -> bool:
    return f".{suffix.rpartition('.')[2]}" in IMAGE_SUFFIXES


def _text(content: bytes, where: str) -> str | int:
    try:
        text = content.decode().strip()
    except UnicodeDecodeError:
        raise InputError(f"{where}: the label is not UTF-8 text") from None
    return int(text) if re.fullmatch("-?[0-9]{1,18}", text) else text


def _fields(content: bytes, where: str) -> dict[str, Any]:
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON ({one_line(error)})") from None
    if not isinstance(fields, dict):
        raise InputError(f"{where}: the JSON is not a mapping of names to values")
    return fields
