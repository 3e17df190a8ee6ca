"""Local features: the whitened patches of images, as codes of one byte per dimension."""

from __future__ import annotations

from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.data.columns import BOX_COLUMNS
from vicinal.data.table import Table
from vicinal.data.whitening_files import ARRAYS
from vicinal.models.embedder import Embedder
from vicinal.models.feature_maps import MapName, patch_transform, patch_vectors
from vicinal.models.inputs import Images
from vicinal.retrieval.whitening import PCAWhitening
from vicinal.utils.arrays import Booleans, Floats, Integers
from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from vicinal.retrieval.index.interface import ImageIndex

Codes = npt.NDArray[np.uint8]
ZERO = 128  # the code of 0
MAX_FIT_IMAGES, MAX_FIT_PATCHES = 300, 50_000  # that a whitening is learned from
SHRINKAGE = 1e-3  # of the whitening, so that few patches or flat directions do not matter


def encode(vectors: npt.NDArray[np.floating]) -> Codes:
    """Codes of vectors, uint8 [..., dim], without their lengths: 128 is 0, and the largest component is 1 or 255."""
    largest = np.abs(vectors).max(axis=-1, keepdims=True)
    return (np.rint(127 * (vectors / np.where(largest > 0, largest, 1))) + ZERO).astype(np.uint8)


def decode(codes: Codes) -> Floats:
    """Vectors of codes, float32 [..., dim], of length 1; a vector whose codes are all 128 stays zero."""
    vectors = codes.astype(np.float32) - ZERO
    lengths = np.sqrt(np.einsum("...d,...d->...", vectors, vectors))[..., None]
    vectors /= np.where(lengths > 0, lengths, 1)
    return vectors


class LocalFeatures(ABC):
    """The local features of images.

    Attributes:
        grid: number of rows and columns of patches of each image.
        dim: number of dimensions of a patch.
        square: side of the square from the center that is divided into patches, as a fraction of the shorter side.
    """

    grid: tuple[int, int]
    dim: int
    square: float = 1.0

    @abstractmethod
    def __len__(self) -> int:
        """Number of images."""

    @abstractmethod
    def codes(self, rows: Integers) -> Codes:
        """Codes of some images, uint8 [images, patches, dim]."""

    def take(self, rows: npt.ArrayLike) -> LocalFeatures:
        """The local features of some images."""
        return SelectedFeatures(self, np.asarray(rows, np.int64))

    def vectors(self, rows: Integers) -> Floats:
        """Patches of some images, float32 [images, patches, dim]; of length 1, or 0 where the image has none."""
        return decode(self.codes(rows))


class StoredFeatures(LocalFeatures):
    """Local features in memory.

    Args:
        codes: uint8 [n, rows * columns, dim], the patches of each image row by row.
        grid: numbers of rows and columns.

    Raises:
        InputError: `codes` have another type or shape, or not as many patches as the grid.

    Example:
        >>> StoredFeatures(encode(np.eye(4)[None]), grid=(2, 2)).vectors(np.array([0]))[0, 1]
        array([0., 1., 0., 0.], dtype=float32)
    """

    def __init__(self, codes: Codes, grid: tuple[int, int]) -> None:
        given: Any = codes
        if not isinstance(given, np.ndarray) or given.dtype != np.uint8 or given.ndim != 3 or not given.shape[2]:
            kind = f"{given.dtype} {list(given.shape)}" if isinstance(given, np.ndarray) else type(given).__name__
            raise InputError(f"local features are {kind}; they must be uint8 [images, patches, dimensions]")
        if given.shape[1] != grid[0] * grid[1] or given.shape[1] < 1:
            raise InputError(f"local features of {given.shape[1]} patches do not fit a grid of {grid[0]} x {grid[1]}")
        self._codes, self.grid, self.dim = codes, grid, int(given.shape[2])

    def __len__(self) -> int:
        return len(self._codes)

    def codes(self, rows: Integers) -> Codes:
        return self._codes[rows]


class ComputedFeatures(LocalFeatures):
    """Local features of the images of a table, each computed when it is first needed, and kept."""

    def __init__(self, encoder: LocalEncoder, table: Table) -> None:
        self._encoder, self._table, self.grid, self.dim = encoder, table, encoder.grid, encoder.dim
        self.square = encoder.square
        self._codes = np.zeros((len(table), *encoder.shape), np.uint8)  # takes memory only where it is written to
        self._is_known: Booleans = np.zeros(len(table), np.bool_)

    def __len__(self) -> int:
        return len(self._table)

    def codes(self, rows: Integers) -> Codes:
        missing = np.unique(rows[~self._is_known[rows]])
        if len(missing):
            self._codes[missing] = self._encoder.encode(self._table.take(missing), progress=len(missing) > 1)
            self._is_known[missing] = True
        return self._codes[rows]


