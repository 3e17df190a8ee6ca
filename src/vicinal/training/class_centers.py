"""Class centers over a run: made for its classes, started from class means or from another run's, and saved by name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from vicinal import distributed
from vicinal.console import log
from vicinal.errors import InputError
from vicinal.files import write_bytes
from vicinal.losses import CenterBasedLoss, Loss
from vicinal.models import Embedder
from vicinal.training.run import RunFolder


class SavedCenters(NamedTuple):
    """The centers of a run.

    Attributes:
        classes: names of the classes, as text.
        tensors: name of a parameter of the loss -> float [classes, of each, ...].
    """

    classes: list[str]
    tensors: dict[str, Tensor]


def losses_with_centers(loss: Loss) -> dict[str, CenterBasedLoss]:
    """The losses with class centers in a loss, by their place in it."""
    return {name: part for name, part in loss.named_modules() if isinstance(part, CenterBasedLoss)}


def create_centers(loss: Loss, classes: int, dim: int) -> None:
    """Make the centers that wait for the number of classes and the dimension; check those that are there.

    Raises:
        InputError: a loss was given other numbers.
    """
    for part in losses_with_centers(loss).values():
        if part.centers is None:
            part.create(classes, dim)
        elif (part.num_classes, part.dim) != (classes, dim):
            raise InputError(
                f"loss: {type(part).__name__} is made for num_classes = {part.num_classes}, dim = {part.dim}; the "
                f"training split has {classes} classes and the model {dim} dimensions; leave both out"
            )


def check_start(start: str, loss: Loss, embedder: Embedder) -> None:
    """Raise InputError when centers cannot start so."""
    if start == "random":
        return
    if not losses_with_centers(loss):
        raise InputError(f"centers = {start}: the loss has no class centers; leave it at random")
    if start != "class_means":
        path = RunFolder(Path(start)).centers
        _check_fits(loss, read_centers(path), path)
    elif any(part.of_lengths for part in losses_with_centers(loss).values()):
        raise InputError("centers = class_means: means of directions are no weights of a loss that sees lengths")
    elif embedder.projector is not None:
        raise InputError("centers = class_means: with a projector the centers are not of the embeddings' space")


def start_from_means(loss: Loss, embeddings: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> None:
    """Put the centers of all classes where the means of their unit embeddings point."""
    vectors, places = torch.from_numpy(embeddings), torch.from_numpy(labels)
    means = torch.zeros(int(places.max()) + 1, vectors.shape[1]).index_add_(0, places, vectors)
    for part in losses_with_centers(loss).values():
        part.set_centers(torch.arange(len(means)), means)
    log(f"class centers start at the means of {len(means):,} classes")


def start_from_run(loss: Loss, folder: str | Path, classes: Sequence[str | int]) -> None:
    """Take over centers from another run, by class name; classes that it does not know keep the centers they have.

    Args:
        loss: with its centers.
        folder: the run's.
        classes: names of the classes here, in the order of the centers.

    Raises:
        InputError: the run has no centers, or those of another loss or dimension.
    """
    path = RunFolder(Path(folder)).centers
    saved = read_centers(path)
    _check_fits(loss, saved, path)
    rows = {name: row for row, name in enumerate(saved.classes)}
    here = [i for i, name in enumerate(classes) if str(name) in rows]
    there = [rows[str(classes[i])] for i in here]
    for place, part in losses_with_centers(loss).items():
        state = part.state_dict()
        for name, tensor in _by_class(part).items():
            changed = tensor.clone()
            changed[here] = saved.tensors[_full(place, name)][there].to(tensor)
            state[name] = changed.flatten(0, 1)
        part.load_state_dict(state)
    new = [str(name) for name in classes if str(name) not in rows]
    named = f": {', '.join(new[:3])}{', ...' if len(new) > 3 else ''}" if new else ""
    log(f"took over the centers of {len(here):,} classes from {folder}; {len(new):,} classes are new{named}")


def _check_fits(loss: Loss, saved: SavedCenters, path: Path) -> None:
    for place, part in losses_with_centers(loss).items():
        for name, tensor in _by_class(part).items():
            other = saved.tensors.get(_full(place, name))
            if other is None or other[0].shape != tensor[0].shape:
                raise InputError(f"{path} has no {_full(place, name)} that fits: it is of another loss or dimension")


def save_centers(path: Path, loss: Loss, classes: Sequence[str | int]) -> None:
    """Write the centers of a loss that has some, with the names of their classes; nothing for other losses."""
    tensors = {
        _full(place, name): tensor.cpu().contiguous()
        for place, part in losses_with_centers(loss).items()
        for name, tensor in _by_class(part).items()
    }
    if tensors and distributed.rank() == 0:
        names = json.dumps([str(name) for name in classes])
        write_bytes(path, safetensors.torch.save(tensors, metadata={"classes": names}))


def read_centers(path: Path) -> SavedCenters:
    """Read what :func:`save_centers` wrote.

    Raises:
        InputError: the file is missing or is something else.
    """
    try:
        with safetensors.safe_open(path, "pt") as file:
            classes = json.loads(file.metadata()["classes"])
            return SavedCenters(classes, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except FileNotFoundError:
        raise InputError(
            f"no class centers at {path}: centers must be random, class_means or a run that has some"
        ) from None
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise InputError(f"{path} does not hold class centers: {type(error).__name__}") from None


def _by_class(part: CenterBasedLoss) -> dict[str, Tensor]:
    """The parameters of a loss, all of its classes, [classes, of each, ...], of all processes."""
    classes, state = part.num_classes, part.state_dict()
    assert classes is not None
    return {name: state[name].unflatten(0, (classes, -1)) for name, _ in part.named_parameters(recurse=False)}


def _full(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
