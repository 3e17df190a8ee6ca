"""One seed out of several numbers, such as the run's, the epoch's and the process's."""

from __future__ import annotations

import numpy as np


def mixed_seed(*numbers: int) -> int:
    """A 64-bit seed; numbers that differ anywhere give seeds that have nothing to do with each other.

    Args:
        numbers: not negative.

    Example:
        >>> mixed_seed(0, 1) == mixed_seed(0, 1), mixed_seed(0, 1) == mixed_seed(1, 0)
        (True, False)
    """
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