class SelectedFeatures(LocalFeatures):
    """A selection from other local features, by their rows."""

    def __init__(self, features: LocalFeatures, rows: Integers) -> None:
        self._features, self._rows, self.grid, self.dim = features, rows, features.grid, features.dim
        self.square = features.square

    def __len__(self) -> int:
        return len(self._rows)

    def codes(self, rows: Integers) -> Codes:
        return self._features.codes(self._rows[rows])


class IndexFeatures(LocalFeatures):
    """Local features of the images of an index, by their ids: stored ones are read, others are computed once.

    Images without a path, images deleted meanwhile and, without an encoder, images without stored features have patches
    that match nothing.
    """

    def __init__(self, index: ImageIndex, encoder: LocalEncoder | None = None) -> None:
        self._encoder, self._index = encoder, index
        settings = index.local_settings if encoder is None else encoder.to_settings()
        assert settings is not None
        (rows, columns), self.dim = settings["grid"], settings["dim"]
        self.grid, self._cache = (rows, columns), dict[int, Codes]()

    def __len__(self) -> int:
        return len(self._index)

    def codes(self, rows: Integers) -> Codes:
        shape = self.grid[0] * self.grid[1], self.dim
        if not len(rows):
            return np.empty((0, *shape), np.uint8)
        unknown = np.array(sorted(set(rows.tolist()) - self._cache.keys()), np.int64)
        stored = self._index.local_codes(unknown)
        found = {number: np.frombuffer(codes, np.uint8).reshape(shape) for number, codes in stored.items()}
        missing = np.array([number for number in unknown.tolist() if number not in found], np.int64)
        if len(missing) and self._encoder is not None:
            self._cache |= encode_items(self._index, missing, self._encoder)
        nothing = np.full(shape, ZERO, np.uint8)
        return np.stack([found.get(number, self._cache.get(number, nothing)) for number in rows.tolist()])


def encode_items(index: ImageIndex, ids: Integers, encoder: LocalEncoder) -> dict[int, Codes]:
    """Codes of images of an index by their ids; those without a path match nothing, deleted ones are left out."""
    frame = index.lookup(ids, skip_unknown=True)
    codes = np.full((len(frame), *encoder.shape), ZERO, np.uint8)
    has_path = frame["path"].notna().to_numpy() if "path" in frame else np.zeros(len(frame), np.bool_)
    if has_path.any():
        codes[has_path] = encoder.encode(image_columns(frame[has_path]), progress=len(ids) > 1)
    return dict(zip(frame["id"].tolist(), codes, strict=True))


def image_columns(frame: pd.DataFrame) -> Table:
    """The table of the images of some rows, without their labels and other columns."""
    columns = [column for column in frame if column in ("path", *BOX_COLUMNS)]
    return Table(frame[columns].reset_index(drop=True))


def sample_images(index: ImageIndex) -> Table:
    """Images of an index that a whitening is learned from."""
    ids = index.sample_ids(min(len(index), MAX_FIT_IMAGES), np.random.default_rng(0))
    frame = index.lookup(np.sort(ids), skip_unknown=True)
    if "path" not in frame or frame["path"].isna().all():
        raise InputError("the images of the index have no paths, so they have no local features")
    return image_columns(frame[frame["path"].notna()])


