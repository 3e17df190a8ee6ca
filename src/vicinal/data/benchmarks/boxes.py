"""Bounding boxes as benchmarks publish them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vicinal.data.boxes import Box
from vicinal.data.columns import PUBLISHED_BOX_COLUMNS, is_box
from vicinal.utils.errors import InputError


def parse_box(fields: Sequence[object], where: str, has_size: bool = False) -> Box:
    """The left, top, right and bottom edge of a box, in pixels.

    Args:
        fields: Four numbers, or texts of numbers.
        where: The file and line, for messages.
        has_size: Whether the last two numbers are width and height, instead of right and bottom.

    Raises:
        InputError: A field is no number, or the box is empty or outside of its image.

    Example:
        >>> parse_box(["60.0", "27.0", "325.0", "304.0"], "bounding_boxes.txt, image 1", has_size=True)
        (60.0, 27.0, 385.0, 331.0)
    """
    try:
        x_1, y_1, x_2, y_2 = (float(str(field)) for field in fields)
    except ValueError:
        raise InputError(f"{where}: the bounding box {' '.join(map(str, fields))!r} is not four numbers") from None
    box = (x_1, y_1, x_1 + x_2, y_1 + y_2) if has_size else (x_1, y_1, x_2, y_2)
    if not is_box(*box):
        raise InputError(
            f"{where}: the bounding box from ({box[0]:g}, {box[1]:g}) to ({box[2]:g}, {box[3]:g}) is empty or "
            "outside of its image"
        )
    return box


def box_columns(boxes: Iterable[Box]) -> dict[str, tuple[float, ...]]:
    """The columns `box_x_1`, `box_y_1`, `box_x_2`, `box_y_2`, to which images are not cropped."""
    return dict(zip(PUBLISHED_BOX_COLUMNS, zip(*boxes, strict=True), strict=True))
