"""How well a filter of wrong labels does: what it leaves out, against what is known to be wrong."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vicinal import distributed
from vicinal.data import Table


def known_wrong(table: Table) -> Tensor | None:
    """Which rows have a wrong label or a foreign image put there on purpose, bool [rows]; None if nobody knows."""
    frame = table.frame
    if not {"label_clean", "noisy_image"} & set(frame.columns):
        return None
    wrong = torch.zeros(len(frame), dtype=torch.bool)
    if "label_clean" in frame:
        wrong |= torch.tensor((frame["label"] != frame["label_clean"]).to_numpy(bool))
    if "noisy_image" in frame:
        wrong |= torch.tensor(frame["noisy_image"].to_numpy(bool))
    return wrong


class FilterReport:
    """Counts of samples that were seen, left out, wrong, and both, of all processes, since the last reset.

    Args:
        wrong: bool [rows], what is known to be wrong; None: nothing is known.
    """

    def __init__(self, wrong: Tensor | None) -> None:
        self.wrong = wrong
        self.reset()

    def reset(self) -> None:
        """Begin to count anew."""
        self.counts = torch.zeros(4, dtype=torch.float64)

    def add(self, kept: Tensor, rows: Tensor) -> None:
        """Count a batch: which of its samples were kept, bool [n], and their rows in the table, int [n]."""
        left_out = ~kept.cpu()
        wrong = torch.zeros_like(left_out) if self.wrong is None else self.wrong[rows.cpu()]
        counts = (torch.ones_like(left_out), left_out, wrong, left_out & wrong)
        self.counts += torch.stack([count.sum() for count in counts])

    def values(self) -> dict[str, float]:
        """The share left out and, where it is known what is wrong, precision and recall; NaN for 0 / 0.

        Precision is the share of wrong ones among those left out, recall the share of those left out among wrong ones.
        """
        seen, left_out, wrong, both = distributed.total(self.counts).tolist()
        values = {"left out": _share(left_out, seen)}
        if self.wrong is not None:
            values |= {"filter precision": _share(both, left_out), "filter recall": _share(both, wrong)}
        return values

    def __str__(self) -> str:
        values = self.values()
        text = f"the filter left out {values['left out']:.1%} of the images"
        if self.wrong is None:
            return text
        precision, recall = values["filter precision"], values["filter recall"]
        return f"{text}; {precision:.1%} of these are wrong (precision), {recall:.1%} of the wrong ones (recall)"


def _share(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
