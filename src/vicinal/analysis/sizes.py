"""How many images each class has, in every split."""

from __future__ import annotations

import pandas as pd

from vicinal.data.table import Table


def class_sizes(table: Table) -> pd.DataFrame:
    """Count the images of each class.

    Args:
        table: with labels.

    Returns:
        One row per class, the smallest first: `label`; `num_images`; and, in a table with splits, one column per split.

    Example:
        >>> class_sizes(Table(pd.DataFrame({"label": ["cat", "cat", "dog"], "split": ["train", "train", "test"]})))
          label  num_images  train  test
        0   dog           1      0     1
        1   cat           2      2     0
    """
    labels = table.frame["label"].to_numpy()
    sizes = pd.DataFrame({"label": table.classes, "num_images": table.class_counts})
    if table.splits:
        counts = pd.crosstab(labels, table.frame["split"].to_numpy())
        sizes = sizes.join(counts[table.splits].rename_axis(columns=None), on="label")
    return sizes.sort_values("num_images", kind="stable", ignore_index=True)
