"""PCA whitening: embeddings are rotated and scaled to the same variance in all directions over a training set."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vicinal.data.whitening_files import ARRAYS, read_whitening, write_whitening
from vicinal.retrieval.scores import BLOCK_ROWS, Array, is_numeric
from vicinal.utils.arguments import check_not_masked, is_integer, is_number
from vicinal.utils.arrays import Doubles, Floats
from vicinal.utils.errors import InputError

MIN_VARIANCE = np.finfo(np.float64).tiny / np.finfo(np.float64).eps  # variances below have lost digits


@dataclass(frozen=True, eq=False)  # comparing arrays does not give a single boolean
class PCAWhitening:
    """Whitening by principal components (Jégou & Chum, "Negative evidences and co-occurences in image retrieval: the
    benefit of PCA and whitening", ECCV 2012).

    A vector x becomes ``(x - mean) @ components.T / sqrt(explained_variance)`` and is then scaled to length 1. Vectors
    are taken as they are, so fit and apply must be given vectors of the same kind, such as of length 1.

    Attributes:
        mean: float64 [dim of the vectors].
        components: float64 [dim, dim of the vectors], orthonormal rows, that of the largest variance first.
        explained_variance: float64 [dim], descending, after shrinkage.

    Example:
        >>> vectors = np.random.default_rng(0).standard_normal((500, 3)) * [5.0, 1.0, 0.1]
        >>> whitening = PCAWhitening.fit(vectors)
        >>> np.cov(whitening.apply(vectors, normalize=False).T).round(3) + 0
        array([[1., 0., 0.],
               [0., 1., 0.],
               [0., 0., 1.]])
    """

    mean: Doubles
    components: Doubles
    explained_variance: Doubles

    @classmethod
    def fit(cls, vectors: Array, dim: int | None = None, shrinkage: float = 0.0) -> PCAWhitening:
        """Learn a whitening from the vectors of a training set.

        Args:
            vectors: float [n, d], numpy or torch, of any precision; they are read in blocks, twice.
            dim: number of components to keep; None keeps all.
            shrinkage: from 0 to 1, the fraction of the covariance that is replaced by equal variance in all directions
                (Ledoit & Wolf, "A well-conditioned estimator for large-dimensional covariance matrices", 2004).
                Directions of small variance are then amplified less; at 1 vectors are rotated only.

        Raises:
            InputError: `vectors` is not a matrix of finite numbers, has fewer than two rows, a direction without
                variance, or numbers too large to square; or `dim` or `shrinkage` is invalid.
        """
        matrix = as_matrix(vectors)
        rows, width = matrix.shape
        if rows < 2:
            raise InputError(f"{rows} vectors to learn a whitening from; at least two are needed")
        if dim is not None and not (is_integer(dim) and 1 <= dim <= width):
            raise InputError(f"dim is {dim}; it must be an integer from 1 to {width}")
        if not (is_number(shrinkage) and 0 <= shrinkage <= 1):
            raise InputError(f"shrinkage is {shrinkage!r}; it must be from 0 to 1")
        mean, covariance = _moments(matrix)
        variances, columns = np.linalg.eigh(covariance)
        kept = slice(None, -(width if dim is None else dim) - 1, -1)
        shrunk = (1 - shrinkage) * variances.clip(0) + shrinkage * np.trace(covariance) / width
        _check_variances(shrunk[kept], rows, width)
        return cls(mean, _fix_signs(columns.T[kept]), shrunk[kept].copy())

    @property
    def dim(self) -> int:
        """Number of dimensions of a whitened vector."""
        return len(self.explained_variance)

    def fingerprint(self) -> str:
        """Return a short hash of the arrays: two whitenings with the same hash give the same vectors."""
        return hashlib.sha256(b"".join(getattr(self, name).tobytes() for name in ARRAYS)).hexdigest()[:16]

    def apply(self, vectors: Array, normalize: bool = True) -> Floats:
        """Whiten vectors.

        Args:
            vectors: float [n, d], numpy or torch, of any precision; they are read in blocks.
            normalize: whether to scale the result to length 1; a vector that equals the mean becomes zero.

        Returns:
            float32 [n, dim].

        Raises:
            InputError: `vectors` is not a matrix of finite numbers, has a different dimension, or is too large.
        """
        matrix = as_matrix(vectors)
        if matrix.shape[1] != len(self.mean):
            raise InputError(
                f"vectors have {matrix.shape[1]} dimensions, the whitening was learned on {len(self.mean)}; "
                "both must be of one model"
            )
        whitened = np.empty((len(matrix), self.dim), np.float32)
        scaled = self.components.T / self.explained_variance**0.5
        for start, block in double_blocks(matrix):
            with np.errstate(over="ignore", invalid="ignore"):
                values = (block - self.mean) @ scaled
            _check_size(values, np.float64 if normalize else np.float32, start)
            whitened[start : start + len(block)] = unit_rows(values) if normalize else values
        return whitened

    def save(self, path: str | Path) -> None:
        """Write the whitening to a .safetensors file, atomically.

        Raises:
            InputError: the path does not end in .safetensors.
            OSError: the file cannot be written.

        Example:
            >>> import tempfile
            >>> whitening = PCAWhitening.fit(np.random.default_rng(0).standard_normal((9, 2)))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     whitening.save(f"{folder}/whitening.safetensors")
            ...     PCAWhitening.load(f"{folder}/whitening.safetensors").dim
            2
        """
        write_whitening(path, {name: getattr(self, name) for name in ARRAYS})

    @classmethod
    def load(cls, path: str | Path) -> PCAWhitening:
        """Read a file that :meth:`save` wrote; nothing is unpickled.

        Raises:
            InputError: the file does not exist, or is not a complete file of a whitening.
        """
        return cls(**read_whitening(path))


def as_matrix(vectors: Array) -> npt.NDArray[np.generic] | Tensor:
    """Vectors, checked to be a matrix of floating-point numbers."""
    check_not_masked(vectors, "vectors")
    matrix = vectors.detach() if isinstance(vectors, Tensor) else np.asarray(vectors)
    if matrix.ndim != 2 or not matrix.shape[1]:
        raise InputError(f"vectors have shape {list(matrix.shape)}; expected [rows, dimensions]")
    if not is_numeric(matrix):
        raise InputError(f"vectors are of type {matrix.dtype}; expected floating-point numbers")
    return matrix


def double_blocks(matrix: npt.NDArray[np.generic] | Tensor) -> Iterator[tuple[int, Doubles]]:
    """Yield the rows as float64 in blocks, each with the number of its first row."""
    for start in range(0, len(matrix), BLOCK_ROWS):
        rows = matrix[start : start + BLOCK_ROWS]
        block = rows.to("cpu", torch.float64).numpy() if isinstance(rows, Tensor) else rows.astype(np.float64)
        broken = np.flatnonzero(~np.isfinite(block).all(axis=1))
        if len(broken):
            raise InputError(f"vector {start + broken[0]} holds NaN or infinity; every vector must be finite")
        yield start, block


def _moments(matrix: npt.NDArray[np.generic] | Tensor) -> tuple[Doubles, Doubles]:
    """Return mean and unbiased covariance, in two passes so that no digits cancel out."""
    rows, width = matrix.shape
    mean, products = np.zeros(width), np.zeros((width, width))
    with np.errstate(over="ignore", invalid="ignore"):
        for _, block in double_blocks(matrix):
            mean += block.sum(axis=0) / rows
        for _, block in double_blocks(matrix):
            centered = block - mean
            products += centered.T @ centered
        if not np.isfinite(np.abs(products).sum()):
            raise InputError("the vectors hold numbers too large to square; scale them to length 1, here and to whiten")
    return mean, products / (rows - 1)


def _check_size(values: Doubles, kind: type[np.floating[Any]], start: int) -> None:
    large = np.flatnonzero(~(np.abs(values) <= np.finfo(kind).max).all(axis=1))
    if len(large):
        raise InputError(
            f"vector {start + large[0]} is too large to whiten; give vectors like those of the training set"
        )


def _check_variances(variances: Doubles, rows: int, width: int) -> None:
    smallest = max(MIN_VARIANCE, variances[0] * width * np.finfo(np.float64).eps)
    flat = int((variances <= smallest).sum())
    if flat == len(variances):
        raise InputError(f"the {rows} vectors are all equal, or differ by less than 1e-146; there is nothing to whiten")
    if flat:
        raise InputError(
            f"in {flat} of {len(variances)} directions the {rows} vectors do not differ; "
            f"use dim <= {len(variances) - flat}, more vectors, or shrinkage above 0"
        )


def _fix_signs(components: Doubles) -> Doubles:
    """Choose the sign of each component so that its largest number is positive: the same on every machine."""
    largest = np.take_along_axis(components, np.abs(components).argmax(axis=1)[:, None], axis=1)
    return np.ascontiguousarray(components * np.where(largest < 0, -1.0, 1.0))


def unit_rows(values: Doubles) -> Doubles:
    """Rows scaled to length 1; zeros stay zeros."""
    largest = np.abs(values).max(axis=1, keepdims=True)
    scaled = np.divide(values, largest, out=np.zeros_like(values), where=largest > 0)  # squares are then in range
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
    return np.divide(scaled, lengths, out=scaled, where=lengths > 0)
