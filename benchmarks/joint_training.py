"""Training of the last block of an embedder through a context refiner, for benchmarks.refiner_joint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vicinal import ContextRefiner, Embedder, Table, evaluate
from vicinal.data import ClassBalancedBatchSampler, ImageDataset, TrainBatches
from vicinal.data.batches.image_dataset import PixelBatches, row_batches
from vicinal.data.images.image_ops import normalized
from vicinal.losses import SmoothAPLoss
from vicinal.models import train_last_blocks
from vicinal.models.execution import eval_mode
from vicinal.retrieval import Refinement
from vicinal.retrieval.scores import UnitVectors
from vicinal.training.recipes.refiner_settings import ContextAugmentation, RefinerOptimizer
from vicinal.training.refiner_context import TrainingContext, matching_noise
from vicinal.training.schedule import Schedule
from vicinal.utils.seeds import derive_seed

EPOCHS, STEPS, BATCH_SIZE, SAMPLES_PER_CLASS = 6, 16, 128, 4
FROZEN = ("conv1", "bn1", "act1", "maxpool", "layer1", "layer2", "layer3")  # of the backbone
TRAINED = "layer4"  # the last block


class FeatureMaps:
    """What the frozen layers make of the images, computed once.

    Args:
        embedder: the model.
        images: with the splits train and val.
        copies: number of augmented copies of each training image.
        seed: of the augmentation.

    Attributes:
        train, val: float [n, c, h, w], of the images as in tests.
        augmented: float [copies, n, c, h, w], of the training images.
        labels: int64 [n], of the training images.
        val_table: the validation images.
    """

    def __init__(self, embedder: Embedder, images: Table, copies: int, seed: int) -> None:
        self.layers = nn.Sequential(*(embedder.backbone.get_submodule(name) for name in FROZEN)).eval()
        self.transform = embedder.transform
        train, val = (ImageDataset(images.subset(split), embedder.transform) for split in ("train", "val"))
        self.labels, self.val_table = train.table.labels, val.table
        tests = [PixelBatches(each, row_batches(each, range(len(each)), BATCH_SIZE)) for each in (train, val)]
        self.train, self.val = (self._maps(each[number][0] for number in range(len(each))) for each in tests)
        plan = [rows.tolist() for rows in np.array_split(np.arange(len(train)), len(train) // BATCH_SIZE)]
        augmented = [TrainBatches(train, plan, (seed, copy)) for copy in range(copies)]
        self.augmented = torch.stack(
            [self._maps(each[number]["images"] for number in range(len(each))) for each in augmented]
        )

    @torch.no_grad()
    def _maps(self, batches: Iterable[Tensor]) -> Tensor:
        return torch.cat([self.layers(normalized(images, self.transform)) for images in batches])


class JointTraining:
    """Trains the last block, pooling and head of an embedder together with a refiner.

    Args:
        embedder: the model, which is changed.
        refiner: a trained refiner of its embeddings, which is changed.
        maps: of the images.
        fraction: of the loss of refined embeddings; the rest is that of the embeddings themselves. 0: no refiner.
        rate: highest learning rate of the embedder; that of the refiner is its default.
        seed: of batches and noise.
    """

    def __init__(
        self, embedder: Embedder, refiner: ContextRefiner, maps: FeatureMaps, fraction: float, rate: float, seed: int
    ) -> None:
        self.embedder, self.refiner, self.maps, self.fraction, self.seed = embedder, refiner, maps, fraction, seed
        train_last_blocks(embedder, 1)
        self.loss, self.settings = SmoothAPLoss(), RefinerOptimizer()
        self.optimizer = torch.optim.AdamW(self._groups(rate), weight_decay=self.settings.weight_decay)
        schedule = Schedule("cosine", warmup=1.0)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: schedule.factor(step / STEPS, step, EPOCHS * STEPS)
        )

    def _groups(self, rate: float) -> Iterator[dict[str, Any]]:
        """The parameters with their learning rates."""
        yield {"params": [each for part in self.embedder.parameter_groups().values() for each in part], "lr": rate}
        if self.fraction:
            parameters = list(self.refiner.parameters())
            for part, is_matrix in {"refiner": True, "scalars": False}.items():
                params = [each for each in parameters if (each.ndim == 2) == is_matrix]
                yield {"params": params, "lr": self.settings.lr * self.settings.lr_factor(part)}

    def fit(self) -> list[float]:
        """The validation scores before training and after every epoch; the models get the weights of the best."""
        whole = self.embedder.backbone
        self.embedder.backbone = whole.get_submodule(TRAINED)  # takes feature maps
        models = nn.ModuleList([self.embedder, self.refiner])
        scores, best = [self._score()], deepcopy(models.state_dict())
        for epoch in range(EPOCHS):
            models.train()
            self._train_epoch(epoch)
            scores.append(self._score())
            if scores[-1] == max(scores):
                best = deepcopy(models.state_dict())
        models.load_state_dict(best)
        self.embedder.backbone = whole
        return scores

    def _train_epoch(self, epoch: int) -> None:
        maps, generator = self.maps, torch.Generator().manual_seed(derive_seed(self.seed, epoch))
        sampler = ClassBalancedBatchSampler(
            maps.labels, BATCH_SIZE, SAMPLES_PER_CLASS, num_batches=STEPS, seed=self.seed
        )
        sampler.set_epoch(epoch)
        context = self._context(epoch) if self.fraction else None
        for rows in map(torch.tensor, sampler):
            copies = torch.randint(len(maps.augmented), rows.shape, generator=generator)
            embeddings, labels = self.embedder(maps.augmented[copies, rows]), torch.from_numpy(maps.labels)[rows]
            loss = (1 - self.fraction) * self.loss(embeddings, labels)
            if context is not None:
                loss = loss + self.fraction * self.loss(self._refine(embeddings, rows, context), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()

    def _context(self, epoch: int) -> TrainingContext:
        """The bank of an epoch with its noise, and the neighbors of each training image in it."""
        maps, seed = self.maps, self.seed
        train, val = self._embed(maps.train), self._embed(maps.val)
        noise = matching_noise(train, maps.labels, val, maps.val_table.labels, "embeddings", seed)
        vectors, augmentation = UnitVectors(train, "embedding"), ContextAugmentation(noise=noise)
        context = TrainingContext(self.refiner, vectors, maps.labels, augmentation, seed)
        context.start_epoch(epoch)
        return context

    def _refine(self, embeddings: Tensor, rows: Tensor, context: TrainingContext) -> Tensor:
        """The embeddings of a batch, refined by their neighbors; those that are in the batch have gradients."""
        bank = context.embeddings.index_copy(0, rows, embeddings)
        refined: Tensor = self.refiner(embeddings, bank[context.neighbors[rows]])
        return refined

    @torch.no_grad()
    def _embed(self, maps: Tensor) -> Tensor:
        with eval_mode(self.embedder):
            embeddings: Tensor = self.embedder(maps)
        return embeddings

    def _score(self) -> float:
        """mAP@R on the validation classes, of refined embeddings if they have a loss."""
        method = Refinement(self.refiner) if self.fraction else None
        vectors = self._embed(self.maps.val)
        return evaluate(vectors, self.maps.val_table, rerank=method, metrics=["mAP@R"]).metrics["mAP@R"]
