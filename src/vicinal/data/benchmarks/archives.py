"""Zip archives of images, unpacked once; a member that would be written elsewhere is refused."""

from __future__ import annotations

import re
import zipfile
import zlib
from pathlib import Path

from vicinal.data.columns import check_utf8
from vicinal.utils.errors import InputError


def unpack_zip(path: Path, folder: Path, suffixes: tuple[str, ...], pattern: str, layout: str) -> None:
    """Unpack the files of a zip archive whose names have some endings.

    Args:
        path: The archive.
        folder: The folder to unpack into.
        suffixes: The endings, such as `.png`; other files are left out.
        pattern: A regular expression of the whole names of these files in the archive, with folders.
        layout: The pattern in words, for messages.

    Raises:
        InputError: The archive is damaged, or a file has another name.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.namelist() if member.endswith(suffixes)]
            for member in members:
                if not re.fullmatch(pattern, member) or ".." in member.split("/") or "\\" in member:
                    raise InputError(f"{path}: holds {member!r}; its images must be {layout}")
                check_utf8(member, str(path))
            archive.extractall(folder, members)
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError) as error:
        raise InputError(f"{path}: not a sound zip archive ({error}); download it again") from None
