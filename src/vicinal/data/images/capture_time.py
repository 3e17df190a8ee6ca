"""When a photo was taken, as its file says."""

from __future__ import annotations

from datetime import datetime

from PIL import ExifTags, Image

TIMES = ((ExifTags.Base.DateTimeOriginal, ExifTags.Base.SubsecTimeOriginal),
         (ExifTags.Base.DateTimeDigitized, ExifTags.Base.SubsecTimeDigitized))  # fmt: skip


def capture_time(path: str) -> float | None:
    """When a photo was taken, in seconds on the clock of its camera; None if its file does not say so.

    Times of editing, and those of the file itself, are not looked at: copies have others.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     exif = Image.Exif()
        ...     exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = "2024:05:01 10:00:30"
        ...     Image.new("RGB", (2, 2)).save(f"{folder}/a.jpg", exif=exif)
        ...     Image.new("RGB", (2, 2)).save(f"{folder}/b.jpg")
        ...     capture_time(f"{folder}/a.jpg") % 60, capture_time(f"{folder}/b.jpg")
        (30.0, None)
    """
    try:
        with Image.open(path) as image:
            facts = image.getexif().get_ifd(ExifTags.IFD.Exif)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None
    for time, fraction in TIMES:
        try:
            seconds = (
                datetime.strptime(str(facts[time])[:19], "%Y:%m:%d %H:%M:%S") - datetime(1970, 1, 1)
            ).total_seconds()
            digits = str(facts.get(fraction, "")).strip("\0 ")
            return seconds + (float(f"0.{digits}") if digits.isdecimal() else 0.0)
        except (KeyError, ValueError):
            continue
    return None
