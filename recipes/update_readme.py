"""Writes README.md beside it: a table of all recipes, made of the comments at their tops.

    python recipes/update_readme.py

A recipe of a published result begins with a sentence and then lines of a key and its text, which may go on in further
lines: paper, row, command, evaluate, cost, expected, follows. Files in `bases` are parts of others.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
KEYS = ("paper", "row", "command", "evaluate", "cost", "expected", "follows")
INTRODUCTION = """\
# Recipes

Each recipe trains one row of a table of a paper, or a small example. `DATA` is the folder of the benchmark's files as
published, see [data](../docs/guides/data.md#benchmarks). A recipe's first lines have its command, its cost in training
images, the result to expect, and which source it follows where a paper and its published code differ. A recipe extends
those in `bases`; every setting can be overridden on the command line. `vicinal train RECIPE --out run --resume` goes on
where a run was stopped.

Only the examples were trained here, on a machine without a GPU; the expected results of the others are the papers' own.
This page is made by `python recipes/update_readme.py`.
"""


def recipe_files() -> list[Path]:
    """All recipes that can be trained, in order."""
    return sorted(path for path in FOLDER.rglob("*.yaml") if "bases" not in path.relative_to(FOLDER).parts)


def read_header(path: Path) -> dict[str, str]:
    """The texts of the comment at the top of a recipe by their keys; that of its first sentence is `title`."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line[2:])
    header: dict[str, str] = {}
    key = "title"
    for line in lines:
        begins = re.match(r"([a-z]+)  +(\S.*)", line)
        if begins and begins[1] in KEYS:
            key, line = begins[1], begins[2]
        if line.strip():
            header[key] = f"{header[key]} {line.strip()}" if key in header else line.strip()
    return header


def table(paths: list[Path]) -> str:
    """The recipes of one folder as a table."""
    rows = [f"| recipe | {'row | ' if (published := 'row' in read_header(paths[0])) else ''}what | cost | expected |"]
    rows.append(f"|---|{'---|' if published else ''}---|---|---|")
    for path in paths:
        header, name = read_header(path), path.relative_to(FOLDER).as_posix()
        row = f" {header['row']} |" if published else ""
        cells = (header["title"].partition(". ")[0].rstrip("."), header["cost"], header["expected"])
        rows.append(f"| [{path.stem}]({name}) |{row} {' | '.join(cells)} |")
    return "\n".join(rows)


def readme() -> str:
    """The content of the page."""
    folders: dict[Path, list[Path]] = {}
    for path in recipe_files():
        folders.setdefault(path.parent, []).append(path)
    parts = [INTRODUCTION]
    for folder, paths in folders.items():
        title = "Small examples" if folder == FOLDER else read_header(paths[0])["paper"]
        parts.append(f"## {title}\n\n{table(paths)}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    target = FOLDER / "README.md"
    target.write_text(readme(), encoding="utf-8")
    sys.stdout.write(f"{target}\n")
