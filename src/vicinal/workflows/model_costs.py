"""Properties and costs of pretrained and trained models: dimension, size, license, training, and their speed."""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

import timm
import torch
from PIL import Image
from timm.models import get_pretrained_cfg

from vicinal.data.batches.image_dataset import ImageDataset
from vicinal.evaluation.model_costs import Kind, ModelCost
from vicinal.export.exported_embedder import ExportedEmbedder
from vicinal.models.backbones import default_pooling, weights_license
from vicinal.models.embedder import Embedder
from vicinal.models.execution import check_network_memory, eval_mode
from vicinal.models.head import PoolingName
from vicinal.models.initialization_table import INITIALIZATIONS
from vicinal.utils.arrays import Floats
from vicinal.utils.console import aligned, log
from vicinal.utils.errors import InputError, one_line
from vicinal.utils.run_folder import RunFolder, TrainingCost
from vicinal.workflows.models import backbone_name

METHODS = ("lora", "last_blocks", "biases_norms", "full")
MEASURED_SECONDS = 2.0


def timed(embed: Callable[..., Floats], images: ImageDataset, batch_size: int, **options: Any) -> tuple[Floats, float]:
    """Embed images, and measure the seconds from files to embeddings.

    A batch of black images is embedded before that and does not count: at its first use a network allocates memory and
    chooses its kernels. The start of `num_workers` processes counts.
    """
    transform = images.transform
    number, side = min(batch_size, len(images)), transform.size
    if transform.longest is not None:
        number, side = 1, transform.longest
    black = Image.new("L" if transform.channels == 1 else "RGB", (side, side))
    embed([black] * number, batch_size=batch_size, **options, progress=False)
    start = time.perf_counter()
    vectors = embed(images, batch_size=batch_size, **options)
    return vectors, time.perf_counter() - start


def model_cost(model: Embedder | ExportedEmbedder, source: str, dim: int, images_per_second: float | None) -> ModelCost:
    """The costs of a model; the cost of training is read from the run of its source or of its folder."""
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
    """How a model was trained, by the recipe in its folder, which anyone may have written."""
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
    """A value in nested mappings; None if it is missing."""
    for key in keys:
        values = values.get(key) if isinstance(values, Mapping) else None
    return values


def _training_cost(source: Path) -> TrainingCost | None:
    """The cost of a training, given the folder of its run or of its model."""
    for run in (RunFolder(source), RunFolder(source.parent)):
        if run.recipe.is_file() and source in (run.path, run.model):
            return TrainingCost.load(run.training)
    return None


@dataclass(frozen=True)
class PretrainedModel:
    """A backbone with published weights, as a model without training.

    Attributes:
        name: the given model.
        dim: dimension of the embeddings.
        size: side of the images in pixels.
        num_parameters: of the network, with its pooling and projection.
        pooling: of the image embedding, see :func:`~vicinal.models.default_pooling`; None: it has no pooling of its
            own, and one must be chosen.
        license: of the weights, as timm gives it; None if timm does not have them or does not know it.
        images_per_second: that the network embeds on this machine; None if it was not measured.

    Example:
        >>> describe_model("resnet50_in1k")
        PretrainedModel(name='resnet50_in1k', dim=2048, size=224, num_parameters=23508032, pooling='avg', \
license='bsd-3-clause', images_per_second=None)
    """

    name: str
    dim: int
    size: int
    num_parameters: int
    pooling: PoolingName | None
    license: str | None
    images_per_second: float | None = None


