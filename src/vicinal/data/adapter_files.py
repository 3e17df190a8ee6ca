"""Files of linear adapters: two float64 arrays and two fingerprints as .safetensors. Their content is not trusted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vicinal.data.whitening_files import read_arrays, write_arrays
from vicinal.utils.arrays import Doubles
from vicinal.utils.errors import InputError

KIND = "adapter"
ARRAYS = {"matrix": 2, "offset": 1}  # each with its number of axes
MODELS = ("source", "target")  # fingerprints of models, where they are known


def write_adapter(path: str | Path, arrays: Mapping[str, Doubles], models: Mapping[str, str]) -> None:
    """Write the arrays of an adapter and the fingerprints of its models atomically."""
    write_arrays(path, KIND, {name: arrays[name] for name in ARRAYS}, models)


def read_adapter(path: str | Path) -> tuple[dict[str, Doubles], dict[str, str]]:
    """Read what :func:`write_adapter` wrote; nothing is unpickled.

    Returns:
        `matrix` [dim of the source, dim of the target] and `offset` [dim of the target], float64; and the fingerprints
        `source` and `target` that are known.
    """
    arrays, metadata = read_arrays(path, KIND, ARRAYS)
    matrix, offset = arrays["matrix"], arrays["offset"]
    if matrix.shape[1:] != offset.shape or not matrix.size:
        raise InputError(f"{path}: damaged: its tensors are not those of an adapter; learn it again")
    return arrays, {name: metadata[name] for name in MODELS if name in metadata}
