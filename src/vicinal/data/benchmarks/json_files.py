"""JSON files of ground truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vicinal.utils.errors import InputError, unreadable
from vicinal.utils.files import check_regular_file
from vicinal.utils.memory import check_memory

BYTES_PER_CHARACTER = 20  # of a ground truth in JSON, with the objects of Python that it becomes


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        InputError: The file cannot be read, is not JSON, or needs more memory than is available.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "data.json").write_text('[{"id": 7, "path": "a.jpg"}]')
        ...     read_json(Path(folder, "data.json"))
        [{'id': 7, 'path': 'a.jpg'}]
    """
    check_regular_file(path)
    check_memory(BYTES_PER_CHARACTER * path.stat().st_size, str(path))
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({error})") from None
