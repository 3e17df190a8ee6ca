"""The class centers of a run: creation, initial values, and files with the names of the classes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from vicinal.distillation import S2SD
from vicinal.losses import CenterBasedLoss, Loss, WeightedSum
from vicinal.losses.center_softmax import CenterSoftmaxLoss
from vicinal.models import Embedder
from vicinal.training.compatibility import CompatibilityLoss
from vicinal.utils import distributed
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.console import log
from vicinal.utils.errors import InputError, raise_if_of_system
from vicinal.utils.files import write_bytes
from vicinal.utils.run_folder import RunFolder


class SavedCenters(NamedTuple):
    """The saved class centers of a run."""

    classes: list[str]  # names, as text
    tensors: dict[str, Tensor]  # name of a parameter of the loss -> float [classes, centers per class, ...]


def losses_with_centers(loss: Loss) -> dict[str, CenterBasedLoss]:
    """The center-based losses in a loss, by their names in it, without those of the heads of S2SD."""
    heads = {id(part) for each in loss.modules() if isinstance(each, S2SD) for part in each.head_losses.modules()}
    if isinstance(loss, WeightedSum) and len(loss.losses) == 2 and isinstance(loss.losses[1], CompatibilityLoss):
        loss = cast(Loss, loss.losses[0])  # its centers are named as those of a run without this term
    parts = loss.named_modules()
    return {name: part for name, part in parts if isinstance(part, CenterBasedLoss) and id(part) not in heads}


def class_predictor(loss: Loss, purpose: str) -> CenterSoftmaxLoss:
    """The only part of a loss with class probabilities; an error about none or several begins with `purpose`."""
    found = [part for part in loss.modules() if isinstance(part, CenterSoftmaxLoss)]
    if len(found) != 1:
        number = "none has" if not found else f"{len(found)} have"
        raise InputError(
            f"{purpose} needs a loss with class probabilities, such as CrossEntropyLoss or NormSoftmaxLoss; of "
            f"{type(loss).__name__} {number} them"
        )
    return found[0]


def create_centers(loss: Loss, num_classes: int, dim: int) -> None:
    """Create the missing centers of losses, and check the shape of existing ones."""
    for part in losses_with_centers(loss).values():
        if part.centers is None:
            part.create_centers(num_classes, dim)
        elif (part.num_classes, part.dim) != (num_classes, dim):
            raise InputError(
                f"loss: {type(part).__name__} has num_classes = {part.num_classes}, dim = {part.dim}, but the training "
                f"split has {num_classes} classes and the model {dim} dimensions; leave both out"
            )


def check_initial_centers(centers: str, loss: Loss, embedder: Embedder) -> None:
    """Raise InputError if the setting `centers` is invalid with the loss and the model."""
    if centers == "random":
        return
    if not losses_with_centers(loss):
        raise InputError(f"centers = {centers}: the loss has no class centers; leave it at random")
    if centers != "class_means":
        path = RunFolder(Path(centers)).centers
        _check_shapes(loss, read_centers(path), path)
    elif any(part.uses_norms for part in losses_with_centers(loss).values()):
        raise InputError("centers = class_means: the weights of a loss that sees the norm are not means of directions")
    elif embedder.projector is not None:
        raise InputError("centers = class_means: with a projector, centers and embeddings are in different spaces")


def set_centers_to_class_means(loss: Loss, embeddings: Floats, labels: Integers) -> None:
    """Set the centers of each class to the direction of the mean of its unit embeddings on all processes.

    This process gives the embeddings of its part of the images, [n, dim], and their labels, [n], from 0 on.
    """
    vectors, classes = torch.from_numpy(embeddings), torch.from_numpy(labels)
    parts = list(losses_with_centers(loss).values())
    num_classes = max(part.num_classes or 0 for part in parts)
    sums = torch.zeros(num_classes, vectors.shape[1], dtype=torch.float64).index_add_(0, classes, vectors.double())
    sums = distributed.all_reduce_sum(sums)
    is_known = sums.any(dim=1)
    for part in parts:
        part.set_centers(is_known.nonzero()[:, 0], sums[is_known].float())
    log(f"initial class centers: the means of {int(is_known.sum()):,} classes")


def copy_centers_from_run(loss: Loss, folder: str | Path, classes: Sequence[str | int]) -> None:
    """Copy centers from the folder of another run by class name; classes that it does not have keep their centers."""
    path = RunFolder(Path(folder)).centers
    saved = read_centers(path)
    _check_shapes(loss, saved, path)
    rows = {name: row for row, name in enumerate(saved.classes)}
    target_rows = [i for i, name in enumerate(classes) if str(name) in rows]
    source_rows = [rows[str(classes[i])] for i in target_rows]
    for prefix, part in losses_with_centers(loss).items():
        state = part.state_dict()
        for name, tensor in _by_class(part).items():
            changed = tensor.clone()
            changed[target_rows] = saved.tensors[_full_name(prefix, name)][source_rows].to(tensor)
            state[name] = changed.flatten(0, 1)
        part.load_state_dict(state)
    new = [str(name) for name in classes if str(name) not in rows]
    named = f": {', '.join(new[:3])}{', ...' if len(new) > 3 else ''}" if new else ""
    log(f"copied the centers of {len(target_rows):,} classes from {folder}; {len(new):,} classes are new{named}")


def _check_shapes(loss: Loss, saved: SavedCenters, path: Path) -> None:
    for prefix, part in losses_with_centers(loss).items():
        for name, tensor in _by_class(part).items():
            other = saved.tensors.get(_full_name(prefix, name))
            if other is None or other[0].shape != tensor[0].shape:
                raise InputError(f"{path} has no {_full_name(prefix, name)} of this shape: another loss or dimension")


def save_centers(path: Path, loss: Loss, classes: Sequence[str | int]) -> None:
    """Write the class centers of a loss, if it has any, with the names of the classes."""
    tensors = {
        _full_name(prefix, name): tensor.cpu().contiguous()
        for prefix, part in losses_with_centers(loss).items()
        for name, tensor in _by_class(part).items()
    }
    if tensors and distributed.rank() == 0:
        names = json.dumps([str(name) for name in classes])
        write_bytes(path, safetensors.torch.save(tensors, metadata={"classes": names}))


def read_centers(path: Path) -> SavedCenters:
    try:
        with safetensors.safe_open(path, "pt") as file:
            classes = json.loads(file.metadata()["classes"])
            return SavedCenters(classes, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except FileNotFoundError:
        raise InputError(
            f"no class centers at {path}: centers must be random, class_means or a run with class centers"
        ) from None
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise_if_of_system(error, path)
        raise InputError(f"{path} holds no class centers, or is damaged") from None


def _by_class(part: CenterBasedLoss) -> dict[str, Tensor]:
    """The parameters of a loss for all classes and processes, [classes, centers per class, ...]."""
    classes, state = part.num_classes, part.state_dict()
    assert classes is not None
    return {name: state[name].unflatten(0, (classes, -1)) for name, _ in part.named_parameters(recurse=False)}


def _full_name(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
