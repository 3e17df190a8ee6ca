"""Evaluation of sample selection: the excluded samples compared with those that are known to be noisy."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vicinal.data import Table
from vicinal.utils import distributed


def known_noisy(table: Table) -> Tensor | None:
    """The rows into which label or image noise was put, bool [rows]; None if the table has no such columns."""
    frame = table.frame
    if not {"label_clean", "noisy_image"} & set(frame.columns):
        return None
    noisy = torch.zeros(len(frame), dtype=torch.bool)
    if "label_clean" in frame:
        noisy |= torch.tensor((frame["label"] != frame["label_clean"]).to_numpy(bool))
    if "noisy_image" in frame:
        noisy |= torch.tensor(frame["noisy_image"].to_numpy(bool))
    return noisy


class SelectionReport:
    """Counts of the samples of all processes since the last reset: all, excluded, noisy, and excluded noisy ones.

    Args:
        noisy: bool [rows], the samples that are known to be noisy; None if that is unknown.
    """

    def __init__(self, noisy: Tensor | None) -> None:
        self.noisy = noisy
        self.reset()

    def reset(self) -> None:
        """Set the counts to zero."""
        self.counts = torch.zeros(4, dtype=torch.int64)

    def add(self, selected: Tensor, rows: Tensor) -> None:
        """Count a batch, from its selected samples, bool [n], and their rows in the table, int [n]."""
        excluded = ~selected
        noisy = torch.zeros_like(excluded)
        if self.noisy is not None:
            noisy = self.noisy[rows.cpu()].to(excluded.device, non_blocking=True)
        counts = (torch.ones_like(excluded), excluded, noisy, excluded & noisy)
        # On the device of the selection, so that the host does not wait for it in each step.
        added = torch.stack([count.sum() for count in counts])
        self.counts = self.counts.to(added.device, non_blocking=True) + added

    def values(self) -> dict[str, float]:
        """The excluded fraction and, if the noisy samples are known, precision and recall; NaN for 0 / 0.

        Precision is the fraction of noisy samples among the excluded ones, recall the fraction of excluded samples
        among the noisy ones.
        """
        num_samples, num_excluded, num_noisy, num_both = distributed.all_reduce_sum(self.counts).cpu().tolist()
        values = {"excluded fraction": _ratio(num_excluded, num_samples)}
        if self.noisy is not None:
            values |= {"noise precision": _ratio(num_both, num_excluded), "noise recall": _ratio(num_both, num_noisy)}
        return values

    def __str__(self) -> str:
        values = self.values()
        text = f"sample selection excluded {values['excluded fraction']:.1%} of the images"
        if self.noisy is None:
            return text
        precision, recall = values["noise precision"], values["noise recall"]
        return f"{text}: {precision:.1%} of them are noisy (precision), {recall:.1%} of the noisy ones (recall)"


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
