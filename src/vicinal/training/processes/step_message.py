"""What the processes of a run tell each other in a step: all of it in one message."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vicinal.utils import distributed


@dataclass(frozen=True)
class StepMessage:
    """What all processes know after the backward pass of a step; it is the same on all of them.

    Attributes:
        loss: the mean loss over processes and batches.
        terms: the same of each term of the loss; empty in steps that are not logged.
        is_stopping: whether some process was asked to stop.
        is_saving: whether the first process wants a checkpoint.
        shard_squares: the sum of squares of the gradients of all shards of class centers; None without any.
    """

    loss: float
    terms: dict[str, float]
    is_stopping: bool
    is_saving: bool
    shard_squares: float | None

    @classmethod
    def exchange(
        cls,
        terms: Sequence[dict[str, Tensor]],
        *,
        with_terms: bool,
        is_stopping: bool,
        is_saving: bool,
        shard_squares: Tensor | None,
    ) -> StepMessage:
        """Exchange the parts of all processes; the arguments are those of this process, with the terms of each batch.

        Example:
            >>> terms = [{"A": torch.tensor(1.0)}, {"A": torch.tensor(2.0)}]
            >>> StepMessage.exchange(terms, with_terms=False, is_stopping=False, is_saving=True, shard_squares=None)
            StepMessage(loss=1.5, terms={}, is_stopping=False, is_saving=True, shard_squares=None)
        """
        means = {name: torch.stack([each[name] for each in terms]).double().mean() for name in terms[0]}
        logged = means if with_terms else {}
        squares = [] if shard_squares is None else [shard_squares]
        loss = torch.stack([*means.values()]).sum()
        values: list[float | Tensor] = [loss, *logged.values(), is_stopping, is_saving, *squares]
        total_loss, *sums = distributed.all_reduce_values(values)
        number, names = distributed.world_size(), list(logged)
        stopping, saving, *total = sums[len(names) :]
        return cls(
            total_loss / number,
            {name: value / number for name, value in zip(names, sums, strict=False)},
            stopping > 0,
            saving > 0,
            total[0] if total else None,
        )

    @property
    def is_finite(self) -> bool:
        """Whether the loss is finite on every process: no sum with an infinity or NaN is."""
        return math.isfinite(self.loss)
