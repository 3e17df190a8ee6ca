"""Files of PCA whitenings and other float64 arrays, as .safetensors. Their content is not trusted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from vicinal.utils.arrays import Doubles
from vicinal.utils.errors import InputError
from vicinal.utils.files import check_regular_file, write_bytes

KIND = "whitening"
ARRAYS = {"mean": 1, "components": 2, "explained_variance": 1}  # each with its number of axes


def write_whitening(path: str | Path, arrays: Mapping[str, Doubles]) -> None:
    """Write the arrays of a whitening atomically."""
    write_arrays(path, KIND, {name: arrays[name] for name in ARRAYS})


def read_whitening(path: str | Path) -> dict[str, Doubles]:
    """Read what :func:`write_whitening` wrote; nothing is unpickled.

    The arrays are `mean` [dim of the vectors], `components` [dim, dim of the vectors] and `explained_variance` [dim].
    """
    arrays, _ = read_arrays(path, KIND, ARRAYS)
    variances, shape = arrays["explained_variance"], (len(arrays["explained_variance"]), len(arrays["mean"]))
    if arrays["components"].shape != shape or min(shape) == 0 or not np.greater(variances, 0.0).all():
        raise InputError(f"{path}: damaged: its tensors are not those of a whitening; learn it again")
    return arrays


def write_arrays(
    path: str | Path, kind: str, arrays: Mapping[str, Doubles], metadata: Mapping[str, str] | None = None
) -> None:
    """Write float64 arrays atomically, as a file of a kind, such as whitening."""
    tensors = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    content = safetensors.numpy.save(tensors, {**(metadata or {}), "format": f"vicinal-{kind}"})
    write_bytes(_checked_path(path, kind), content)


def read_arrays(path: str | Path, kind: str, axes: Mapping[str, int]) -> tuple[dict[str, Doubles], dict[str, str]]:
    """Read what :func:`write_arrays` wrote, with these numbers of axes: arrays of finite numbers, and metadata."""
    path = _checked_path(path, kind)
    check_regular_file(path)
    try:
        with safe_open(path, "numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is not a dict
            metadata = file.metadata() or {}
    except OSError as error:
        raise InputError(f"{path}: it cannot be read ({error})") from None
    except (SafetensorError, ValueError, TypeError) as error:
        raise InputError(f"{path}: not a complete .safetensors file ({error})") from None
    if metadata.get("format") != f"vicinal-{kind}":
        raise InputError(f"{path}: not {_with_article(kind)}: its format is not 'vicinal-{kind}'")
    is_valid = all(array.dtype == np.float64 and np.isfinite(array).all() for array in arrays.values())
    if {name: array.ndim for name, array in arrays.items()} != axes or not is_valid:
        raise InputError(f"{path}: damaged: its tensors are not those of {_with_article(kind)}; learn it again")
    return arrays, metadata


def _checked_path(path: str | Path, kind: str) -> Path:
    path = Path(path)
    if path.suffix != ".safetensors":
        raise InputError(f"{path}: {_with_article(kind)} is kept in a file ending in .safetensors")
    return path


def _with_article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeio" else f"a {kind}"
