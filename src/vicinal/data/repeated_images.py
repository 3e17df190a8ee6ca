"""Images that are in several rows of a table."""

from __future__ import annotations

import warnings

import pandas as pd

from vicinal.data.columns import BOX_COLUMNS
from vicinal.utils.console import counted


def warn_of_repeated_images(frame: pd.DataFrame, stacklevel: int) -> None:
    """Warn if a split has two rows of one image that are both in the gallery: they would find each other at once.

    Rows of one file with different bounding boxes are different images.
    """
    if "path" not in frame:
        return
    told_apart = [column for column in ("path", "split", *BOX_COLUMNS) if column in frame]
    is_repeated = frame.duplicated(told_apart, keep=False)
    if "is_gallery" in frame:
        is_repeated &= frame["is_gallery"].astype(bool)
        is_repeated &= frame[is_repeated].duplicated(told_apart, keep=False).reindex(frame.index, fill_value=False)
    if not is_repeated.any():
        return
    repeated = frame[is_repeated]
    images = repeated.groupby(told_apart, dropna=False, sort=False)
    path = repeated["path"].iloc[0]
    rows = " and ".join(map(str, repeated.index[repeated["path"] == path][:2]))
    wrong = int((images["label"].nunique() > 1).sum()) if "label" in frame else 0
    warnings.warn(
        f"{counted(images.ngroups, 'image is', 'images are')} in several rows, such as {path} (rows {rows})"
        + (f", {wrong:,} of them with different labels" if wrong else "")
        + ": such rows find each other, which makes scores too high; keep one of each",
        stacklevel=stacklevel + 1,
    )
