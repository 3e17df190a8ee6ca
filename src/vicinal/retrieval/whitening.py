"""PCA whitening: embeddings turned and stretched so that over a training set no direction counts more than another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy
import torch
from safetensors import SafetensorError
from torch import Tensor

from vicinal.arguments import is_number, is_whole
from vicinal.errors import InputError
from vicinal.files import write_bytes
from vicinal.retrieval.scores import BLOCK_ROWS, Array, holds_numbers

FORMAT = "vicinal-whitening"
TENSORS = {"mean": 1, "directions": 2, "variances": 1}  # each with its number of axes

LEAST = np.finfo(np.float64).tiny / np.finfo(np.float64).eps  # variances below it have lost digits

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)  # arrays have no one truth to compare by
class PCAWhitening:
    """Whitening by principal components (Jégou & Chum, "Negative evidences and co-occurences in image retrieval: the
    benefit of PCA and whitening", ECCV 2012).

    A vector x becomes (x - mean) · direction / sqrt(variance) for each of the directions, the one of largest variance
    first, and is brought to length 1. Vectors are taken as they are, so give those to learn from and those to whiten of
    the same kind, such as of length 1.

    Attributes:
        mean: float64 [dim].
        directions: float64 [kept, dim], rows of length 1, at right angles to each other.
        variances: float64 [kept], falling, with the shrinkage in them.

    Example:
        >>> vectors = np.random.default_rng(0).standard_normal((500, 3)) * [5.0, 1.0, 0.1]
        >>> whitening = PCAWhitening.fit(vectors)
        >>> np.cov(whitening.apply(vectors, normalize=False).T).round(3) + 0
        array([[1., 0., 0.],
               [0., 1., 0.],
               [0., 0., 1.]])
    """

    mean: Floats
    directions: Floats
    variances: Floats

    @classmethod
    def fit(cls, vectors: Array, dim: int | None = None, shrinkage: float = 0.0) -> PCAWhitening:
        """Learn from the vectors of a training set.

        Args:
            vectors: float [n, d], numpy or torch, of any precision; read in blocks, twice.
            dim: how many directions are kept; None: all.
            shrinkage: from 0 to 1: so much of the covariance is replaced by the same variance in all directions
                (Ledoit & Wolf, "A well-conditioned estimator for large-dimensional covariance matrices", 2004). What
                was rarely seen is stretched less; at 1 nothing is stretched, only turned.

        Raises:
            InputError: no matrix of numbers, NaN or infinity, fewer than two vectors, an impossible dim or shrinkage,
                a direction in which the vectors do not differ, or numbers too large to square.
        """
        matrix = _matrix(vectors)
        rows, width = matrix.shape
        if rows < 2:
            raise InputError(f"{rows} vectors to learn a whitening from; it takes at least two")
        if dim is not None and not (is_whole(dim) and 1 <= dim <= width):
            raise InputError(f"dim is {dim}; it must be a whole number from 1 to {width}")
        if not (is_number(shrinkage) and 0 <= shrinkage <= 1):
            raise InputError(f"shrinkage is {shrinkage!r}; it must be from 0 to 1")
        mean, covariance = _moments(matrix)
        variances, columns = np.linalg.eigh(covariance)
        kept = slice(None, -(width if dim is None else dim) - 1, -1)
        shrunk = (1 - shrinkage) * variances.clip(0) + shrinkage * np.trace(covariance) / width
        _check_spread(shrunk[kept], rows, width)
        return cls(mean, _with_signs(columns.T[kept]), shrunk[kept].copy())

    @property
    def dim(self) -> int:
        """Numbers in a whitened vector."""
        return len(self.variances)

    def fingerprint(self) -> str:
        """A short hash of its numbers: two whitenings with the same one do the same.

        Example:
            >>> len(PCAWhitening.fit(np.random.default_rng(0).standard_normal((9, 2))).fingerprint())
            16
        """
        return hashlib.sha256(b"".join(getattr(self, name).tobytes() for name in TENSORS)).hexdigest()[:16]

    def apply(self, vectors: Array, normalize: bool = True) -> npt.NDArray[np.float32]:
        """Whiten vectors.

        Args:
            vectors: float [n, d], numpy or torch, of any precision; read in blocks.
            normalize: bring them to length 1 afterwards; one that is the mean stays zero.

        Returns:
            float32 [n, dim].

        Raises:
            InputError: no matrix of numbers, another dimension, NaN or infinity, or a result too large for its type.
        """
        matrix = _matrix(vectors)
        if matrix.shape[1] != len(self.mean):
            raise InputError(
                f"vectors have {matrix.shape[1]} dimensions, the whitening was learned on {len(self.mean)}; "
                "both must be of one model"
            )
        whitened, stretched = np.empty((len(matrix), self.dim), np.float32), self.directions.T / self.variances**0.5
        for start, block in _blocks(matrix):
            with np.errstate(over="ignore", invalid="ignore"):
                values = (block - self.mean) @ stretched
            _check_size(values, np.float64 if normalize else np.float32, start)
            whitened[start : start + len(block)] = _unit(values) if normalize else values
        return whitened

    def save(self, path: str | Path) -> None:
        """Write to a .safetensors file, atomically.

        Raises:
            InputError: another ending.
            OSError: it cannot be written.

        Example:
            >>> import tempfile
            >>> whitening = PCAWhitening.fit(np.random.default_rng(0).standard_normal((9, 2)))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     whitening.save(f"{folder}/whitening.safetensors")
            ...     PCAWhitening.load(f"{folder}/whitening.safetensors").dim
            2
        """
        tensors = {name: np.ascontiguousarray(getattr(self, name)) for name in TENSORS}
        write_bytes(_checked_path(path), safetensors.numpy.save(tensors, {"format": FORMAT}))

    @classmethod
    def load(cls, path: str | Path) -> PCAWhitening:
        """Read what :meth:`save` wrote; nothing is unpickled.

        Raises:
            InputError: no such file, or not a whole one of a whitening.
        """
        path = _checked_path(path)
        try:
            data = path.read_bytes()
            tensors, described = safetensors.numpy.load(data), _metadata(data)
        except OSError as error:
            raise InputError(f"{path}: {(error.strerror or str(error)).lower()}") from None
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: not a whole .safetensors file ({error})") from None
        if described.get("format") != FORMAT:
            raise InputError(f"{path}: not a whitening: its format is not {FORMAT!r}")
        if not _fit_together(tensors):
            raise InputError(f"{path}: damaged: its tensors do not make a whitening; learn it again")
        return cls(**tensors)


def _matrix(vectors: Array) -> npt.NDArray[np.generic] | Tensor:
    matrix = vectors.detach() if isinstance(vectors, Tensor) else np.asarray(vectors)
    if matrix.ndim != 2 or not matrix.shape[1]:
        raise InputError(f"vectors have shape {list(matrix.shape)}; expected [rows, dimensions]")
    if not holds_numbers(matrix):
        raise InputError(f"vectors are of type {matrix.dtype}; expected floating-point numbers")
    return matrix


def _blocks(matrix: npt.NDArray[np.generic] | Tensor) -> Iterator[tuple[int, Floats]]:
    """The rows as float64, some at a time, each block with the number of its first row."""
    for start in range(0, len(matrix), BLOCK_ROWS):
        some = matrix[start : start + BLOCK_ROWS]
        block = some.to("cpu", torch.float64).numpy() if isinstance(some, Tensor) else some.astype(np.float64)
        broken = np.flatnonzero(~np.isfinite(block).all(axis=1))
        if len(broken):
            raise InputError(f"vector {start + broken[0]} holds NaN or infinity; every vector must be finite")
        yield start, block


def _moments(matrix: npt.NDArray[np.generic] | Tensor) -> tuple[Floats, Floats]:
    """Mean and unbiased covariance; the second pass is about the mean, so that no digits cancel out."""
    rows, width = matrix.shape
    mean, products = np.zeros(width), np.zeros((width, width))
    with np.errstate(over="ignore", invalid="ignore"):
        for _, block in _blocks(matrix):
            mean += block.sum(axis=0) / rows
        for _, block in _blocks(matrix):
            centred = block - mean
            products += centred.T @ centred
        if not np.isfinite(np.abs(products).sum()):
            raise InputError("the vectors hold numbers too large to square; bring them to length 1, here and to whiten")
    return mean, products / (rows - 1)


def _check_size(values: Floats, kind: type[np.floating[Any]], start: int) -> None:
    large = np.flatnonzero(~(np.abs(values) <= np.finfo(kind).max).all(axis=1))
    if len(large):
        raise InputError(
            f"vector {start + large[0]} is too large to whiten; give vectors like those that were learned from"
        )


def _check_spread(variances: Floats, rows: int, width: int) -> None:
    least = max(LEAST, variances[0] * width * np.finfo(np.float64).eps)
    flat = int((variances <= least).sum())
    if flat:
        raise InputError(
            f"in {flat} of {len(variances)} directions the {rows} vectors do not differ; "
            f"use dim <= {len(variances) - flat}, more vectors, or shrinkage above 0"
            if flat < len(variances)
            else f"the {rows} vectors are all the same, or differ by less than 1e-146; there is nothing to whiten"
        )


def _with_signs(directions: Floats) -> Floats:
    """Each direction turned so that its largest number is positive: the same on every machine."""
    largest = np.take_along_axis(directions, np.abs(directions).argmax(axis=1)[:, None], axis=1)
    return np.ascontiguousarray(directions * np.where(largest < 0, -1.0, 1.0))


def _unit(values: Floats) -> Floats:
    largest = np.abs(values).max(axis=1, keepdims=True)
    scaled = np.divide(values, largest, out=np.zeros_like(values), where=largest > 0)  # whose squares neither overflow
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True)  # nor vanish
    return np.divide(scaled, lengths, out=scaled, where=lengths > 0)


def _checked_path(path: str | Path) -> Path:
    path = Path(path)
    if path.suffix != ".safetensors":
        raise InputError(f"{path}: a whitening is kept in a file ending in .safetensors")
    return path


def _metadata(data: bytes) -> dict[str, str]:
    """What a .safetensors file says of itself: in the JSON at its head, whose length is its first eight bytes."""
    head = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    described: dict[str, str] = head.get("__metadata__", {})
    return described


def _fit_together(tensors: dict[str, npt.NDArray[np.generic]]) -> bool:
    if {name: tensor.ndim for name, tensor in tensors.items()} != TENSORS:
        return False
    if any(tensor.dtype != np.float64 or not np.isfinite(tensor).all() for tensor in tensors.values()):
        return False
    wanted = (len(tensors["variances"]), len(tensors["mean"]))
    return (
        tensors["directions"].shape == wanted and min(wanted) > 0 and bool(np.greater(tensors["variances"], 0.0).all())
    )
