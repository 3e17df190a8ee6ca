"""Type aliases of NumPy arrays, named by the type of their elements."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Integers: TypeAlias = npt.NDArray[np.int64]
"""Rows, labels, counts."""
ShortIntegers: TypeAlias = npt.NDArray[np.int32]
"""Rows and counts in arrays so large that their memory matters."""
Floats: TypeAlias = npt.NDArray[np.float32]
"""Embeddings and similarities."""
Doubles: TypeAlias = npt.NDArray[np.float64]
"""Metrics and other sums of many numbers."""
Booleans: TypeAlias = npt.NDArray[np.bool_]
"""Masks."""
