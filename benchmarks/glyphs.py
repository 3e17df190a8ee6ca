"""Rendered characters: a synthetic dataset with any number of classes and images, without download, for benchmarks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from hashlib import sha256
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from PIL import Image, ImageDraw, ImageFont

from vicinal.data.benchmarks.cache import prepare_table
from vicinal.data.table import Table
from vicinal.utils.console import track
from vicinal.utils.errors import InputError
from vicinal.utils.files import cache_folder

TEMPLATE_SIZE = 96  # side in pixels of the clean image that all images of a class are made from
Template = tuple[str, str, Image.Image]


def glyphs(
    root: str | Path | None = None, num_classes: int = 200, samples_per_class: int = 20, size: int = 32, seed: int = 0
) -> Table:
    """Characters of matplotlib's fonts, each image randomly rotated, scaled, sheared, shifted and noisy.

    A class is a character in a font, with a label such as `U+0041/DejaVuSans`; its coarse label is the character. Of
    characters that look the same in a font, such as the Latin and the Greek A, one is used. Half of the classes are the
    split train, a tenth val, the others test.

    Args:
        root: The folder of benchmarks; by default the environment variable VICINAL_DATA, else ~/.cache/vicinal.
        num_classes: The number of classes, at least 2. The fonts are used one after another, their characters in the
            order of code points.
        samples_per_class: The number of images of each class.
        size: The side of the images, in pixels.
        seed: The seed of the random transforms and the split; not negative.

    Raises:
        InputError: There are more classes than the fonts have characters, or a number is too small.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     table = glyphs(folder, num_classes=4, samples_per_class=3)
        >>> len(table), table.splits, table.classes[0]
        (12, ['train', 'test'], 'U+0030/DejaVuSans')
    """
    for name, number, minimum in (
        ("num_classes", num_classes, 2),
        ("samples_per_class", samples_per_class, 1),
        ("size", size, 4),
        ("seed", seed, 0),
    ):
        if number < minimum:
            raise InputError(f"glyphs: {name} is {number}; it must be at least {minimum}")
    name = f"{num_classes}x{samples_per_class}-{size}px-seed{seed}"
    return prepare_table(
        cache_folder(root) / "glyphs" / name, lambda folder: _write(folder, num_classes, samples_per_class, size, seed)
    )


def _write(folder: Path, num_classes: int, samples_per_class: int, size: int, seed: int) -> pd.DataFrame:
    templates = _first_templates(num_classes)
    splits = _splits(num_classes, np.random.default_rng([seed, num_classes]))
    rows = []
    for number, (character, font, template) in enumerate(track(templates, "drawing glyphs", total=num_classes)):
        label = f"{character}/{font}"
        (folder / label).mkdir(parents=True)
        for image in range(samples_per_class):
            path = f"{label}/{image:04d}.png"
            _transform(template, size, np.random.default_rng([seed, number, image])).save(folder / path)
            rows.append((path, label, character, splits[number]))
    return pd.DataFrame(rows, columns=["path", "label", "coarse", "split"])


def _first_templates(num_classes: int) -> list[Template]:
    fonts = [(path, _code_points(path)) for path in _font_files()]
    _check_number_of_classes(num_classes, sum(len(codes) for _, codes in fonts))  # before thousands are drawn
    templates = list(islice(_templates(fonts), num_classes))
    _check_number_of_classes(num_classes, len(templates))
    return templates


def _check_number_of_classes(num_classes: int, available: int) -> None:
    if num_classes > available:
        raise InputError(f"glyphs: num_classes is {num_classes}; the fonts of matplotlib give {available} at most")


def _templates(fonts: list[tuple[Path, list[int]]]) -> Iterator[Template]:
    """Yield the code point, the font and the clean image of every distinct letter and digit of every font."""
    for path, codes in fonts:
        font, seen = ImageFont.truetype(str(path), TEMPLATE_SIZE // 2), set()
        for code in codes:
            template = _draw(chr(code), font)
            if template is not None and (digest := sha256(template.tobytes()).digest()) not in seen:
                seen.add(digest)
                yield f"U+{code:04X}", path.stem, template


def _font_files() -> list[Path]:
    from matplotlib import get_data_path

    files = Path(get_data_path(), "fonts", "ttf").glob("*.ttf")
    return sorted(files, key=lambda path: (path.stem != "DejaVuSans", path))


def _code_points(path: Path) -> list[int]:
    from matplotlib.ft2font import FT2Font

    return [code for code in sorted(FT2Font(str(path)).get_charmap()) if chr(code).isalnum()]


def _draw(character: str, font: ImageFont.FreeTypeFont) -> Image.Image | None:
    """The character in white on black, centered; None if it is empty or too large."""
    left, top, right, bottom = font.getbbox(character)
    width, height = right - left, bottom - top
    if not (0 < width <= TEMPLATE_SIZE and 0 < height <= TEMPLATE_SIZE):
        return None
    image = Image.new("L", (TEMPLATE_SIZE, TEMPLATE_SIZE))
    corner = ((TEMPLATE_SIZE - width) / 2 - left, (TEMPLATE_SIZE - height) / 2 - top)
    ImageDraw.Draw(image).text(corner, character, fill=255, font=font)
    return image if image.getbbox() else None


def _splits(num_classes: int, rng: np.random.Generator) -> npt.NDArray[np.str_]:
    val, train = num_classes // 10, -(-num_classes // 2)
    return rng.permutation(np.repeat(["train", "val", "test"], [train, val, num_classes - train - val]))


def _transform(template: Image.Image, size: int, rng: np.random.Generator) -> Image.Image:
    """A random image of the class: black on white, rotated up to 15 degrees, scaled, sheared, shifted and noisy."""
    angle, shear = rng.uniform(-math.pi / 12, math.pi / 12), rng.uniform(-0.2, 0.2)
    stretch = TEMPLATE_SIZE / size / rng.uniform(1.0, 1.4, size=2)
    rotation = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    matrix = rotation @ np.array([[1, shear], [0, 1]]) @ np.diag(stretch)
    shift = TEMPLATE_SIZE / 2 - matrix @ (size / 2 + rng.uniform(-0.06, 0.06, size=2) * size)
    affine = (*matrix[0], shift[0], *matrix[1], shift[1])
    image = template.transform((size, size), Image.Transform.AFFINE, affine, Image.Resampling.BICUBIC)
    pixels = 255 - np.asarray(image, dtype=np.float64) + rng.normal(0, rng.uniform(5, 30), size=(size, size))
    return Image.fromarray(np.rint(pixels.clip(0, 255)).astype(np.uint8))
