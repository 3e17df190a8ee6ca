"""Checkpoints: a training state written whole or not at all, and read without running anyone's code."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch

from vicinal.errors import InputError
from vicinal.files import write_bytes


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint atomically: a kill at any moment leaves the former or the new one."""
    buffer = io.BytesIO()  # torch.save to a full disk dies without saying so; bytes are written by us
    torch.save(state, buffer)
    write_bytes(path, buffer.getvalue())


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU; only tensors and plain values are accepted.

    Raises:
        InputError: the file is missing, damaged or holds anything else.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InputError(f"no checkpoint at {path}") from None
    except Exception as error:  # torch raises many kinds for damaged files
        raise InputError(f"{path} is not a checkpoint of Vicinal: {type(error).__name__}") from None
    if not isinstance(state, dict):
        raise InputError(f"{path} is not a checkpoint of Vicinal")
    return state


def require_keys(path: Path, state: dict[str, Any], *keys: str) -> None:
    """Raise InputError, naming the file, unless the state has all the keys."""
    missing = [key for key in keys if key not in state]
    if missing:
        raise InputError(f"{path} is not a checkpoint of a run: {', '.join(missing)} is missing")
