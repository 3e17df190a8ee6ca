"""What a model costs: its size, its training as the run tells it, and the time that it takes to embed images."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from PIL import Image

from vicinal.data.batches.image_dataset import ImageDataset
from vicinal.evaluation.model_costs import Kind, ModelCost
from vicinal.export.exported_embedder import ExportedEmbedder
from vicinal.models.embedder import Embedder
from vicinal.utils.arrays import Floats
from vicinal.utils.run_folder import RunFolder, TrainingCost
from vicinal.workflows.models import backbone_name

METHODS = ("lora", "last_blocks", "biases_norms", "full")


def timed(embed: Callable[..., Floats], images: ImageDataset, batch_size: int, **options: Any) -> tuple[Floats, float]:
    """Embed images, and measure the seconds from files to embeddings.

    A batch of black images is embedded before that and does not count: at its first use a network allocates memory and
    chooses its kernels. The start of `num_workers` processes counts.

    Args:
        embed: such as :meth:`vicinal.Embedder.embed`.
        images: what is embedded.
        batch_size: images per batch.
        options: more arguments of `embed`.
    """
    transform = images.transform
    number, side = (
        (min(batch_size, len(images)), transform.size) if transform.longest is None else (1, transform.longest)
    )
    black = Image.new("L" if transform.channels == 1 else "RGB", (side, side))
    embed([black] * number, batch_size=batch_size, **options, progress=False)
    start = time.perf_counter()
    vectors = embed(images, batch_size=batch_size, **options)
    return vectors, time.perf_counter() - start


def model_cost(model: Embedder | ExportedEmbedder, source: str, dim: int, images_per_second: float | None) -> ModelCost:
    """What a model costs.

    Args:
        model: the model.
        source: what it was loaded from, see :func:`~vicinal.workflows.load_model`. The folder of a run, or the model
            folder in it, tells what the training took.
        dim: dimension of the embeddings after all steps.
        images_per_second: that it embedded.

    Raises:
        InputError: the run's file is damaged.

    Example:
        >>> model = Embedder("test_resnet", dim=None, norm="none", pretrained=False)
        >>> cost = model_cost(model, "timm/test_resnet", model.dim, None)
        >>> cost.kind, cost.dim, cost.num_parameters, cost.weights_bytes, cost.trained_parameters
        ('zero-shot', 96, 372688, 1499192, 0)
    """
    if isinstance(model, ExportedEmbedder):
        num_bytes = model.engine.path.stat().st_size
        return ModelCost(
            "model", dim, model.transform.size, weights_bytes=num_bytes, images_per_second=images_per_second
        )
    kind = kind_of_training(model.recipe, is_backbone=backbone_name(source) is not None)
    training = TrainingCost(0.0, 0) if kind == "zero-shot" else _training_cost(Path(source))
    return ModelCost(
        kind,
        dim,
        size=model.transform.size,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        trained_parameters=None if training is None else training.trained_parameters,
        weights_bytes=sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values()),
        training_seconds=None if training is None else training.seconds,
        images_per_second=images_per_second,
    )


def kind_of_training(recipe: Mapping[str, Any], is_backbone: bool) -> Kind:
    """How a model was trained, by the recipe in its folder, which anyone may have written.

    Example:
        >>> kind_of_training({"features": "trained", "fine_tuning": {"method": "lora"}}, is_backbone=False)
        'lora'
    """
    if is_backbone:
        return "zero-shot"
    method = _get(recipe, "fine_tuning", "method")
    if method not in METHODS:
        return "model"
    epochs, frozen_epochs = recipe.get("epochs"), recipe.get("freeze_backbone_epochs")
    is_frozen = (
        recipe.get("features") == "frozen"
        or _get(recipe, "optimizer", "lr_factors", "backbone") == 0
        or (isinstance(epochs, int) and isinstance(frozen_epochs, int) and frozen_epochs >= epochs)
    )
    return "frozen" if is_frozen else cast(Kind, method)


def _get(values: Any, *keys: str) -> Any:
    """A value in nested mappings; None if there is none."""
    for key in keys:
        values = values.get(key) if isinstance(values, Mapping) else None
    return values


def _training_cost(source: Path) -> TrainingCost | None:
    """What the training of a run took, given its folder or that of its model."""
    for run in (RunFolder(source), RunFolder(source.parent)):
        if run.recipe.is_file() and source in (run.path, run.model):
            return TrainingCost.load(run.training)
    return None
