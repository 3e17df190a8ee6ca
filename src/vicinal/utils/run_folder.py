"""A run is a folder: its layout, its logs and the cost of its training."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vicinal.utils.console import is_main_process
from vicinal.utils.errors import InputError, one_line
from vicinal.utils.files import check_regular_file, temporary_files, write_bytes

if TYPE_CHECKING:
    import pandas as pd

TRAIN_RECALL = "train recall@1"
LOWEST_GAIN = "lowest gain in standard errors"  # of a refiner's guardrail metrics at any number of images per class
MAX_LOSS = 0.5  # of such a metric, in standard errors, in an epoch that may be kept
UPDATE_FACTOR = "update factor"  # of a refiner; not a metric


class FileOf:
    """The path of a file in a folder, as an attribute of the class that describes the folder.

    Args:
        name: of the file.

    Example:
        >>> RunFolder(Path("run")).recipe.as_posix()
        'run/recipe.yaml'
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: Any, owner: type | None = None) -> Path:
        return Path(folder.path / self.name)


@dataclass(frozen=True)
class RunFolder:
    """Where the files of a run lie.

    ===================  =======================================================================================
    recipe.yaml          the resolved recipe: every setting with its value
    table.parquet        the images, labels and splits of the run
    embeddings.parquet   instead of the table, in the run of a refiner: the embeddings with their table
    embedder/            the run of the embedder that made them, if the refiner's run trained one
    log.csv              one line every `log_every` steps: loss, its terms, learning rates, gradient norm, speed
    metrics.csv          one line per evaluation on the validation split
    curves.png           a plot of the two
    depths.png           the scores of a refiner after each of its blocks
    tensorboard/         the same as the two .csv files, for TensorBoard if it is installed
    last.pt              all that resuming needs; replaced atomically
    best.pt              the weights of the best evaluation
    centers.safetensors  the class centers of a center-based loss, with the names of the classes
    model/               the finished model, see :meth:`vicinal.Embedder.save_pretrained`
    training.json        the seconds that its training took, and the number of parameters that were trained
    .lock                held by the process that trains, and names the last one that did
    ===================  =======================================================================================

    Args:
        path: the folder.
    """

    path: Path

    recipe = FileOf("recipe.yaml")
    table = FileOf("table.parquet")
    embeddings = FileOf("embeddings.parquet")
    embedder = FileOf("embedder")
    depths = FileOf("depths.png")
    log = FileOf("log.csv")
    metrics = FileOf("metrics.csv")
    curves = FileOf("curves.png")
    tensorboard = FileOf("tensorboard")
    last = FileOf("last.pt")
    best = FileOf("best.pt")
    centers = FileOf("centers.safetensors")
    model = FileOf("model")
    training = FileOf("training.json")
    lock = FileOf(".lock")

    @property
    def _first_files(self) -> tuple[Path, ...]:
        return (self.recipe, self.table, self.embeddings, self.metrics, self.best, self.tensorboard)

    @property
    def _has_begun(self) -> bool:
        """Whether the folder holds anything but the files of a run that took no step."""
        left = {self.lock, *self._first_files, *self._temporary_files()}
        ours = self.lock.is_file() or not self.recipe.exists()  # a recipe alone may be the user's
        return not ours or bool(set(self.path.iterdir()) - left)

    def check_new(self) -> None:
        """Raise InputError unless the folder is new, empty or left by a run that took no step."""
        if is_main_process() and self.lock.is_file():
            with self._locked():
                pass
        self._check_unbegun()

    def _check_unbegun(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file; give a folder for the run with --out")
        if self.path.exists() and self._has_begun:
            raise InputError(f"{self.path} exists already; give another --out, or --resume to continue the run there")

    def resume_command(self, verb: str = "train") -> str:
        """The command that resumes the run, for messages."""
        return f"vicinal {verb} --out {shlex.quote(str(self.path))} --resume"

    def check_run(self) -> None:
        """Raise InputError unless the folder holds a run."""
        if not self.recipe.is_file():
            raise InputError(f"{self.path} holds no run to resume: {self.recipe.name} is missing")

    @contextmanager
    def new(self) -> Iterator[None]:
        """Begin a run in the folder, and reserve it for this process in a block, see :meth:`in_use`.

        The files of a run that took no step are deleted.

        Raises:
            InputError: the folder has something else, or another process trains in it.
        """
        self.check_new()
        with self.in_use():
            if is_main_process():
                self._check_unbegun()
                for path in self._first_files:
                    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            yield

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Reserve the folder for this process and its children in a block; it is created if it does not exist.

        Temporary files of killed processes are deleted. A folder that is still empty at the end is deleted too.

        Raises:
            InputError: another process trains in it.
        """
        if not is_main_process():  # the main process holds the lock for all
            yield
            return
        self.path.mkdir(parents=True, exist_ok=True)
        with self._locked():
            self.lock.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
            for path in self._temporary_files():
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            try:
                yield
            finally:
                if {*self.path.iterdir()} == {self.lock}:
                    self.lock.unlink()
                    self.path.rmdir()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        from filelock import FileLock, Timeout

        try:
            held = FileLock(self.lock).acquire(timeout=0)
        except Timeout:
            raise InputError(f"{self.path} is in use: {self._owner()} trains there; wait for it or stop it") from None
        with held:
            yield

    def _owner(self) -> str:
        words = one_line(self.lock.read_text(errors="replace"), 80) if self.lock.is_file() else ""
        return words if words.startswith("process ") else "another process"

    def _temporary_files(self) -> list[Path]:
        """Incomplete files and folders that killed processes have left."""
        names = {each.name for each in vars(RunFolder).values() if isinstance(each, FileOf)}
        return [left for name in names for left in temporary_files(self.path / name)]


def empty_log() -> pd.DataFrame:
    """A log without rows."""
    import pandas as pd

    return pd.DataFrame({"step": [], "loss": []}, dtype=float)


def read_log(path: Path) -> pd.DataFrame:
    """Read the `log.csv` or `metrics.csv` of a run.

    Args:
        path: the file; if it is missing or empty, the log has no rows.

    Returns:
        One row per line, all columns numeric. In a line that a killed process left unfinished, missing values are NaN.

    Raises:
        InputError: the file is not such a log.
    """
    import pandas as pd

    if not path.is_file() or not path.stat().st_size:
        return empty_log()
    try:
        frame = pd.read_csv(path, on_bad_lines="skip")
    except (ValueError, UnicodeError) as error:
        raise InputError(f"{path}: not a log of a run ({str(error).splitlines()[0]})") from None
    if "step" not in frame:
        raise InputError(f"{path}: not a log of a run (it has no column 'step')")
    return frame.apply(pd.to_numeric, errors="coerce")


@dataclass(frozen=True)
class TrainingCost:
    """The time and memory of a training.

    Attributes:
        seconds: from the first image to the finished model with all evaluations, in wall-clock time, summed up over the
            interruptions of a run; steps that a killed process had taken after its last checkpoint count once.
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

    seconds: float
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
            return cls(**json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError):
            raise InputError(f"{path}: damaged; delete it if the time of the training does not matter") from None
