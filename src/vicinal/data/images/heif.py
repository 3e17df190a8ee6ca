"""HEIC, the format of photos of iPhones: read by the package pillow-heif, which the extra `heif` installs."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec

HEIF_SUFFIXES = (".heic", ".heif")
HEIF_NEEDS = "HEIC needs the package pillow-heif: pip install 'vicinal[heif]', or convert to JPEG"


@cache
def reads_heif() -> bool:
    """Whether images in HEIC can be read."""
    return find_spec("pillow_heif") is not None


def register_heif() -> tuple[str, ...]:
    """Let Pillow open HEIC, if the package is installed; returns the names of the formats that this adds."""
    if not reads_heif():
        return ()
    import_module("pillow_heif").register_heif_opener()
    return ("HEIF",)
