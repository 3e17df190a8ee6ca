"""Checkpoints: written as a whole or not at all, and read without executing any code from the file."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import torch

from vicinal.utils.errors import InputError, raise_if_of_system
from vicinal.utils.files import write_bytes


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint atomically: if the process is killed, the old or the new one exists."""
    buffer = io.BytesIO()  # on a full disk torch.save dies without a message, so the file is written by write_bytes
    torch.save(state, buffer)
    write_bytes(path, buffer.getvalue())


def load_checkpoint(path: Path, *keys: str) -> dict[str, Any]:
    """Read a checkpoint that has these keys onto the CPU; only tensors and plain values are accepted."""
    try:
        is_damaged = _is_damaged(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InputError(f"no checkpoint at {path}") from None
    except Exception as error:  # torch raises many kinds of errors for damaged files
        raise_if_of_system(error, path)
        raise InputError(f"{path} is not a checkpoint of Vicinal, or is damaged") from None
    if is_damaged:
        raise InputError(f"{path} is damaged: its content has changed; delete its run and train again")
    if not isinstance(state, dict):
        raise InputError(f"{path} is not a checkpoint of Vicinal")
    missing = [key for key in keys if key not in state]
    if missing:
        raise InputError(f"{path} is not a checkpoint of a run: {', '.join(missing)} is missing")
    return state


def _is_damaged(path: Path) -> bool:
    """Whether a checkpoint differs from its CRC-32, which `torch.save` writes and `torch.load` ignores."""
    with zipfile.ZipFile(path) as archive:
        try:
            return archive.testzip() is not None
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError):  # damaged flags or sizes of a member
            return True
