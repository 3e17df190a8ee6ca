"""Results as comma-separated values."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from io import StringIO


def csv_text(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    r"""A line a row under a header; numbers in full, None as an empty cell.

    Example:
        >>> csv_text(["metric", "value"], [["recall@1", 0.1], ["mAP", None]])
        'metric,value\nrecall@1,0.1\nmAP,\n'
    """
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()
