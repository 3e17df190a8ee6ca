"""What the training of a run took, kept beside its model."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

from vicinal.utils.errors import InputError
from vicinal.utils.files import check_regular_file, write_bytes


@dataclass(frozen=True)
class TrainingCost:
    """What the training of a run took.

    Attributes:
        seconds: from the first image to the finished model with all evaluations, as a clock on the wall measures it,
            summed up over the interruptions of a run; steps that a killed process had taken after its last checkpoint
            count once. None: unknown.
        trained_parameters: the number of parameters of the model that were trained; those of the loss are left out.
        memory_format: the order in memory of images and convolutions, which decides the last bits of the results:
            channels_last or contiguous_format. None: unknown.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     TrainingCost(81.5, 131_072).save(Path(folder, "training.json"))
        ...     TrainingCost.load(Path(folder, "training.json"))
        TrainingCost(seconds=81.5, trained_parameters=131072, memory_format=None)
    """

    seconds: float | None
    trained_parameters: int
    memory_format: str | None = None

    def save(self, path: Path) -> None:
        """Write the file of a run, as a whole."""
        write_bytes(path, (json.dumps(asdict(self)) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> TrainingCost | None:
        """Read the file of a run; None if it has none.

        Raises:
            InputError: the file is damaged.
        """
        if not path.exists():
            return None
        check_regular_file(path)
        try:
            values = json.loads(path.read_bytes())
            seconds, number, layout = values["seconds"], values["trained_parameters"], values["memory_format"]
            if type(number) is not int or number < 0:
                raise ValueError("trained_parameters")
            if seconds is not None and not (type(seconds) in (int, float) and 0 <= seconds < math.inf):
                raise ValueError("seconds")
            if layout not in (None, "channels_last", "contiguous_format"):
                raise ValueError("memory_format")
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise InputError(
                f"{path}: damaged; a run's file has the numbers seconds and trained_parameters, and "
                "memory_format. Delete it if the time of the training does not matter"
            ) from None
        return cls(seconds, number, layout)
