"""Files of PCA whitenings: three float64 arrays as .safetensors. Their content is not trusted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from vicinal.utils.arrays import Doubles
from vicinal.utils.errors import InputError
from vicinal.utils.files import check_regular_file, write_bytes

FORMAT = "vicinal-whitening"
ARRAYS = {"mean": 1, "components": 2, "explained_variance": 1}  # each with its number of axes


def write_whitening(path: str | Path, arrays: Mapping[str, Doubles]) -> None:
    """Write the arrays of a whitening atomically."""
    tensors = {name: np.ascontiguousarray(arrays[name]) for name in ARRAYS}
    write_bytes(_checked_path(path), safetensors.numpy.save(tensors, {"format": FORMAT}))


def read_whitening(path: str | Path) -> dict[str, Doubles]:
    """Read what :func:`write_whitening` wrote; nothing is unpickled.

    Returns:
        `mean` [dim of the vectors], `components` [dim, dim of the vectors] and `explained_variance` [dim], float64.
    """
    path = _checked_path(path)
    check_regular_file(path)
    try:
        with safe_open(path, "numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is not a dict
            metadata = file.metadata() or {}
    except OSError as error:
        raise InputError(f"{path}: it cannot be read ({error})") from None
    except (SafetensorError, ValueError, TypeError) as error:
        raise InputError(f"{path}: not a complete .safetensors file ({error})") from None
    if metadata.get("format") != FORMAT:
        raise InputError(f"{path}: not a whitening: its format is not {FORMAT!r}")
    if not _is_valid(arrays):
        raise InputError(f"{path}: damaged: its tensors are not those of a whitening; learn it again")
    return arrays


def _checked_path(path: str | Path) -> Path:
    path = Path(path)
    if path.suffix != ".safetensors":
        raise InputError(f"{path}: a whitening is kept in a file ending in .safetensors")
    return path


def _is_valid(arrays: dict[str, npt.NDArray[np.generic]]) -> bool:
    """Return whether the arrays have the names, types and shapes of a whitening, finite values and variances > 0."""
    if {name: array.ndim for name, array in arrays.items()} != ARRAYS:
        return False
    if any(array.dtype != np.float64 or not np.isfinite(array).all() for array in arrays.values()):
        return False
    variances, shape = arrays["explained_variance"], (len(arrays["explained_variance"]), len(arrays["mean"]))
    return arrays["components"].shape == shape and min(shape) > 0 and bool(np.greater(variances, 0.0).all())