def model_names(pattern: str | None = None) -> list[str]:
    """The names of `INITIALIZATIONS` and, with a pattern, of timm's pretrained models.

    Args:
        pattern: part of the name or of a description in `INITIALIZATIONS`, in any case; None: all of `INITIALIZATIONS`.

    Raises:
        InputError: no name has that part; the message names similar ones.

    Example:
        >>> model_names("DiHT")
        ['vit_b32_diht', 'vit_b16_diht', 'vit_l14_diht']
    """
    if pattern is None:
        return list(INITIALIZATIONS)
    texts = {name: f"{name} {each.network} {each.weights} {each.backbone}" for name, each in INITIALIZATIONS.items()}
    texts |= {name: name for name in timm.list_pretrained()}
    found = [name for name, text in texts.items() if pattern.lower() in text.lower()]
    if not found:
        words = {word for text in texts.values() for word in re.split(r"\W|_", text.lower())}
        nearest = difflib.get_close_matches(pattern.lower(), [*texts, *sorted(words)], n=3, cutoff=0.5)
        hint = f"nearest: {', '.join(nearest)}" if nearest else "such as dinov2, clip or resnet50"
        raise InputError(f"filter: no pretrained model has {pattern!r} in its name; {hint}")
    return found


def describe_model(name: str) -> PretrainedModel:
    """Describe a model without downloading its weights or taking memory for them.

    Raises:
        InputError: timm has no such model, or it cannot be built.
    """
    pooling = default_pooling(name)
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        model = Embedder(name, None, pooling, "none", pretrained=False)
    return PretrainedModel(
        name,
        model.dim,
        model.transform.size,
        sum(parameter.numel() for parameter in model.parameters()),
        pooling if _gives_vectors(model) else None,
        weights_license(name),
    )


def _gives_vectors(model: Embedder) -> bool:
    """Whether a network on the meta device pools; those that were published with a classifier do."""
    if model.config["pooling"] != "backbone" or get_pretrained_cfg(model.config["backbone"]).num_classes:
        return True
    with eval_mode(model), torch.no_grad():
        try:
            model(torch.zeros(1, model.transform.channels, model.transform.size, model.transform.size, device="meta"))
        except InputError:
            return False
    return True


def measured_speed(name: str, device: str = "cpu", batch_size: int = 16) -> float:
    """Measure how many images a second a model embeds, with random weights and without reading images from files.

    Args:
        name: the model.
        device: where it runs.
        batch_size: images per batch.

    Returns:
        The median over the batches of about two seconds, three at least, after a first one.

    Raises:
        InputError: the model cannot be built, or there is not enough memory for it.
    """
    pooling = default_pooling(name)
    with torch.random.fork_rng(devices=[]):
        with torch.device("meta"):
            check_network_memory(f"model {name}", Embedder(name, None, pooling, "none", pretrained=False))
        model = Embedder(name, None, pooling, "none", pretrained=False).to(device).eval()
    images = torch.zeros(batch_size, model.transform.channels, model.transform.size, model.transform.size)
    seconds: list[float] = []
    while len(seconds) < 4 or sum(seconds[1:]) < MEASURED_SECONDS:
        start = time.perf_counter()
        model.embed(images, batch_size=batch_size, progress=False)
        seconds.append(time.perf_counter() - start)
    return batch_size / sorted(seconds[1:])[len(seconds[1:]) // 2]


def described_models(names: Sequence[str]) -> Iterator[PretrainedModel]:
    """Describe several models; models that cannot be built are left out with a message."""
    for name in names:
        try:
            yield describe_model(name)
        except InputError as error:
            log(f"{name} is left out: {one_line(error)}")


def models_text(models: Sequence[PretrainedModel]) -> str:
    """Lay out models as a table for a terminal."""
    heads = [field.name for field in fields(PretrainedModel)]
    short = {"size": "pixels", "num_parameters": "parameters", "images_per_second": "images/s"}
    rows = [
        [short.get(head, head) for head in heads],
        *([_cell(head, getattr(each, head)) for head in heads] for each in models),
    ]
    if all(each.images_per_second is None for each in models):
        rows = [row[:-1] for row in rows]
    return aligned(rows)


def _cell(head: str, value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, int) and head == "num_parameters":
        return f"{value / 1e6:,.1f} M"
    return f"{value:,.1f}" if isinstance(value, float) else str(value)
