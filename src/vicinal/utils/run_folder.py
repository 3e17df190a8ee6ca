"""A run is a folder; this page is its layout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vicinal.utils.errors import InputError
from vicinal.utils.files import temporary_files


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
    tensorboard/         the same as the two .csv files, for TensorBoard
    last.pt              all that resuming needs; replaced atomically
    best.pt              the weights of the best evaluation
    centers.safetensors  the class centers of a center-based loss, with the names of the classes
    model/               the finished model, see :meth:`vicinal.Embedder.save_pretrained`
    ===================  =======================================================================================

    Args:
        path: the folder.
    """

    path: Path

    @property
    def recipe(self) -> Path:
        return self.path / "recipe.yaml"

    @property
    def table(self) -> Path:
        return self.path / "table.parquet"

    @property
    def embeddings(self) -> Path:
        return self.path / "embeddings.parquet"

    @property
    def embedder(self) -> Path:
        return self.path / "embedder"

    @property
    def depths(self) -> Path:
        return self.path / "depths.png"

    @property
    def log(self) -> Path:
        return self.path / "log.csv"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.csv"

    @property
    def curves(self) -> Path:
        return self.path / "curves.png"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def last(self) -> Path:
        return self.path / "last.pt"

    @property
    def best(self) -> Path:
        return self.path / "best.pt"

    @property
    def centers(self) -> Path:
        return self.path / "centers.safetensors"

    @property
    def model(self) -> Path:
        return self.path / "model"

    def check_new(self) -> None:
        """Raise InputError when something is there already."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file; give a folder for the run with --out")
        # A run killed before it had a recipe may have left its table or embeddings, whole or half.
        ours = (self.table, self.embeddings)
        left_by_us = {*ours, *(left for path in (*ours, self.recipe) for left in temporary_files(path))}
        if self.path.exists() and set(self.path.iterdir()) - left_by_us:
            raise InputError(f"{self.path} exists already; give another --out, or --resume to continue the run there")

    def check_run(self) -> None:
        """Raise InputError when there is no run to continue."""
        if not self.recipe.is_file():
            raise InputError(f"{self.path} holds no run to resume: {self.recipe.name} is missing")
