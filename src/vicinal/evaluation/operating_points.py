"""What several false-accept rates cost: a table by which one is chosen."""

from __future__ import annotations

import pandas as pd

from vicinal.evaluation.calibration import held_out_accepts, threshold_for
from vicinal.evaluation.open_set import OpenSetScores, identified
from vicinal.utils.arrays import Floats

RATES = (0.01, 0.05, 0.1)


def operating_points(
    scores: OpenSetScores, rates: tuple[float, ...] = RATES, strangers: Floats | None = None
) -> pd.DataFrame:
    """The threshold of each false-accept rate, and what it rejects.

    Args:
        scores: of queries of known and unknown classes.
        rates: between 0 and 1.
        strangers: the scores of queries of no class at all.

    Returns:
        One row per rate, with the columns `false_accept_rate`, `threshold`, `held_out_false_accept_rate`, of each class
        by the threshold of the others; `false_reject_rate`; and with strangers `strangers_accepted`.

    Example:
        >>> import numpy as np
        >>> from vicinal import Table
        >>> from vicinal.evaluation import open_set_scores
        >>> rng, labels = np.random.default_rng(0), np.arange(40).repeat(5)
        >>> vectors = rng.normal(size=(40, 16))[labels] + 0.6 * rng.normal(size=(200, 16))
        >>> points = operating_points(open_set_scores(vectors, Table(pd.DataFrame({"label": labels}))))
        >>> points["false_reject_rate"].round(3).tolist()
        [0.565, 0.295, 0.18]
    """
    rows = []
    for rate in rates:
        threshold = threshold_for(scores, rate, strangers)
        row = {
            "false_accept_rate": rate,
            "threshold": threshold,
            "held_out_false_accept_rate": float(held_out_accepts(scores, rate).mean()),
            "false_reject_rate": float(1 - identified(scores, threshold).mean()),
        }
        rows.append(row | ({} if strangers is None else {"strangers_accepted": float((strangers >= threshold).mean())}))
    return pd.DataFrame(rows)
