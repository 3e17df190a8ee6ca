"""Small versions of images, decoded at no larger size than they need."""

from __future__ import annotations

from PIL import Image

from vicinal.data.boxes import Box, crop_to_box
from vicinal.data.images.decoding import decoded, open_image


def thumbnail(path: str, box: Box | None, size: int) -> Image.Image:
    """The image of a file in at most `size` x `size` pixels.

    Args:
        path: the file.
        box: left, top, right and bottom of the part that is shown, in pixels of the upright image; None: all of it.
        size: length of the longer side; smaller images stay as they are.
    """
    with open_image(path) as image:
        reduction = 1.0 if box is not None else max(image.size) / (2 * size)  # the rest is resized smoothly
        picture = crop_to_box(decoded(image, reduction), box, path)
    picture.thumbnail((size, size))
    return picture
