"""Pooled features on disk: every image is passed once through a backbone that is not trained."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from typing_extensions import Self

from vicinal import __version__
from vicinal.data import ImageDataset, Table
from vicinal.data.batches.image_dataset import PixelBatches, UnreadableImageError, all_readable, map_pixels, row_batches
from vicinal.data.columns import BOX_COLUMNS
from vicinal.data.embedding_files import open_npy
from vicinal.data.images.transforms import ImageTransform
from vicinal.models import Embedder
from vicinal.models.execution import Precision, UsedPrecision, autocast_to, eval_mode, used_precision
from vicinal.models.saving import hash_tensors
from vicinal.training.recipes.settings import NO_AUGMENTATION, TrainingSettings
from vicinal.training.training_data import num_workers
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.console import listed, log, track
from vicinal.utils.errors import InputError, one_line, unreadable
from vicinal.utils.files import cache_folder, file_digest, hold_lock, write_bytes

FEATURES, PARTIAL, INFO, LOCK = "features.npy", "features.partial", "cache.json", ".lock"
CHECKSUMS = "features.checksums"  # for each batch: the number of rows and the SHA-256 of the partial file up to it
LOCK_SECONDS = 7 * 24 * 3600
NUM_DIGITS = 16
FEATURES_PER_PASS, IMAGES_PER_PASS = 8192, 64
MAX_LINE = 200  # bytes of a line of checksums

FeatureDtype = Literal["float32", "float16"]
Values = npt.NDArray[np.floating]
OnError = Literal["raise", "skip"]


@dataclass(frozen=True)
class FeatureKey:
    """Everything that the features in a cache depend on."""

    model: str  # fingerprint of backbone, pooling, transform and precision
    images: str  # digest of paths, sizes and modification times
    num_images: int
    dim: int
    dtype: FeatureDtype
    version: str = __version__  # reads and transforms the images

    @property
    def name(self) -> str:
        return _digest(asdict(self))


@dataclass(frozen=True)
class CachedFeatures:
    """The pooled features of images."""

    vectors: Values  # [n, d], a memory map of a file
    rows: dict[str, int]  # by path and box; images that cannot be read have none
    key: FeatureKey


class FeatureDataset(ImageDataset):
    """The images of a table whose features are cached; those that could not be read are left out."""

    def __init__(self, table: Table, transform: ImageTransform, features: CachedFeatures) -> None:
        rows = np.array([features.rows.get(key, -1) for key in table.image_keys], dtype=np.int64)
        if (rows < 0).all():
            raise InputError(f"none of the {len(rows)} images can be read; the first is {table.paths[0]}")
        super().__init__(table if (rows >= 0).all() else table.take(np.flatnonzero(rows >= 0)), transform)
        self._features, self._rows = features.vectors, rows[rows >= 0]

    def subset(self, rows: Integers) -> Self:
        part = super().subset(rows)
        part._rows = self._rows[rows]
        return part

    def features(self, rows: Any) -> Tensor:
        """The features of rows of the table, float32 [len(rows), d]."""
        return torch.from_numpy(np.asarray(self._features[self._rows[rows]], dtype=np.float32))


def cached_features(
    embedder: Embedder,
    table: Table,
    folder: str | Path,
    *,
    dtype: FeatureDtype = "float32",
    precision: Precision = "auto",
    batch_size: int = 64,
    num_workers: int = 0,
    on_error: OnError = "raise",
) -> CachedFeatures:
    """The pooled features of a table's images, from the cache or, once, from the images.

    They do not depend on the head of the model. An image that the table has several times is embedded once. Work that
    was interrupted or killed is continued, and one process writes a cache at a time. `folder` has one folder per model
    and list of images.
    """
    distinct = _distinct(table)
    used = used_precision(precision, next(embedder.backbone.parameters()).device)
    model = feature_fingerprint(embedder, used)
    key = FeatureKey(model, _images_digest(distinct), len(distinct), int(embedder.num_features), dtype)
    cache, images = Path(folder) / key.name, ImageDataset(distinct, embedder.transform)
    with _write_errors(cache):
        if not (cache / FEATURES).exists():
            cache.mkdir(parents=True, exist_ok=True)
            with hold_lock(cache / LOCK, LOCK_SECONDS, f"compute the features in {cache}"):
                if not (cache / FEATURES).exists():
                    log(f"computing the features of {len(distinct):,} images once, into {cache}")
                    _write(cache, key, FeaturePass(embedder, images, used, batch_size, num_workers, on_error))
    return _open(cache, key, images, on_error)


def features_by_settings(
    embedder: Embedder, table: Table, settings: TrainingSettings, dtype: FeatureDtype = "float32"
) -> CachedFeatures:
    """The pooled features of a table's images, computed and kept as the settings of a run say."""
    return cached_features(
        embedder,
        table,
        settings.feature_cache or Path(cache_folder()) / "features",
        dtype=dtype,
        precision=cast(Precision, settings.precision.removesuffix("-mixed")),
        batch_size=settings.micro_batch_size or IMAGES_PER_PASS,
        num_workers=num_workers(settings.data),
        on_error=settings.data.on_error,
    )


