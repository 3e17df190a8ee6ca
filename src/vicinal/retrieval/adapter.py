"""LinearAdapter: a linear map from the embeddings of an old model to those of a new one, or the other way."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import scipy.linalg

from vicinal.data.whitening_files import read_arrays, write_arrays
from vicinal.retrieval.scores import Array
from vicinal.retrieval.whitening import as_matrix, double_blocks, unit_rows
from vicinal.utils.arguments import MAX_MAGNITUDE, is_number
from vicinal.utils.arrays import Doubles, Floats
from vicinal.utils.errors import InputError

Method = Literal["procrustes", "ridge"]
ARRAYS = {"matrix": 2, "offset": 1}  # of its file, which is not trusted, each with its number of axes
MODELS = ("source", "target")  # fingerprints of models, where they are known


@dataclass(frozen=True, eq=False)  # comparing arrays does not give a single boolean
class LinearAdapter:
    """A linear map between the embeddings of two models, learned from images that both have embedded.

    A vector x becomes ``x @ matrix + offset`` and is then scaled to length 1.

    Attributes:
        matrix: float64 [dim of the source, dim of the target].
        offset: float64 [dim of the target]; zeros for Procrustes.
        source: fingerprint of the model whose vectors are mapped; None if it is not known.
        target: fingerprint of the model whose vectors the result is compared with; None if it is not known.

    Example:
        >>> old = np.random.default_rng(0).standard_normal((50, 3))
        >>> new = old[:, [1, 2, 0]]  # another basis
        >>> LinearAdapter.fit(old, new).matrix.round(6) + 0
        array([[0., 0., 1.],
               [1., 0., 0.],
               [0., 1., 0.]])
    """

    matrix: Doubles
    offset: Doubles
    source: str | None = None
    target: str | None = None

    @classmethod
    def fit(
        cls,
        source: Array,
        target: Array,
        method: Method = "procrustes",
        alpha: float = 1.0,
        models: tuple[str | None, str | None] = (None, None),
    ) -> LinearAdapter:
        """Learn a map in closed form, in float64.

        Args:
            source: float [n, d], embeddings of images by one model, numpy or torch; they are read in blocks.
            target: float [n, e], embeddings of the same images by the other model.
            method: `procrustes`, the orthogonal matrix with the smallest squared distance of ``source @ matrix`` to
                `target` (Schönemann, "A generalized solution of the orthogonal Procrustes problem", 1966), which keeps
                all similarities among mapped vectors and needs equal dimensions; or `ridge`, ridge regression with an
                intercept, for any dimensions.
            alpha: weight of the squared matrix in ridge regression, above 0.
            models: fingerprints of source and target.

        Raises:
            InputError: the vectors are not two matrices of finite numbers with the same rows, at least two; their
                dimensions differ for `procrustes`; or an argument is invalid.
        """
        x, y = as_matrix(source), as_matrix(target)
        if len(x) != len(y) or len(x) < 2:
            raise InputError(f"{len(x)} and {len(y)} embeddings; an adapter needs those of the same images, at least 2")
        if method not in ("procrustes", "ridge"):
            raise InputError(f"method is {method!r}; it must be procrustes or ridge")
        if not (is_number(alpha) and 0 < alpha <= MAX_MAGNITUDE):
            raise InputError(f"alpha is {alpha!r}; it must be above 0 and at most {MAX_MAGNITUDE:g}")
        width, dim = x.shape[1], y.shape[1]
        if method == "procrustes" and width != dim:
            raise InputError(f"procrustes needs equal dimensions, not {width} and {dim}; use ridge")
        matrix, offset = _procrustes(x, y) if method == "procrustes" else _ridge(x, y, alpha)
        return cls(matrix, offset, *models)

    def fingerprint(self) -> str:
        """Return a short hash of the arrays."""
        return hashlib.sha256(b"".join(getattr(self, name).tobytes() for name in ARRAYS)).hexdigest()[:16]

    def apply(self, vectors: Array) -> Floats:
        """Map vectors: stored ones of a gallery, or queries.

        Args:
            vectors: float [n, dim of the source], numpy or torch; they are read in blocks.

        Returns:
            float32 [n, dim of the target], of length 1.

        Raises:
            InputError: `vectors` is not a matrix of finite numbers, or has another dimension.
        """
        matrix = as_matrix(vectors)
        if matrix.shape[1] != len(self.matrix):
            raise InputError(
                f"vectors have {matrix.shape[1]} dimensions, the adapter was learned on {len(self.matrix)}; "
                "give those of the model that it maps from"
            )
        mapped = np.empty((len(matrix), len(self.offset)), np.float32)
        for start, block in double_blocks(matrix):
            with np.errstate(over="ignore", invalid="ignore"):
                values = block @ self.matrix + self.offset
            if not np.isfinite(values).all():
                raise InputError("the vectors hold numbers too large to map; scale them to length 1")
            mapped[start : start + len(block)] = unit_rows(values)
        return mapped

    def check_model(self, fingerprint: str | None) -> None:
        """Raise InputError if vectors are known to be of another model than the one that is mapped from."""
        if None not in (fingerprint, self.source) and fingerprint != self.source:
            raise InputError(f"the adapter maps embeddings of {self.source}, and these are of {fingerprint}")

    def save(self, path: str | Path) -> None:
        """Write the adapter to a .safetensors file, atomically.

        Raises:
            InputError: the path does not end in .safetensors.
            OSError: the file cannot be written.
        """
        models = {name: value for name in MODELS if (value := getattr(self, name)) is not None}
        write_arrays(path, "adapter", {name: getattr(self, name) for name in ARRAYS}, models)

    @classmethod
    def load(cls, path: str | Path) -> LinearAdapter:
        """Read a file that :meth:`save` wrote; nothing is unpickled.

        Raises:
            InputError: the file does not exist, or is not a complete file of an adapter.
        """
        arrays, metadata = read_arrays(path, "adapter", ARRAYS)
        matrix, offset = arrays["matrix"], arrays["offset"]
        if matrix.shape[1:] != offset.shape or not matrix.size:
            raise InputError(f"{path}: damaged: its tensors are not those of an adapter; learn it again")
        return cls(matrix, offset, *map(metadata.get, MODELS))


def _procrustes(x: Array, y: Array) -> tuple[Doubles, Doubles]:
    left, _, right = scipy.linalg.svd(_product(x, y, 0.0, 0.0))
    return left @ right, np.zeros(y.shape[1])


def _ridge(x: Array, y: Array, alpha: float) -> tuple[Doubles, Doubles]:
    x_mean, y_mean = _mean(x), _mean(y)
    squares = _product(x, x, x_mean, x_mean)
    squares[np.diag_indices(len(squares))] += alpha
    try:
        matrix = scipy.linalg.solve(squares, _product(x, y, x_mean, y_mean), assume_a="pos")
    except scipy.linalg.LinAlgError:
        raise InputError(f"alpha is {alpha!r}, too small for these embeddings; use a larger one") from None
    return matrix, y_mean - x_mean @ matrix


def _mean(x: Array) -> Doubles:
    return sum((block.sum(axis=0) for _, block in double_blocks(x)), np.zeros(x.shape[1])) / len(x)


def _product(x: Array, y: Array, x_mean: Doubles | float, y_mean: Doubles | float) -> Doubles:
    """The product of two matrices over their rows, block by block, each less its mean."""
    product = np.zeros((x.shape[1], y.shape[1]))
    for (_, block), (_, other_block) in zip(double_blocks(x), double_blocks(y), strict=True):
        product += (block - x_mean).T @ (other_block - y_mean)
    if not np.isfinite(product).all():
        raise InputError("the vectors hold numbers too large to multiply; scale them to length 1")
    return product