@dataclass(frozen=True)
class LocalEncoder:
    """Computes local features: patches of a feature map of an embedder's backbone, whitened, as codes.

    Args:
        model: see `patch_vectors` of `vicinal.models.feature_maps`, as for `size` and `layer`.
        whitening: learned on patches of length 1, see :meth:`fit`; None: they are taken as they are.
        grid: the numbers of rows and columns of patches of an image.
        size: side of the square that is divided into patches, in pixels; None: that of the model's transform.
        layer: the feature map, `last` or `previous`.

    Example:
        >>> from PIL import Image
        >>> from vicinal.data import ImageTransform
        >>> pictures = [Image.radial_gradient("L"), Image.linear_gradient("L"), Image.effect_noise((256, 256), 90)]
        >>> model = Embedder("test_resnet", dim=8, pretrained=False, transform=ImageTransform(size=64))
        >>> encoder = LocalEncoder.fit(model, pictures, dim=5)
        >>> encoder.encode(pictures).shape
        (3, 16, 5)
    """

    model: Embedder
    whitening: PCAWhitening | None
    grid: tuple[int, int]
    dim: int
    size: int | None = None
    layer: MapName = "previous"

    @classmethod
    def fit(
        cls, model: Embedder, source: Images, dim: int | None = 64, size: int | None = None, layer: MapName = "previous"
    ) -> LocalEncoder:
        """Learn the whitening from patches of the gallery.

        Args:
            model: the embedder.
            source: the images, of which at most 300, evenly spaced, are read.
            dim: number of dimensions that are kept, or all if the map has fewer; None: no whitening.
            size: as above.
            layer: as above.

        Raises:
            InputError: as `patch_vectors` of `vicinal.models.feature_maps`, or the patches are all equal.
        """
        parts, grids = [], [(0, 0)]
        for vectors, grid in patch_vectors(model, _subsample(source), size, layer):
            parts.append(_normalize(vectors))
            grids.append(grid)
        if not parts:
            raise InputError("there are no images to compute local features of; give at least one")
        patches = np.concatenate(parts).reshape(-1, parts[0].shape[2])
        whitening = None
        if dim is not None:
            step = -(-len(patches) // MAX_FIT_PATCHES)
            whitening = PCAWhitening.fit(patches[::step], min(dim, patches.shape[1]), SHRINKAGE)
        return cls(model, whitening, grids[-1], patches.shape[1] if whitening is None else whitening.dim, size, layer)

    def to_settings(self) -> dict[str, Any]:
        """All but the model, as values of JSON that :meth:`from_settings` reads."""
        arrays = {} if self.whitening is None else {name: getattr(self.whitening, name) for name in ARRAYS}
        return {
            "grid": list(self.grid), "dim": self.dim, "size": self.size, "layer": self.layer, "square": self.square,
            "whitening": {name: [list(array.shape), b64encode(array.tobytes()).decode()]
                          for name, array in arrays.items()} or None,
        }  # fmt: skip

    @classmethod
    def from_settings(cls, model: Embedder, settings: Mapping[str, Any]) -> LocalEncoder:
        """The encoder of a model from the result of :meth:`to_settings`."""
        stored = settings["whitening"]
        arrays = {
            name: np.frombuffer(b64decode(content)).reshape(shape) for name, (shape, content) in (stored or {}).items()
        }
        rows, columns = settings["grid"]
        whitening = PCAWhitening(**arrays) if stored else None
        return cls(model, whitening, (rows, columns), settings["dim"], settings["size"], settings["layer"])

    @property
    def square(self) -> float:
        """The side of the square from the center that is divided into patches, as a fraction of the shorter side."""
        transform = patch_transform(self.model, self.size)
        return transform.size / transform.shorter_side

    @property
    def shape(self) -> tuple[int, int]:
        """Number of patches of an image, and of dimensions of each; their product is the number of bytes."""
        return self.grid[0] * self.grid[1], self.dim

    def encode(self, source: Images, progress: bool = True) -> Codes:
        """Compute the codes of images, uint8 [n, patches, dim].

        Raises:
            InputError: an image cannot be read.
        """
        return np.concatenate([np.empty((0, *self.shape), np.uint8), *self._encoded(source, progress)])

    def _encoded(self, source: Images, progress: bool) -> Iterator[Codes]:
        for vectors, _ in patch_vectors(self.model, source, self.size, self.layer, progress=progress):
            units = _normalize(vectors)
            if self.whitening is not None:
                units = self.whitening.apply(units.reshape(-1, units.shape[2])).reshape(*units.shape[:2], self.dim)
            yield encode(units)

    def encode_all(self, source: Images) -> StoredFeatures:
        """The local features of images, all computed now."""
        return StoredFeatures(self.encode(source), self.grid)

    def features(self, table: Table) -> ComputedFeatures:
        """The local features of the images of a table, which are computed when they are needed."""
        return ComputedFeatures(self, table)


def _normalize(vectors: Floats) -> Floats:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, np.float32(1))


def _subsample(source: Any) -> Any:
    """At most `MAX_FIT_IMAGES` images, evenly spaced."""
    step = -(-len(source) // MAX_FIT_IMAGES) if len(source) else 1
    return source.take(np.arange(0, len(source), step)) if isinstance(source, Table) else source[::step]
