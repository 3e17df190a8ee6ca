"""Losses that compare samples with class centers: what they share, the centers and their place among processes."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vicinal import distributed
from vicinal.arguments import check_at_least_one
from vicinal.errors import InputError
from vicinal.losses.base import Loss, zero_or_nan
from vicinal.similarity import Source, can_look


class CenterBasedLoss(Loss):
    """A loss of samples and class centers, which are parameters: the references of the batch.

    Labels are 0 ... num_classes - 1; a recipe's trainer numbers the classes so. `num_classes` and `dim` may be left to
    it as well: it knows them, and calls :meth:`create`.

    Args:
        num_classes: classes of the training set.
        dim: dimension of the embeddings.
        centers_per_class: centers of each class.
        sharded: each of several processes holds the centers of a part of the classes.

    Attributes:
        centers: float [num_classes x centers_per_class, dim], in the order of classes; None until created. With
            `sharded` those of this process's classes.

    Raises:
        InputError: a number is below 1; when called: before the centers are there, with a label outside
            0 ... num_classes - 1, embeddings of another dimension, references, masks or a relation.
    """

    takes_references: ClassVar[bool] = False
    learns_centers: ClassVar[bool] = True
    centers: nn.Parameter | None

    def __init__(
        self, num_classes: int | None = None, dim: int | None = None, centers_per_class: int = 1, sharded: bool = False
    ) -> None:
        super().__init__()
        check_at_least_one(self, num_classes=num_classes, dim=dim, centers_per_class=centers_per_class)
        self.num_classes, self.dim, self.centers_per_class, self.sharded = num_classes, dim, centers_per_class, sharded
        self.register_parameter("centers", None)
        if num_classes is not None and dim is not None:
            self.create(num_classes, dim)

    def create(self, num_classes: int, dim: int) -> None:
        """Make the centers: random directions, of length 1 on average, from the global generator.

        Raises:
            InputError: the loss was made for other numbers, or there are too few classes to divide among processes.
        """
        for name, value, own in (("num_classes", num_classes, self.num_classes), ("dim", dim, self.dim)):
            if own is not None and own != value:
                raise InputError(f"{type(self).__name__}: {name} = {own} does not fit; it must be {value}")
        self.num_classes, self.dim = num_classes, dim
        if self.is_divided and self._shard_size() * (distributed.world_size() - 1) >= num_classes:
            raise InputError(
                f"{type(self).__name__}: {num_classes} classes cannot be divided among {distributed.world_size()} "
                "processes so that each has some; leave sharded out"
            )
        centers = torch.randn(num_classes * self.centers_per_class, dim) / dim**0.5
        self.centers = nn.Parameter(self.own_part(centers), requires_grad=self.learns_centers)

    @torch.no_grad()
    def set_centers(self, classes: Tensor, vectors: Tensor) -> None:
        """Put vectors in the place of the centers of some classes, such as the means of their embeddings.

        Args:
            classes: int [c], distinct.
            vectors: float [c, dim], or [c, centers_per_class, dim]; L2-normalised here. One vector a class stands in
                for all its centers, each moved a little at random so that they can part.

        Raises:
            InputError: a class is not there or comes twice, or vectors are of another shape or not finite.
        """
        centers = self._created()
        k = self.centers_per_class
        self._check_given(classes, vectors)
        vectors = vectors.to(centers).reshape(len(classes), -1, centers.shape[1])
        vectors = torch.nn.functional.normalize(vectors, dim=2)
        if vectors.shape[1] != k:
            vectors = (
                vectors + 0.1 * torch.randn(len(classes), k, centers.shape[1]).to(centers) / centers.shape[1] ** 0.5
            )
        places, held = self._places(classes.to(centers.device))
        centers.view(-1, k, centers.shape[1])[places[held]] = vectors[held]

    def _check_given(self, classes: Tensor, vectors: Tensor) -> None:
        name, dim = f"{type(self).__name__}: set_centers", self._created().shape[1]
        assert self.num_classes is not None
        distinct = sorted(set(classes.tolist()))
        if len(distinct) < len(classes) or (distinct and not 0 <= distinct[0] <= distinct[-1] < self.num_classes):
            raise InputError(f"{name} takes distinct classes in 0 ... {self.num_classes - 1}, not {classes.tolist()}")
        shapes = [[len(classes), dim], [len(classes), self.centers_per_class, dim]]
        if list(vectors.shape) not in shapes or not bool(vectors.isfinite().all()):
            wanted = " or ".join(map(str, shapes))
            raise InputError(f"{name} takes finite vectors {wanted}, not {list(vectors.shape)} or not finite ones")

    def all_centers(self) -> Tensor:
        """The centers of all processes, [num_classes x centers_per_class, dim], without gradient."""
        return self.whole(self._created().detach())

    @abstractmethod
    def value(self, anchors: Source) -> Tensor:
        """The loss of at least one anchor, the mean over them."""

    def _parts(self, source: Source) -> dict[str, Tensor]:
        zero, source = zero_or_nan(source), self._anchors(source)
        if len(source):
            value = self.value(source) + zero.detach()
        else:  # every parameter has a gradient of zero
            value = sum((0 * parameter.sum() for parameter in self.parameters()), start=zero)
        return {type(self).__name__: value}

    def _anchors(self, source: Source) -> Source:
        """The anchors, those of all processes where centers are divided among them, with labels checked."""
        name = type(self).__name__
        if source.masks is not None or source.relation is not None:
            raise InputError(f"{name}: positives are one's own class's centers; give labels alone")
        if source.references is not source.anchors and not source.shared:
            raise InputError(f"{name}: the references are its centers; give embeddings and labels alone")
        if source.dim != self._created().shape[1]:
            raise InputError(f"{name}: embeddings have {source.dim} dimensions and centers {self._created().shape[1]}")
        if self.is_divided:
            if len(self._created()) > self._shard_size() * self.centers_per_class:
                raise InputError(f"{name}: sharded centers must be made after the processes were joined")
            if not source.shared:
                self._check_same_everywhere(source)
            source = source.among_references()
        labels = source.labels
        assert labels is not None
        assert self.num_classes is not None
        if can_look(labels) and len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < self.num_classes:
            raise InputError(
                f"{name}: labels from {int(labels.min())} to {int(labels.max())} are not all in "
                f"0 ... {self.num_classes - 1} (num_classes = {self.num_classes})"
            )
        return source

    def _check_same_everywhere(self, source: Source) -> None:
        """What processes put together must be of one batch."""
        assert source.labels is not None
        sums = [len(source), source.labels.double().sum(), source.anchors.detach().double().sum()]
        if not distributed.same(torch.tensor(sums, dtype=torch.float64, device=source.anchors.device)):
            raise InputError(
                f"{type(self).__name__}: processes hold different batches; join them with "
                "loss.parts_of(Source.over_processes(embeddings, labels))"
            )

    def _created(self) -> nn.Parameter:
        if self.centers is None:
            raise InputError(f"{type(self).__name__}: num_classes and dim are missing; only a recipe can do without")
        return self.centers

    # Centers divided among processes ------------------------------------------------------------------------------

    @property
    def is_divided(self) -> bool:
        """Whether other processes hold the centers of other classes."""
        return self.sharded and distributed.world_size() > 1

    def whole(self, part: Tensor) -> Tensor:
        """What all processes have of something that belongs to the centers, such as these themselves, in one."""
        if not self.is_divided:
            return part
        assert self.num_classes is not None
        padded = part.new_zeros(self._shard_size() * self.centers_per_class, *part.shape[1:])
        padded[: len(part)] = part
        return distributed.gather(padded)[: self.num_classes * self.centers_per_class]

    def own_part(self, whole: Tensor) -> Tensor:
        """What of such a thing belongs to the centers of this process."""
        if not self.is_divided:
            return whole
        k, first = self.centers_per_class, self._first_class()
        return whole[first * k : (first + self._shard_size()) * k].clone()

    def _shard_size(self) -> int:
        assert self.num_classes is not None
        return -(-self.num_classes // distributed.world_size())

    def classes_of_all(self) -> list[int]:
        """How many classes each process holds."""
        assert self.num_classes is not None
        firsts = range(0, self.num_classes, self._shard_size())
        return [min(self._shard_size(), self.num_classes - first) for first in firsts]

    def _places(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Where the classes of labels are among those of this process, and whether they are, both [n]."""
        here = len(self._created()) // self.centers_per_class
        places = labels.long() - self._first_class()
        return places.clamp(0, here - 1), (places >= 0) & (places < here)

    def _first_class(self) -> int:
        return distributed.rank() * self._shard_size() if self.is_divided else 0

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.centers is not None and self.is_divided:
            destination[f"{prefix}centers"] = self.all_centers()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        centers = state_dict.get(f"{prefix}centers")
        if self.centers is None and centers is not None:
            self.create(len(centers) // self.centers_per_class, centers.shape[1])
        if centers is not None and self.is_divided:
            state_dict = {**state_dict, f"{prefix}centers": self.own_part(centers)}
        super()._load_from_state_dict(state_dict, prefix, *others)
