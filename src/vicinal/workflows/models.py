"""The models that the verbs of the command are given, and the device that they run on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vicinal.models.refiner import ContextRefiner
from vicinal.utils.console import condensed_retries, log
from vicinal.utils.errors import InputError
from vicinal.utils.run_folder import RunFolder
from vicinal.workflows.source import Source

if TYPE_CHECKING:
    from vicinal.models.embedder import Embedder
    from vicinal.models.pooling import PoolingName

TIMM = "timm/"


def backbone_name(model: str) -> str | None:
    """The backbone that a model's name stands for, with `timm/` before it or not; None for folders and Hub names.

    A folder or file of the name wins.

    Example:
        >>> backbone_name("timm/resnet50"), backbone_name("resnet50"), backbone_name("someone/model")
        ('resnet50', 'resnet50', None)
    """
    name = model.removeprefix(TIMM)
    return None if not name or "/" in name or "\\" in name or Path(model).expanduser().exists() else name


def load_model(
    path: str, pooling: PoolingName | None = None, allow_imports: Sequence[str] = (), weights: str | None = None
) -> Embedder:
    """Load a model folder, the model of a run folder, a model of the Hugging Face Hub, or an untrained backbone.

    Args:
        path: the folder; the name on the Hub; or the name of a backbone, such as `resnet50` or `timm/resnet50`, whose
            embeddings are the image embeddings that its weights were published with, without a head.
        pooling: the pooling of an untrained backbone; None: that of
            :func:`~vicinal.models.default_pooling`.
        allow_imports: packages whose code a saved model may name, see :meth:`vicinal.Embedder.from_module`.
        weights: a file of weights for an untrained backbone; None: the published ones.

    Raises:
        InputError: there is no such model, it is damaged, or `pooling` or `weights` are given for one that has its own.
    """
    backbone = backbone_name(path)
    if backbone is not None:
        check_backbone(path)
        return _load_backbone(path, backbone, pooling, weights)
    for name, value in (("pooling", pooling), ("weights", weights)):
        if value is not None:
            raise InputError(f"{path} has its own {name}; {name} is for backbones, such as --model timm/resnet50")
    source, run = Source(path), RunFolder(Path(path))
    source.check_not_refiner_run()
    if source.kind == "run" and not run.model.is_dir() and run.best.is_file():
        return load_best(run, allow_imports)
    if source.kind == "run" and not run.model.is_dir():
        raise InputError(f"{path} has no finished model; continue the run with: {run.resume_command()}")
    from vicinal.models.embedder import Embedder  # loads timm

    return Embedder.from_pretrained(run.model if source.kind == "run" else path, allow_imports=allow_imports)


def check_backbone(model: str) -> None:
    """Check that a model which is neither a folder nor a Hub name is a backbone.

    Raises:
        InputError: there is neither a folder nor a backbone of that name; the message names similar ones.
    """
    from vicinal.models.initializations import check_backbone_name  # loads timm

    name = backbone_name(model)
    try:
        check_backbone_name(name or model)
    except InputError as error:
        where = "" if model.startswith(TIMM) else "no such folder; "
        raise InputError(f"model {model}: {where}{error}") from None


def _load_backbone(model: str, name: str, pooling: PoolingName | None, weights: str | None) -> Embedder:
    from vicinal.models.backbones import default_pooling
    from vicinal.models.downloads import DownloadError
    from vicinal.models.embedder import Embedder

    pretrained = True if weights is None else weights
    try:
        with condensed_retries():
            return Embedder(name, None, pooling or default_pooling(name), "none", pretrained).eval()
    except DownloadError as error:
        use = f"use --weights with a file, --model with the folder of a saved model, or {error.place}"
        raise InputError(f"model {model}: {error.problem}; {use}") from None
    except InputError as error:
        raise InputError(f"model {model}: {str(error).removeprefix('pretrained: ')}") from None


def load_refiner(path: str) -> ContextRefiner:
    """Load a context refiner's model folder, that of the run folder it was trained in, or one of the Hugging Face Hub.

    Raises:
        InputError: there is no such refiner, it is damaged, or it is another kind of model.
    """
    run = RunFolder(Path(path))
    if run.recipe.is_file() and not run.model.is_dir():
        raise InputError(
            f"{path} has no finished refiner: its run is not finished, or did not improve the scores; "
            f"continue it with: {run.resume_command('refine')}"
        )
    return ContextRefiner.from_pretrained(run.model if run.model.is_dir() else path)


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
                         f"{run.resume_command()}")  # fmt: skip
    embedder.load_state_dict({**own, **state})
    log(f"{run.path} is not finished: taking the weights of its best evaluation so far, after epoch {best['epoch']}")
    return embedder.eval()
