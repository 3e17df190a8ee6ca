"""Where a benchmark lies: its folder is known by a file that the published archive has."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from vicinal.data.benchmarks.cache import cache_folder
from vicinal.utils.errors import InputError

MAX_NAMES = 8  # of files that a message lists


def find_folder(root: str | Path | None, names: Sequence[str], markers: Sequence[str], hint: str) -> tuple[Path, str]:
    r"""Find the folder of a benchmark and the first of its markers in it.

    The folder is `root/NAME` for one of the names, or `root` itself, so that an archive can be unpacked into the root,
    or its folder can be given as the root. Archives that lie in a folder of the benchmark's own name are found too.

    Args:
        root: The folder of benchmarks; by default the environment variable VICINAL_DATA, else ~/.cache/vicinal.
        names: The folders that may hold the benchmark: its name here, then those of the published archives.
        markers: Files or folders, relative to the folder of the benchmark, any of which tells that this is it.
        hint: What to do if there is none, such as where to download it.

    Raises:
        InputError: No folder has a marker. The message says what was looked for, and what is there instead.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     (Path(root) / "CUB_200_2011").mkdir()
        ...     _ = (Path(root) / "CUB_200_2011" / "images.txt").write_text("1 a.jpg\n")
        ...     folder, marker = find_folder(root, ["cub", "CUB_200_2011"], ["images.txt"], "download it")
        >>> folder.name, marker
        ('CUB_200_2011', 'images.txt')
    """
    top = cache_folder(root)
    folders = [*(top / name for name in names), *(top / names[0] / name for name in names[1:]), top]
    found = [(folder, marker) for folder in folders for marker in markers if (folder / marker).exists()]
    if found:
        return found[0]
    here = next(folder for folder in folders if folder.is_dir() or folder == top)
    raise InputError(
        f"{top}: no {' or '.join(markers)} in {', '.join(f'{name}/' for name in names)} or the folder itself; "
        f"{_content(here, top)}; {hint}, or give the folder that holds it as root"
    )


def _content(folder: Path, root: Path) -> str:
    """What there is in a folder, for a message."""
    name = "it" if folder == root else f"{folder.relative_to(root)}/"
    try:
        entries = sorted(entry for entry in os.listdir(folder) if not entry.startswith("."))
    except OSError as error:
        return f"{name} cannot be read ({(error.strerror or str(error)).lower()})"
    more = f" and {len(entries) - MAX_NAMES} more" if len(entries) > MAX_NAMES else ""
    return f"{name} holds {', '.join(entries[:MAX_NAMES]) + more if entries else 'nothing'}"