def embed_features(embedder: Embedder, images: FeatureDataset, device: torch.device, rows: range) -> Floats:
    """The embeddings of rows of images by the head of an embedder, from their cached features, float32 [rows, dim]."""
    with eval_mode(embedder), torch.inference_mode():
        parts = [
            embedder(images.features(rows[start : start + FEATURES_PER_PASS]).to(device)).cpu()
            for start in range(0, len(rows), FEATURES_PER_PASS)
        ]
    return torch.cat([torch.empty(0, embedder.dim), *parts]).numpy()


def remove_backbone(embedder: Embedder) -> None:
    embedder.backbone, embedder.pooling = nn.Identity(), nn.Identity()


def feature_fingerprint(embedder: Embedder, precision: UsedPrecision) -> str:
    """A short hash of everything that the pooled features of an image depend on, except the image."""
    config = {name: embedder.config[name] for name in ("backbone", "backbone_args", "pooling", "p")}
    transform = {name: value for name, value in embedder.transform.to_dict().items() if name not in NO_AUGMENTATION}
    digest = hashlib.sha256(_digest({**config, "transform": transform, "precision": precision}).encode())
    for part in (embedder.backbone, embedder.pooling):
        hash_tensors(digest, part.state_dict())
    return digest.hexdigest()[:NUM_DIGITS]


def _images_digest(table: Table) -> str:
    """A short hash of the files; a file with the same size and time counts as unchanged."""
    digest = hashlib.sha256()
    for path, key in zip(table.paths, table.image_keys, strict=True):
        try:
            status = os.stat(path)
            digest.update(f"{key}\0{status.st_size} {status.st_mtime_ns}\n".encode(errors="surrogateescape"))
        except (OSError, ValueError):  # reading the image raises the error
            digest.update(f"{key}\0missing\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:NUM_DIGITS]


def _digest(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:NUM_DIGITS]


def _distinct(table: Table) -> Table:
    """One row for each image of a table, sorted by name regardless of the order of the table."""
    rows = {key: row for row, key in enumerate(table.image_keys)}
    columns = [column for column in ("path", *BOX_COLUMNS) if table.has(column)]
    return Table(table.frame[columns].iloc[[rows[key] for key in sorted(rows)]])


def _read_info(cache: Path, key: FeatureKey) -> tuple[list[int], str]:
    """The rows of images that could not be read, and the digest of the features; the cache must be that of the key."""
    try:
        info = json.loads((cache / INFO).read_bytes())
        digest, skipped = str(info.pop("digest")), [range(key.num_images)[row] for row in info.pop("skipped")]
    except OSError as error:
        raise InputError(f"{unreadable(cache / INFO, error)}; delete {cache}") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise InputError(f"{cache / INFO}: does not describe a cache of features; delete {cache}") from None
    if info != asdict(key):
        found = one_line(str(info.get("model")), 40)
        raise InputError(f"{cache}: is a cache of another model or other images ({found}, not {key.model}); delete it")
    return skipped, digest


def _write(cache: Path, key: FeatureKey, features: FeaturePass) -> None:
    """Append the features of the images that are still missing; the file gets its name when it is complete."""
    images, batch_size = features.images, features.batch_size
    header, row_bytes = _npy_header((len(images), key.dim), key.dtype), key.dim * np.dtype(key.dtype).itemsize
    done, digest, checksums = _whole_batches(cache, header, row_bytes, batch_size)
    with open(cache / PARTIAL, "a+b") as file, open(cache / CHECKSUMS, "wb") as written:
        file.truncate(len(header) + done * row_bytes if done else 0)
        written.write(checksums)
        written.flush()
        _check_space(cache, len(images), len(header) + (len(images) - done) * row_bytes)
        if done:
            log(f"the features of {done:,} images are already computed")
        else:
            file.write(header)
        for values, readable in features.batches(done):
            with np.errstate(over="ignore"):  # a number too large for float16 becomes infinite
                values = values.astype(key.dtype)
            _check_finite(values, readable, images.table.paths[done : done + len(values)])
            done += len(values)
            digest.update(values.tobytes())
            file.write(values.tobytes())
            file.flush()
            written.write(f"{done} {digest.hexdigest()}\n".encode())
            written.flush()
        os.fsync(file.fileno())
    skipped = np.flatnonzero(np.isnan(open_npy(cache / PARTIAL)[:, 0])).tolist()
    info = {**asdict(key), "skipped": skipped, "digest": digest.hexdigest()}
    write_bytes(cache / INFO, json.dumps(info).encode())
    os.replace(cache / PARTIAL, cache / FEATURES)
    (cache / CHECKSUMS).unlink()


def _whole_batches(cache: Path, header: bytes, row_bytes: int, batch_size: int) -> tuple[int, Any, bytes]:
    """The intact part of an interrupted pass: number of rows, digest of header and rows, lines of checksums.

    Only whole batches of this size count, so that batches and features equal those of an uninterrupted pass to the last
    bit.
    """
    digest, lines, found = hashlib.sha256(header), b"", (0, hashlib.sha256(header), b"")
    if not ((cache / PARTIAL).exists() and (cache / CHECKSUMS).exists()):
        return found
    with open(cache / PARTIAL, "rb") as file, open(cache / CHECKSUMS, "rb") as checksums:
        is_damaged, row = file.read(len(header)) != header, 0
        while not is_damaged and (line := checksums.readline(MAX_LINE)).endswith(b"\n"):
            rows, _, expected = line.decode(errors="replace").strip().partition(" ")
            size = (int(rows) - row) * row_bytes if rows.isdecimal() else 0
            block = file.read(max(size, 0))
            digest.update(block)
            is_damaged = len(block) != size or not size or digest.hexdigest() != expected
            if not is_damaged:
                row, lines = int(rows), lines + line
                found = (row, digest.copy(), lines) if row % batch_size == 0 else found
    if is_damaged:
        log(f"{cache / PARTIAL} is damaged after {found[0]:,} images; the features of the others are computed again")
    return found


def _check_finite(values: Values, readable: npt.NDArray[np.bool_], paths: list[str]) -> None:
    invalid = np.flatnonzero(readable & ~np.isfinite(values).all(axis=1))
    if len(invalid):
        hint = "; try feature_dtype float32" if values.dtype == np.float16 else ""
        raise InputError(f"the features of {paths[invalid[0]]} are not finite{hint}")


def _check_space(cache: Path, num_images: int, num_bytes: int) -> None:
    free = shutil.disk_usage(cache).free
    if num_bytes > free:
        needed = f"the features of {num_images:,} images need {num_bytes / 1e9:,.3g} GB"
        room = f"{free / 1e9:,.3g} GB are free"
        raise InputError(f"{cache}: {needed}, and {room}; choose another folder by feature_cache")


def _npy_header(shape: tuple[int, int], dtype: FeatureDtype) -> bytes:
    buffer = io.BytesIO()
    described = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, described)
    return buffer.getvalue()


