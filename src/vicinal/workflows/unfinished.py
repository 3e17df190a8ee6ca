"""The model of a run that is not finished: the weights of its best evaluation so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vicinal.utils.console import log
from vicinal.utils.errors import InputError
from vicinal.utils.run_folder import RunFolder

if TYPE_CHECKING:
    from vicinal.models.embedder import Embedder

PREFIX = "embedder."  # of the embedder's part of a checkpoint


def load_best(run: RunFolder, allow_imports: Sequence[str] = ()) -> Embedder:
    """Load the embedder of a run by the checkpoint of its best evaluation.

    Args:
        run: the run, with a recipe and a checkpoint.
        allow_imports: packages whose classes its recipe may name.

    Raises:
        InputError: the checkpoint is damaged or of another recipe, or the run trains adapters, which only a finished
            run merges into its weights.
    """
    from vicinal.training.checkpoint import load_checkpoint
    from vicinal.training.recipes.recipe import Recipe

    recipe = Recipe.load(run.recipe, allow_imports=allow_imports)
    best = load_checkpoint(run.best, "module", "epoch")
    embedder = recipe.create_embedder()
    state = {name.removeprefix(PREFIX): value for name, value in best["module"].items() if name.startswith(PREFIX)}
    own = embedder.state_dict()
    if any(name not in own or own[name].shape != value.shape for name, value in state.items()):
        raise InputError(f"{run.best} does not fit its recipe without adapters; finish the run with: "
                         f"vicinal train --out {run.path} --resume")  # fmt: skip
    embedder.load_state_dict({**own, **state})
    log(f"{run.path} is not finished: taking the weights of its best evaluation so far, after epoch {best['epoch']}")
    return embedder.eval()
