"""The end of a run whose loss or gradient is not finite, with the images of the batch that is to blame."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from vicinal.utils.errors import NonFiniteLossError

# Loss scaling halves the scale at each skipped step: after this many in a row the scale is not the cause.
MAX_SKIPPED_STEPS = 50


class FiniteCheck:
    """Checks every step of a run.

    Args:
        scales_loss: whether the loss is scaled. Some gradients are infinite then: loss scaling skips these steps and
            lowers the scale.
        sample_name: function of the row of a training image that returns its name.
    """

    def __init__(self, scales_loss: bool, sample_name: Callable[[int], str]) -> None:
        self.max_skipped = MAX_SKIPPED_STEPS if scales_loss else 0
        self.sample_name, self.skipped_steps = sample_name, 0

    def check_loss(
        self, step: int, is_finite: bool, terms: Sequence[Mapping[str, Tensor]], batches: Sequence[Mapping[str, Tensor]]
    ) -> None:
        """Raise NonFiniteLossError if the loss is not finite on some process, with the first batch of this one.

        Args:
            step: number of the step, from 1.
            is_finite: whether the loss is finite on all processes.
            terms: the terms of the loss of each batch, by name.
            batches: the batches, with their `rows`.
        """
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
