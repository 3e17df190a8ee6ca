"""Tables to put noise into."""

from __future__ import annotations

import numpy as np
import pandas as pd

from vicinal.data import Table


def animals(classes: int = 10, samples_per_class: int = 20, text: bool = True) -> Table:
    """Half of the classes are the split train, in mixed order; two super-labels, and two above them."""
    number = np.random.default_rng(5).permutation(np.repeat(np.arange(classes), samples_per_class))
    return Table(
        pd.DataFrame(
            {
                "path": [f"{row}.png" for row in range(len(number))],
                "label": [f"animal {each:02d}" for each in number] if text else number,
                "coarse": [f"kind {each % 4}" for each in number],
                "coarse_2": number % 2,
                "split": np.where(number < classes / 2, "train", "test"),
                "camera": np.arange(len(number)) / 7,
            }
        ),
        root="/animals",
    )


def foreign(images: int) -> Table:
    return Table(pd.DataFrame({"path": [f"{row}.png" for row in range(images)]}), root="/foreign")


def altered(before: Table, after: Table, column: str) -> np.ndarray:
    return (before.frame[column] != after.frame[column]).to_numpy()
