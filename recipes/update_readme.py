"""Writes README.md beside it: a table of all recipes, made of the comments at their tops.

    python recipes/update_readme.py

A recipe of a published result begins with a sentence and then lines of a key and its text, which may go on in further
lines: paper, row, command, evaluate, cost, expected, follows. Files in `bases` are parts of others. The time that a
recipe takes is estimated from images_per_second.csv, which `python -m benchmarks.throughput` writes.
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

from vicinal.cli.recipes import read_header, recipe_files, recipe_title
from vicinal.training.recipes.recipe_file import RecipeFile

FOLDER = Path(__file__).parent
RATES = FOLDER / "images_per_second.csv"
SAME_SPEED = {
    "vit_l14_clip_2b": "vit_l14_dinov2",
    "vit_l14_clip_400m": "vit_l14_dinov2",
    "vit_l14_diht": "vit_l14_dinov2",
}
UNITS = {"thousand": 1e3, "million": 1e6, "billion": 1e9}
INTRODUCTION = """\
# Recipes

## Start here

For images of your own you need no recipe: `vicinal train --data.source photos/ --out run`. What was measured from
ImageNet weights, by what the classes are like:

| your classes | settings |
|---|---|
| small, as in a shop with 2 to 12 pictures of each product | the defaults |
| large, from 20 images on | [sum.yaml](sum.yaml), the sum of a loss with class centers and the default |
| individuals of a species | [nyala.yaml](nyala.yaml), the defaults for 12 epochs, in micro-batches |

The recipes below are for results of papers. `vicinal train --recipes WORDS` finds one, such as `--recipes cub
contextual`.

## What the recipes say

Each recipe trains one row of a table of a paper, or a small example. `DATA` is the folder of the benchmark's files as
published, see [data](../docs/guides/data.md#benchmarks). A recipe's first lines have its command, its cost in training
images, the result to expect, and which source it follows where a paper and its published code differ. A recipe extends
those in `bases`; every setting can be overridden on the command line. `vicinal train RECIPE --out run --resume` goes on
where a run was stopped.

Only the examples were trained here, on a machine without a GPU; the expected results of the others are the papers' own.
Their time is an estimate: the training images over the images a second that the network takes, forward and backward, on
two cores of that machine. For another machine, measure its images a second with `python -m benchmarks.throughput`:

{rates}

This page is made by `python recipes/update_readme.py`.
"""


def read_rates() -> dict[tuple[str, int], float]:
    """The images a second of a backbone and a size of images."""
    with RATES.open(encoding="utf-8") as file:
        return {(row["backbone"], int(row["size"])): float(row["images_per_second"]) for row in csv.DictReader(file)}


def estimated_days(path: Path, rates: dict[tuple[str, int], float]) -> str:
    """How long a recipe takes at these rates."""
    number = re.search(r"([\d.]+) (thousand|million|billion) training images", read_header(path)["cost"])
    values = RecipeFile.read(path).values
    rate = rates.get(network_of(values))
    if number is None or rate is None:
        return ""
    days = float(number[1]) * UNITS[number[2]] / rate / 86400
    return f"{float(f'{days:.2g}'):,.4g} days" if days >= 2 else f"{days * 24:.2g} hours"


def network_of(values: dict[str, dict[str, object]]) -> tuple[str, int]:
    """The backbone of a recipe, or one of the same speed, and the size of its images."""
    backbone, transform = str(values.get("model", {}).get("backbone")), values.get("transform", {})
    size = int(str(transform.get("longest") or transform.get("size", 224)))
    backbone = SAME_SPEED.get(backbone, re.sub("(clip_400m|clip_2b|diht|swag)$", "in21k", backbone))
    return backbone, size


def table(paths: list[Path], rates: dict[tuple[str, int], float]) -> str:
    """The recipes of one folder as a table."""
    published = "row" in read_header(paths[0])
    names = [
        "recipe",
        *(["row"] if published else []),
        "what",
        "cost",
        *(["on two cores"] if published else []),
        "expected",
    ]
    rows = [" | ".join(names), " | ".join("---" for _ in names)]
    for path in paths:
        header, name = read_header(path), path.relative_to(FOLDER).as_posix()
        cells = [f"[{path.stem}]({name})", *([header["row"]] if published else [])]
        cells += [recipe_title(header), header["cost"]]
        cells += [*([estimated_days(path, rates)] if published else []), header["expected"]]
        rows.append(" | ".join(cells))
    return "\n".join(f"| {row} |" for row in rows)


def readme() -> str:
    """The content of the page."""
    rates = read_rates()
    folders: dict[Path, list[Path]] = {}
    for path in recipe_files(FOLDER):
        folders.setdefault(path.parent, []).append(path)
    lines = [f"| {name} | {size} | {rate:g} |" for (name, size), rate in rates.items()]
    header = "| network | pixels | images a second |\n|---|---|---|"
    parts = [INTRODUCTION.replace("{rates}", "\n".join([header, *lines]))]
    for folder, paths in folders.items():
        title = "Small examples" if folder == FOLDER else read_header(paths[0])["paper"]
        parts.append(f"## {title}\n\n{table(paths, rates)}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    target = FOLDER / "README.md"
    target.write_text(readme(), encoding="utf-8")
    sys.stdout.write(f"{target}\n")
