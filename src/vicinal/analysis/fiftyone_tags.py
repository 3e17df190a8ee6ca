"""Findings as tags of samples in FiftyOne.

They are a table in the form of FiftyOne's CSVDataset, whose format is documented. The library itself is not used: it
needs botocore, which does not go with the python-dateutil of other dependencies, and it brings a database server.
"""

from __future__ import annotations

import pandas as pd

from vicinal.analysis.findings import Findings
from vicinal.utils.errors import InputError


def fiftyone_frame(findings: Findings) -> pd.DataFrame:
    """The findings as tags: one row per image about which something was found.

    As a CSV file, FiftyOne reads it with `fo.Dataset.from_dir(labels_path="findings.csv",
    dataset_type=fo.types.CSVDataset, fields={"tags": lambda tags: tags.split(","), ...})`. Decisions come back as the
    tags `drop`, `keep` and `relabel:NEW` of a file that FiftyOne exports in the same form with the fields `filepath`
    and `tags`, see :func:`~vicinal.data.apply_decisions`.

    Returns:
        Columns: `filepath`; `tags`, the names of the findings, separated by commas; `label` and `suggested_label`, if
        the table has labels.

    Raises:
        InputError: the table has no paths, or has bounding boxes, which are no samples of their own in FiftyOne.

    Example:
        >>> import numpy as np
        >>> from vicinal.analysis import find_problems
        >>> from vicinal.data import Table
        >>> table = Table(pd.DataFrame({"path": ["/a.png", "/b.png", "/c.png"], "label": ["cat", "dog", "emu"]}))
        >>> fiftyone_frame(find_problems(np.eye(3)[[0, 0, 1]], table))["tags"].tolist()
        ['near_duplicate,small_class', 'near_duplicate,small_class', 'small_class']
    """
    if not findings.table.has("path") or findings.table.has("x_1"):
        raise InputError("FiftyOne needs image files, one per row; this table has no paths, or bounding boxes")
    lines = findings.to_frame()
    by_row = lines.groupby("row")
    frame = pd.DataFrame({"filepath": by_row["path"].first(), "tags": by_row["finding"].agg(_joined)})
    if findings.table.has("label"):
        frame["label"] = by_row["label"].first()
        frame["suggested_label"] = by_row["suggested_label"].max()  # the others are empty
    return frame.reset_index(drop=True)


def _joined(names: pd.Series) -> str:
    return ",".join(dict.fromkeys(names))