def _open(cache: Path, key: FeatureKey, images: ImageDataset, on_error: OnError) -> CachedFeatures:
    skipped, digest = _read_info(cache, key)
    try:
        vectors = open_npy(cache / FEATURES)
    except InputError as error:
        raise InputError(f"{error}; delete {cache}") from None
    if vectors.shape != (len(images), key.dim) or vectors.dtype != key.dtype:
        expected = f"it must be {key.dtype} {[len(images), key.dim]}"
        raise InputError(f"{cache / FEATURES}: {vectors.dtype} {list(vectors.shape)}; {expected}; delete {cache}")
    if file_digest(cache / FEATURES) != digest:
        raise InputError(f"{cache / FEATURES}: damaged, its digest differs; delete {cache}")
    if skipped and on_error == "raise":
        raise UnreadableImageError(f"{images.table.paths[skipped[0]]}: cannot be read")
    if skipped:
        log(f"left out {len(skipped):,} of {len(images):,} images that cannot be read:")
        for line in listed([images.table.paths[row] for row in skipped]):
            log(line)
    left_out, rows = {*skipped}, {image: row for row, image in enumerate(images.table.image_keys)}
    return CachedFeatures(vectors, {image: row for image, row in rows.items() if row not in left_out}, key)


@contextmanager
def _write_errors(cache: Path) -> Iterator[None]:
    """Turn errors of writing into an InputError; features written before stay."""
    try:
        yield
    except OSError as error:
        reason = "no space on the disk" if error.errno == errno.ENOSPC else error.strerror or str(error)
        raise InputError(f"{cache}: cannot be written ({reason}); choose another folder by feature_cache") from error


@dataclass(frozen=True)
class FeaturePass:
    """A pass of images through backbone and pooling; images that are skipped get features of NaN."""

    embedder: Embedder
    images: ImageDataset
    precision: Precision = "auto"
    batch_size: int = 64
    num_workers: int = 0
    on_error: OnError = "raise"

    def batches(self, start: int) -> Iterator[tuple[Values, npt.NDArray[np.bool_]]]:
        """The features of batches of images from row `start` on, float32 [b, d], and which could be read, bool [b]."""
        device = next(self.embedder.backbone.parameters()).device
        rows = row_batches(self.images, range(start, len(self.images)), self.batch_size)
        batches, used = PixelBatches(self.images, rows), used_precision(self.precision, device)

        def features(pixels: Tensor) -> Floats:
            with torch.inference_mode(), autocast_to(used, device):
                return self.embedder.pooled_features(pixels.to(device, non_blocking=True)).float().cpu().numpy()

        with eval_mode(self.embedder):
            mapped = map_pixels(features, batches, device, self.num_workers, self.embedder.is_thread_safe)
            for some, batch in zip(rows, track(mapped, "features", total=len(batches)), strict=True):
                found, errors = (all_readable(batch), {}) if self.on_error == "raise" else batch
                readable = np.array([row not in errors for row in some])
                values = np.full((len(some), self.embedder.num_features), np.nan, dtype=np.float32)
                if len(found):
                    values[readable] = found
                yield values, readable
