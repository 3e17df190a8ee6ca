"""The layout of faiss's files, checked before faiss reads them.

faiss allocates what a file's sizes say, follows nested indexes to any depth, opens other files that a file names, and
searches a graph without looking at its bounds. So each size is compared with the file, only the parts that Vicinal
writes are accepted, and every link of a graph must lead to a vector.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from vicinal.utils.errors import InputError

INNER_PRODUCT = 0
CODE_VALUES = 256
SQ8_FORM = 0  # one byte per dimension, with a range for each
RABITQ_NUMBERS = np.dtype(("<f4", 2))


def check_layout(data: bytes) -> None:
    """Check the serialized bytes of an exact, hnsw, sq8, ivfpq or rabitq index for cosine similarities.

    Raises:
        InputError: they are something else or damaged, or a size is larger than the file.
    """
    layout = _Layout(data)
    kind = data[:4]
    if kind == b"IxFI":
        layout.read_flat()
    elif kind == b"IHNf":
        layout.read_hnsw()
    elif kind == b"IxSQ":
        layout.read_sq8()
    elif kind == b"IwPQ":
        layout.read_ivfpq()
    elif kind == b"Iwrq":
        layout.read_rabitq()
    else:
        raise InputError("it is not an exact, hnsw, sq8, ivfpq or rabitq index of faiss")
    _require(layout.position == len(data), f"{len(data) - layout.position:,} bytes follow its end")


class _Layout:
    """Reads one part of a file after the other."""

    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def read_flat(self) -> tuple[int, int]:
        """The vectors themselves; returns their number and dimensions."""
        count, dim = self._read_header(b"IxFI")
        vectors = self._read_array("<f4", expected=count * dim).reshape(count, dim)
        _check_unit(vectors)
        return count, dim

    def read_hnsw(self) -> None:
        """A graph, and its vectors."""
        count, dim = self._read_header(b"IHNf")
        self._read_array("<f8")  # the probabilities of levels
        widths, levels = self._read_array("<i4"), self._read_array("<i4", expected=count)
        offsets = self._read_array("<u8", expected=count + 1)
        links = self._read_array("<i4")
        entry, max_level = self._read("<iiiii")[:2]
        _check_graph(widths, levels, offsets, links)
        is_entry = 0 <= entry < count and max_level + 1 == levels[entry] if count else entry == -1
        _require(is_entry, "its graph starts at a vector that it does not have")
        _require(self.read_flat() == (count, dim), "its graph and its vectors differ in number")

    def read_sq8(self) -> None:
        """The range of each dimension, and one byte per dimension and vector."""
        count, dim = self._read_header(b"IxSQ", bytes_per_vector=1)
        form, _, _, quantizer_dim, code_size = self._read("<iifQQ")
        _require((form, quantizer_dim, code_size) == (SQ8_FORM, dim, dim), "its scalar quantizer is of another form")
        ranges = self._read_array("<f4", expected=2 * dim)
        _require(bool((np.abs(ranges) <= 2.01).all()), "its ranges are not those of unit vectors")
        self._read_array("<u1", expected=count * dim)

    def read_rabitq(self) -> None:
        """Centroids of lists, and lists of codes of one bit per dimension, each with two numbers."""
        count, dim = self._read_header(b"Iwrq", bytes_per_vector=9)
        num_lists = self._read_lists_header(count, dim)
        quantizer_dim, code_size, metric, same_size, is_residual, _ = self._read("<QQiQBB")
        is_whole = quantizer_dim == dim and code_size == same_size == (dim + 7) // 8 + RABITQ_NUMBERS.itemsize
        _require(is_whole and metric == INNER_PRODUCT and is_residual == 1, "its quantizer is of another form")
        self._read_lists(count, num_lists, code_size, has_numbers=True)

    def _read_lists_header(self, count: int, dim: int) -> int:
        """The centroids of lists, and where ids are; returns the number of lists."""
        num_lists, _ = self._read("<QQ")
        self._read_centroids(num_lists, dim)
        (map_type,) = self._read("<b")
        _require(map_type in (0, 1), "it has a hash table of ids")
        self._read_array("<i8", expected=count if map_type else 0)
        return int(num_lists)

    def read_ivfpq(self) -> None:
        """Centroids of lists, a product quantizer, and lists of codes."""
        count, dim = self._read_header(b"IwPQ", bytes_per_vector=9)
        num_lists = self._read_lists_header(count, dim)
        _, code_size = self._read("<BQ")
        quantizer_dim, num_codes, num_bits = self._read("<QQQ")
        is_whole = quantizer_dim == dim and num_bits == 8 and 0 < num_codes == code_size and dim % num_codes == 0
        _require(is_whole, "its product quantizer is of other dimensions")
        _check_finite(self._read_array("<f4", expected=dim * CODE_VALUES))
        self._read_lists(count, num_lists, code_size)

    def _read_centroids(self, num_lists: int, dim: int) -> None:
        """The centroids of lists: means of unit vectors, so none is longer."""
        count, centroid_dim = self._read_header(b"IxFI")
        centroids = self._read_array("<f4", expected=count * centroid_dim).reshape(count, centroid_dim)
        _require((count, centroid_dim) == (num_lists, dim) and count > 0, "its lists and their centroids differ")
        _check_finite(centroids)
        _require(_squared_lengths(centroids).max(initial=0) <= 1.01, "its centroids are not those of unit vectors")

    def _read_lists(self, count: int, num_lists: int, code_size: int, has_numbers: bool = False) -> None:
        """The codes and ids of each list; codes of `rabitq` end with numbers, which must be finite."""
        _require(self._read("4s")[0] == b"ilar", "its lists are in another file, or of an unknown form")
        _require(self._read("<QQ") == (num_lists, code_size), "its lists differ in number or codes")
        sizes = self._read_sizes(num_lists)
        _require(int(sizes.sum()) == count, "its lists do not hold its vectors")
        is_present = np.zeros(count, dtype=bool)
        for size in sizes.tolist():
            codes = np.frombuffer(self._take(size * code_size), np.uint8).reshape(size, code_size)
            if has_numbers:
                numbers = np.ascontiguousarray(codes[:, -RABITQ_NUMBERS.itemsize :]).view(RABITQ_NUMBERS.base)
                _check_finite(numbers)
            ids = np.frombuffer(self._take(size * 8), "<i8")
            _require(not len(ids) or (ids.min() >= 0 and ids.max() < count), "its lists hold ids that it never gave")
            is_present[ids] = True
        _require(bool(is_present.all()), "its lists hold an id twice")

    def _read_sizes(self, num_lists: int) -> npt.NDArray[np.int64]:
        """The size of each list; where few lists are used, only theirs are written, each with its list."""
        (form,) = self._read("4s")
        if form == b"full":
            sizes = self._read_array("<i8", expected=num_lists)
        else:
            _require(form == b"sprs", "its lists are of an unknown form")
            pairs = self._read_array("<i8").reshape(-1, 2)
            lists, sizes = pairs[:, 0], pairs[:, 1]
            _require(bool((np.diff(lists) > 0).all()) and lists.max(initial=0) < num_lists, "its lists are disordered")
        _require(sizes.min(initial=0) >= 0 and sizes.max(initial=0) <= len(self.data), "its lists are longer than it")
        return sizes

    def _read_header(self, kind: bytes, bytes_per_vector: int | None = None) -> tuple[int, int]:
        """The part that all indexes begin with; returns the number of vectors and their dimensions."""
        found, dim, count, _, _, is_trained, metric = self._read("<4siqqqBi")
        _require(found == kind, "it has another index inside")
        _require(dim > 0 and count >= 0 and is_trained == 1, "its header is impossible")
        size = count * (4 * dim if bytes_per_vector is None else bytes_per_vector)
        _require(
            size <= len(self.data),
            f"its header tells of {count:,} vectors of {dim:,} dimensions, at least {size / 1e9:,.3f} GB, "
            f"but the file has {len(self.data) / 1e9:,.6f} GB",
        )
        _require(metric == INNER_PRODUCT, "it compares by another metric than the inner product of unit vectors")
        return count, dim

    def _read_array(self, kind: str, expected: int | None = None) -> npt.NDArray[Any]:
        (length,) = self._read("<Q")
        _require(expected in (None, length), f"it has {length:,} values where there must be {expected}")
        return np.frombuffer(self._take(length * np.dtype(kind).itemsize), kind)

    def _read(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(form, self._take(struct.calcsize(form)))

    def _take(self, size: int) -> memoryview:
        start, self.position = self.position, self.position + size
        left = len(self.data) - start
        _require(size <= left, f"{size:,} bytes are missing where {left:,} are left")
        return memoryview(self.data)[start : self.position]


def _check_graph(
    widths: npt.NDArray[np.int32],
    levels: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.uint64],
    links: npt.NDArray[np.int32],
) -> None:
    """Check the links of a graph: `widths` are the sums of links of a vector below each level."""
    message = "the links of its graph lead elsewhere"
    _require(len(widths) > 1 and widths[0] == 0 and bool((np.diff(widths) >= 0).all()), message)
    if not len(levels):
        return _require(not len(links) and not offsets.any(), message)
    _require(levels.min() >= 1 and levels.max() < len(widths) and widths[-1] <= 2**20, message)
    starts = offsets.astype(np.int64)
    _require(starts[0] == 0 and np.array_equal(np.diff(starts), widths[levels]) and starts[-1] == len(links), message)
    _require(links.min(initial=-1) >= -1 and links.max(initial=-1) < len(levels), message)
    for level in range(1, int(levels.max())):  # a vector has links on the levels below its own only
        rows = np.flatnonzero(levels > level)
        targets = links[starts[rows, None] + np.arange(widths[level], widths[level + 1])]
        _require(bool((levels[targets[targets >= 0]] > level).all()), message)


def _check_unit(vectors: npt.NDArray[np.float32]) -> None:
    """Check that all vectors have length 1, or 0; block by block."""
    for start in range(0, len(vectors), 4096):
        squared = _squared_lengths(vectors[start : start + 4096])
        wrong = np.flatnonzero(~((np.abs(squared - 1) < 1e-3) | (squared == 0)))
        if len(wrong):
            length = float(np.sqrt(squared[wrong[0]]))
            raise InputError(f"its vector {start + wrong[0]:,} has length {length:g}; all must have length 1")


def _squared_lengths(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.einsum("nd,nd->n", vectors, vectors)


def _check_finite(values: npt.NDArray[np.float32]) -> None:
    _require(bool(np.isfinite(values).all()), "it holds NaN or infinity")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InputError(message)
