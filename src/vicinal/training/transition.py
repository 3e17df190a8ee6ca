"""The transition matrix of forward correction: from a file, or estimated from the model of another run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from vicinal.correction import ForwardCorrection, estimate_transition
from vicinal.data import ImageDataset
from vicinal.data.table_files import read_csv
from vicinal.losses import Loss
from vicinal.models import Embedder
from vicinal.models.execution import eval_mode
from vicinal.models.inputs import image_batches
from vicinal.training.class_centers import class_predictor, copy_centers_from_run, create_centers, read_centers
from vicinal.training.recipes.recipe import Recipe
from vicinal.training.recipes.settings import TransitionSettings
from vicinal.utils.console import log, track
from vicinal.utils.errors import InputError
from vicinal.utils.memory import check_memory
from vicinal.utils.run_folder import RunFolder

COLUMNS = ("label", "confused_with", "probability")
MAX_ROUNDING = 1e-9  # of a sum of probabilities


def corrections(loss: Loss) -> list[ForwardCorrection]:
    return [part for part in loss.modules() if isinstance(part, ForwardCorrection)]


def check_transition(
    settings: TransitionSettings, loss: Loss, classes: Sequence[str | int], allow_imports: Sequence[str] = ()
) -> None:
    """Check before training that each forward correction has one source of its matrix, and that this can be read."""
    missing = [part for part in corrections(loss) if part.noise_rate is None]
    if settings.source is None and missing:
        raise InputError("loss: ForwardCorrection needs a noise_rate, or a matrix by transition.source")
    if settings.source is None:
        return
    if not missing:
        raise InputError(
            f"transition.source = {settings.source} is for the loss ForwardCorrection without noise_rate; leave it out"
        )
    if Path(settings.source).is_dir():
        _load_loss(RunFolder(Path(settings.source)), classes, allow_imports)
    else:
        read_transition(settings.source, classes)


def find_transition(
    settings: TransitionSettings, images: ImageDataset, device: torch.device, allow_imports: Sequence[str] = ()
) -> Tensor:
    """The transition matrix that the settings describe, float [classes, classes]."""
    assert settings.source is not None
    if not Path(settings.source).is_dir():
        return read_transition(settings.source, images.table.classes)
    probabilities = class_probabilities(settings.source, images, device, allow_imports)
    matrix = estimate_transition(probabilities, settings.quantile)
    log(f"transition matrix of {settings.source}: {1 - matrix.diagonal().mean():.1%} of the labels are noisy")
    return matrix


def read_transition(path: str | Path, classes: Sequence[str | int]) -> Tensor:
    """Read the probabilities with which samples of a class have the label of another one, float64 [classes, classes].

    The CSV file has the columns `label`, `confused_with` and `probability`, one pair of classes per line. A class keeps
    its label with the remaining probability.
    """
    frame = read_csv(Path(path))
    if sorted(frame.columns) != sorted(COLUMNS):
        raise InputError(f"{path}: the columns are {', '.join(frame.columns)}; they must be {', '.join(COLUMNS)}")
    rows = {str(name): row for row, name in enumerate(classes)}
    matrix, places = torch.zeros(len(classes), len(classes), dtype=torch.float64), set()
    for line, label, other, text in zip(frame.index, *(frame[column] for column in COLUMNS), strict=True):
        for name in (str(label), str(other)):
            if name not in rows:
                raise InputError(f"{path}, line {line}: {name!r} is not a training class, such as {str(classes[0])!r}")
        place = rows[str(label)], rows[str(other)]
        if place in places or place[0] == place[1]:
            raise InputError(f"{path}, line {line}: {label} is confused with {other} twice, or with itself")
        places.add(place)
        matrix[place] = _probability(text, f"{path}, line {line}")
    kept = 1 - matrix.sum(dim=1)
    if kept.min() < -MAX_ROUNDING:
        least = int(kept.argmin())
        total = f"the probabilities of {classes[least]} sum to {1 - kept[least]:g}"
        raise InputError(f"{path}: {total}; it must be at most 1")
    return matrix + kept.clamp_min(0).diag()


def _probability(text: object, place: str) -> float:
    try:
        value = float(str(text))
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise InputError(f"{place}: probability is {text!r}; it must be a number from 0 to 1")
    return value


def class_probabilities(
    folder: str | Path, images: ImageDataset, device: torch.device, allow_imports: Sequence[str] = ()
) -> Tensor:
    """The class probabilities of images by the finished model of a run and its class centers, float32 [images,
    classes].

    The images have the labels of the run; they are transformed as the model's transform says.
    """
    run, classes = RunFolder(Path(folder)), images.table.classes
    loss = _load_loss(run, classes, allow_imports)
    check_memory(4 * len(images) * len(classes), f"{folder}: class probabilities of the training images")
    embedder = Embedder.from_pretrained(run.model).to(device)
    create_centers(loss, len(classes), embedder.train_output_dim)
    copy_centers_from_run(loss, run.path, classes)
    predictor = class_predictor(loss, f"transition.source = {run.path}").to(device)
    batches, number = image_batches(ImageDataset(images.table, embedder.transform), embedder.transform)
    parts = []
    with eval_mode(embedder), torch.inference_mode():
        for batch in track(batches, "class probabilities", total=number):
            vectors = embedder.unnormalized(batch.to(device), with_projector=True)
            parts.append(predictor.class_logits(vectors).softmax(dim=1).float().cpu())
    return torch.cat(parts)


def _load_loss(run: RunFolder, classes: Sequence[str | int], allow_imports: Sequence[str]) -> Loss:
    """The loss of a finished run on these classes, which has class probabilities, without its centers."""
    different = set(read_centers(run.centers).classes) ^ {str(name) for name in classes}
    if different:
        raise InputError(f"transition.source = {run.path}: {min(different)} is not a training class of both runs")
    if not run.model.is_dir():
        raise InputError(f"transition.source = {run.path}: the run has no finished model")
    loss = Recipe.load(run.recipe, allow_imports=allow_imports).create_loss()
    if corrections(loss):
        raise InputError(f"transition.source = {run.path}: its loss is corrected itself; give a run without correction")
    class_predictor(loss, f"transition.source = {run.path}")
    return loss


def set_transition(losses: Sequence[Loss], matrix: Tensor) -> None:
    """Set the matrix of each forward correction that has no noise rate."""
    for loss in losses:
        for part in corrections(loss):
            if part.noise_rate is None:
                part.set_transition(matrix)
