"""CenterBasedLoss: losses that compare samples with class centers, which may be sharded over processes."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vicinal.losses.base import Loss, zero_loss
from vicinal.similarity.embeddings import check_label_range
from vicinal.similarity.pair_source import PairSource
from vicinal.utils import distributed
from vicinal.utils.arguments import check_positive_integer, given
from vicinal.utils.errors import InputError


class CenterBasedLoss(Loss):
    """A loss of samples and class centers, which are parameters of the loss and serve as references.

    Labels are 0 ... num_classes - 1; the trainer of a recipe numbers classes this way. `num_classes` and `dim` can be
    left to the trainer, which knows them and calls :meth:`create_centers`.

    Args:
        num_classes: number of classes of the training set.
        dim: dimension of the embeddings.
        centers_per_class: number of centers of each class.
        sharded: whether the centers are divided among the processes, each of which holds those of some classes.

    Attributes:
        centers: float [num_classes x centers_per_class, dim], in the order of classes; None until created. With
            `sharded` those of this process's classes.

    Raises:
        InputError: a number is below 1; when called: the centers are not created yet, a label is not in
            0 ... num_classes - 1, embeddings have another dimension, or there are references, masks or a relation.
    """

    supports_references: ClassVar[bool] = False
    learns_centers: ClassVar[bool] = True
    centers: nn.Parameter | None

    def __init__(
        self, num_classes: int | None = None, dim: int | None = None, centers_per_class: int = 1, sharded: bool = False
    ) -> None:
        super().__init__()
        check_positive_integer(self, **given(num_classes=num_classes, dim=dim), centers_per_class=centers_per_class)
        self.num_classes, self.dim, self.centers_per_class, self.sharded = num_classes, dim, centers_per_class, sharded
        self.register_parameter("centers", None)
        if num_classes is not None and dim is not None:
            self.create_centers(num_classes, dim)

    def create_centers(self, num_classes: int, dim: int) -> None:
        """Create the centers: random directions, of norm 1 on average, from the global generator.

        Raises:
            InputError: the loss was constructed with other numbers, or there are fewer classes than needed to give each
                process some.
        """
        for name, value, declared in (("num_classes", num_classes, self.num_classes), ("dim", dim, self.dim)):
            if declared is not None and declared != value:
                raise InputError(f"{type(self).__name__}: {name} = {declared} does not fit; it must be {value}")
        self.num_classes, self.dim = num_classes, dim
        if self.is_sharded and self._shard_size() * (distributed.world_size() - 1) >= num_classes:
            raise InputError(
                f"{type(self).__name__}: {num_classes} classes cannot be divided among {distributed.world_size()} "
                "processes so that each has some; leave sharded out"
            )
        centers = torch.randn(num_classes * self.centers_per_class, dim) / dim**0.5
        self.centers = nn.Parameter(self.local_shard(centers), requires_grad=self.learns_centers)

    @torch.no_grad()
    def set_centers(self, classes: Tensor, vectors: Tensor) -> None:
        """Replace the centers of some classes, for example by the means of their embeddings.

        Args:
            classes: int [c], distinct.
            vectors: float [c, dim], or [c, centers_per_class, dim]; L2-normalized here. One vector per class replaces
                all centers of the class, with random noise so that they can separate.

        Raises:
            InputError: a class does not exist or is repeated, or vectors have another shape or are not finite.
        """
        centers, k = self._require_centers(), self.centers_per_class
        self._check_new_centers(classes, vectors)
        if not len(classes):
            return
        vectors = vectors.to(centers).reshape(len(classes), -1, centers.shape[1])
        vectors = nn.functional.normalize(vectors, dim=2)
        if vectors.shape[1] != k:
            noise = torch.randn(len(classes), k, centers.shape[1]).to(centers)
            vectors = vectors + 0.1 * noise / centers.shape[1] ** 0.5
        index, is_local = self._locate(classes.to(centers.device))
        centers.view(-1, k, centers.shape[1])[index[is_local]] = vectors[is_local]

    def _check_new_centers(self, classes: Tensor, vectors: Tensor) -> None:
        name, dim = f"{type(self).__name__}: set_centers", self._require_centers().shape[1]
        assert self.num_classes is not None
        distinct = sorted(set(classes.tolist()))
        if len(distinct) < len(classes) or (distinct and not 0 <= distinct[0] <= distinct[-1] < self.num_classes):
            raise InputError(f"{name} takes distinct classes in 0 ... {self.num_classes - 1}, not {classes.tolist()}")
        shapes = [[len(classes), dim], [len(classes), self.centers_per_class, dim]]
        if list(vectors.shape) not in shapes or not bool(vectors.isfinite().all()):
            expected = " or ".join(map(str, shapes))
            raise InputError(f"{name} takes finite vectors {expected}, not {list(vectors.shape)} or not finite ones")

    def all_centers(self) -> Tensor:
        """The centers of all processes, [num_classes x centers_per_class, dim], without gradient."""
        return self.gather_shards(self._require_centers().detach())

    @abstractmethod
    def mean_value(self, source: PairSource) -> Tensor:
        """Compute the mean loss over the anchors of a checked source, which has at least one."""

    def value(self, source: PairSource) -> Tensor:
        anchors = self._check_source(source)
        if len(anchors):
            return self.mean_value(anchors)
        # Every parameter gets a gradient of zero.
        return sum((0 * parameter.sum() for parameter in self.parameters()), start=zero_loss(source))

    def _check_source(self, source: PairSource) -> PairSource:
        """Check a source and return it; where centers are sharded, with the anchors of all processes."""
        name = type(self).__name__
        if not source.is_by_label:
            raise InputError(f"{name}: the positives of a sample are the centers of its class; give labels alone")
        if source.has_own_references:
            raise InputError(f"{name}: the references are the class centers; give embeddings and labels alone")
        if source.dim != self._require_centers().shape[1]:
            raise InputError(
                f"{name}: embeddings have {source.dim} dimensions and centers {self._require_centers().shape[1]}"
            )
        if self.is_sharded:
            if len(self._require_centers()) > self._shard_size() * self.centers_per_class:
                raise InputError(f"{name}: sharded centers must be created after the processes were connected")
            if not source.is_distributed:
                self._check_same_everywhere(source)
            source = source.references_as_batch()
        assert self.num_classes is not None
        check_label_range(name, self._labels(source), self.num_classes)
        return source

    @staticmethod
    def _labels(source: PairSource) -> Tensor:
        assert source.labels is not None
        return source.labels

    def _check_same_everywhere(self, source: PairSource) -> None:
        """Raise InputError unless all processes have the same batch."""
        sums = [len(source), self._labels(source).double().sum(), source.anchors.detach().double().sum()]
        if not distributed.all_equal(torch.tensor(sums, dtype=torch.float64, device=source.anchors.device)):
            raise InputError(
                f"{type(self).__name__}: processes hold different batches; combine them with "
                "loss.parts(PairSource.from_distributed_batch(embeddings, labels))"
            )

    def _require_centers(self) -> nn.Parameter:
        if self.centers is None:
            raise InputError(f"{type(self).__name__}: num_classes and dim are missing; only a recipe can omit them")
        return self.centers

    # Sharded centers ----------------------------------------------------------------------------------------------

    @property
    def is_sharded(self) -> bool:
        """Whether other processes hold the centers of other classes."""
        return self.sharded and distributed.world_size() > 1

    def gather_shards(self, shard: Tensor) -> Tensor:
        """Gather a tensor whose rows belong to the centers, such as the centers themselves, from all processes."""
        if not self.is_sharded:
            return shard
        assert self.num_classes is not None
        padded = shard.new_zeros(self._shard_size() * self.centers_per_class, *shard.shape[1:])
        padded[: len(shard)] = shard
        return distributed.all_gather(padded)[: self.num_classes * self.centers_per_class]

    def local_shard(self, full: Tensor) -> Tensor:
        """The rows of a gathered tensor that belong to the centers of this process."""
        if not self.is_sharded:
            return full
        k, first = self.centers_per_class, self._first_class()
        return full[first * k : (first + self._shard_size()) * k].clone()

    def _shard_size(self) -> int:
        assert self.num_classes is not None
        return -(-self.num_classes // distributed.world_size())

    def classes_per_process(self) -> list[int]:
        """The number of classes that each process holds."""
        assert self.num_classes is not None
        starts = range(0, self.num_classes, self._shard_size())
        return [min(self._shard_size(), self.num_classes - start) for start in starts]

    def _locate(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The index of each label's class among those of this process, and whether it is one of them, both [n]."""
        num_local = len(self._require_centers()) // self.centers_per_class
        index = labels.long() - self._first_class()
        return index.clamp(0, num_local - 1), (index >= 0) & (index < num_local)

    def _first_class(self) -> int:
        return distributed.rank() * self._shard_size() if self.is_sharded else 0

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.centers is not None and self.is_sharded:
            destination[f"{prefix}centers"] = self.all_centers()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        centers = state_dict.get(f"{prefix}centers")
        if self.centers is None and centers is not None:
            self.create_centers(len(centers) // self.centers_per_class, centers.shape[1])
        if centers is not None and self.is_sharded:
            state_dict = {**state_dict, f"{prefix}centers": self.local_shard(centers)}
        super()._load_from_state_dict(state_dict, prefix, *others)
