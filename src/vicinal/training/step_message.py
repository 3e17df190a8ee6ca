"""The message that processes exchange at a step, and the error about a loss or gradient that is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vicinal.utils import distributed
from vicinal.utils.errors import NonFiniteLossError

# Loss scaling halves the scale at each skipped step: after this many in a row the scale is not the cause.
MAX_SKIPPED_STEPS = 50


@dataclass(frozen=True)
class StepMessage:
    """The state of a step after its backward pass, which is the same on all processes."""

    loss: float  # the mean over processes and batches
    terms: dict[str, float]  # likewise; empty in steps that are not logged
    is_stopping: bool  # some process was asked to stop
    is_saving: bool  # the first process wants a checkpoint
    shard_squares: float | None  # the sum of squares of the gradients of all shards; None without any

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
        """Exchange the parts of all processes; the arguments are this process's, with the terms of each batch."""
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
        """Whether the loss is finite on every process: a sum with an infinity or NaN is not finite."""
        return math.isfinite(self.loss)


class FiniteCheck:
    """Checks every step of a run.

    If the loss is scaled, some gradients are infinite: loss scaling skips these steps and lowers the scale.
    """

    def __init__(self, scales_loss: bool, sample_name: Callable[[int], str]) -> None:
        self.max_skipped = MAX_SKIPPED_STEPS if scales_loss else 0
        self.sample_name, self.skipped_steps = sample_name, 0

    def check_loss(
        self, step: int, is_finite: bool, terms: Sequence[Mapping[str, Tensor]], batches: Sequence[Mapping[str, Tensor]]
    ) -> None:
        """Raise NonFiniteLossError if the loss is not finite on some process, with the first such batch of this one."""
        if not is_finite:
            finite = [math.isfinite(sum(value.item() for value in each.values())) for each in terms]
            first = finite.index(False) if False in finite else 0
            raise NonFiniteLossError(self._message(step, "loss", terms[first], [batches[first]]))

    def check_gradient(
        self, step: int, norm: float, terms: Mapping[str, Tensor], batches: Sequence[Mapping[str, Tensor]]
    ) -> None:
        """Raise NonFiniteLossError if the norm of the gradient is not finite and loss scaling is not the cause."""
        self.skipped_steps = 0 if math.isfinite(norm) else self.skipped_steps + 1
        if self.skipped_steps > self.max_skipped:
            raise NonFiniteLossError(self._message(step, "gradient", terms, batches))

    def _message(
        self, step: int, what: str, terms: Mapping[str, Tensor], batches: Sequence[Mapping[str, Tensor]]
    ) -> str:
        values = ", ".join(f"{name} = {value.item():g}" for name, value in terms.items())
        names = [self.sample_name(row) for batch in batches for row in batch["rows"].tolist()]
        return f"step {step}: the {what} is not finite ({values}); its images: {', '.join(names)}"
