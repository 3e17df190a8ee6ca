"""The module of a training step: images and labels in, the terms of the loss out."""

from __future__ import annotations

from torch import Tensor, nn

from vicinal.data.images.augmentation import augment
from vicinal.distillation import S2SD
from vicinal.losses import Loss
from vicinal.models import Embedder
from vicinal.similarity.pair_source import PairSource
from vicinal.training.large_batch import embed_in_micro_batches
from vicinal.utils.errors import InputError


class TrainingModule(nn.Module):
    """Model and loss as one module, so that precision and processes wrap both."""

    def __init__(self, embedder: Embedder, loss: Loss, micro_batch_size: int | None = None) -> None:
        super().__init__()
        self.embedder = embedder
        parts = [part for part in loss.modules() if isinstance(part, Loss)]
        self.embedder.normalize_in_training = not any(part.uses_norms for part in parts)
        self.embedder.features_in_training = any(part.uses_features for part in parts)
        if self.embedder.features_in_training and type(self) is not TrainingModule:
            raise InputError("sample_selection: a loss that uses features, such as S2SD, is not supported")
        for part in parts:
            if isinstance(part, S2SD) and (part.in_features != embedder.num_features or not part.heads):
                part.create_heads(embedder.num_features)
        self.loss = loss
        self.micro_batch_size = micro_batch_size
        self.selected: Tensor | None = None

    def forward(self, images: Tensor, labels: Tensor, augmentation: Tensor | None = None) -> dict[str, Tensor]:
        """The terms of the loss, with this process's images as anchors and those of all processes as references.

        Images are uint8 `[n, channels, height, width]`, or another input of the model; whole images are a list.
        `augmentation`, float32 `[n, parameters]`, has the random changes of the images that are left to the device.
        """
        output = self._embed(self.embedder, images, augmentation)
        embeddings, features = self.embedder.split_output(output)
        labels = labels.to(output.device, non_blocking=True)
        return self.loss.parts(PairSource.from_distributed_batch(embeddings, labels, features))

    def _embed(self, embedder: Embedder, images: Tensor, augmentation: Tensor | None) -> Tensor:
        """The embeddings of the images of a batch, augmented on the device, micro-batch by micro-batch."""
        if augmentation is None:
            return embed_in_micro_batches(embedder, images, self.micro_batch_size)
        parameters = augmentation.to(next(embedder.parameters()).device, non_blocking=True)
        return embed_in_micro_batches(
            embedder,
            images,
            self.micro_batch_size,
            lambda pixels, rows: augment(pixels, parameters[rows], embedder.transform),
        )

    def start_epoch(self, epoch: int) -> None:
        """Called at the start of every epoch, counted from 0."""

    @property
    def embedders(self) -> list[Embedder]:
        """All models that are trained; the first is the one that the run saves."""
        return [self.embedder]

    @property
    def losses(self) -> list[Loss]:
        return [self.loss]

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """The parameters by part: backbone, head, projector, loss; parts without parameters are left out."""
        groups: dict[str, list[nn.Parameter]] = {}
        for embedder, loss in zip(self.embedders, self.losses, strict=True):
            for name, parameters in {**embedder.parameter_groups(), "loss": list(loss.parameters())}.items():
                groups.setdefault(name, []).extend(parameters)
        return {name: parameters for name, parameters in groups.items() if parameters}
