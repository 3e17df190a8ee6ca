"""The recipes that come with Vicinal: their files, the comments at their top, and a search by words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from vicinal.utils.errors import InputError

KEYS = ("paper", "row", "command", "evaluate", "cost", "expected", "follows")
START = """\
For images of your own, no recipe is needed: vicinal train --data.source photos/ --out run
The recipes train rows of papers' tables. `vicinal train --recipes WORDS` lists those with all of the words, such as

  vicinal train --recipes center contrastive cub
  vicinal train --recipes recall@k sop resnet50
  vicinal train --recipes examples
"""


def recipes_folder() -> Path:
    """The folder of the recipes: of the installed package, or of the clone that it is installed from."""
    package = Path(__file__).parents[1]
    folders = (package / "recipes", package.parents[1] / "recipes")
    return next((folder for folder in folders if (folder / "bases").is_dir()), folders[0])


def recipe_files(folder: Path) -> list[Path]:
    """All recipes of a folder that can be trained, in order; files in `bases` are parts of others."""
    return sorted(path for path in folder.rglob("*.yaml") if "bases" not in path.relative_to(folder).parts)


def read_header(path: Path) -> dict[str, str]:
    """The texts of the comment at the top of a recipe by their keys; that of its first sentence is `title`."""
    header: dict[str, str] = {}
    key = "title"
    comment = takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
    for line in (each[2:] for each in comment):
        begins = re.match(r"([a-z]+)  +(\S.*)", line)
        if begins and begins[1] in KEYS:
            key, line = begins[1], begins[2]
        if line.strip():
            header[key] = f"{header[key]} {line.strip()}" if key in header else line.strip()
    return header


def recipe_title(header: dict[str, str]) -> str:
    """The first sentence of a recipe; "Eq. (5)" does not end it."""
    return re.split(r"\. (?=[A-Z])", header["title"])[0].rstrip(".")


def find_recipes(words: Sequence[str]) -> str:
    """The recipes that have all of the words in name or first lines, a paragraph each; without words, how to ask."""
    folder = recipes_folder()
    paths = recipe_files(folder)
    if not words:
        return f"{START}\n{len(paths)} recipes are in {folder}"
    found = [path for path in paths if all(word.lower() in _searched(path, folder) for word in words)]
    if not found:
        raise InputError(f"--recipes: no recipe has all of the words {' '.join(words)}; give fewer, such as one")
    return "\n\n".join(map(_paragraph, found))


def _searched(path: Path, folder: Path) -> str:
    group = path.parent.name if path.parent != folder else "examples"
    return " ".join([group, path.stem, *read_header(path).values()]).lower().replace("_", " ")


def _paragraph(path: Path) -> str:
    header = read_header(path)
    row = f" ({header['row']})" if "row" in header else ""
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{shown}\n  {recipe_title(header)}{row}\n  cost: {header['cost']}\n  expected: {header['expected']}"
