"""What a training step runs: images and labels in, the parts of the loss out."""

from __future__ import annotations

from torch import Tensor, nn

from vicinal.losses import Loss
from vicinal.models import Embedder
from vicinal.similarity import Source
from vicinal.training.large_batch import embed_in_micro_batches


class System(nn.Module):
    """Model and loss as one module, so that precision and processes wrap both.

    Args:
        embedder: the model.
        loss: the loss, with or without parameters.
        micro_batch: images a forward and backward pass; None: the whole batch at once.

    Attributes:
        kept: bool [n], which of the last batch's images of this process the loss saw; None: all.
    """

    def __init__(self, embedder: Embedder, loss: Loss, micro_batch: int | None = None) -> None:
        super().__init__()
        self.embedder = embedder
        self.embedder.keeps_length = any(part.of_lengths for part in loss.modules() if isinstance(part, Loss))
        self.loss = loss
        self.micro_batch = micro_batch
        self.kept: Tensor | None = None

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The loss's parts, for this process's images as anchors and those of all processes as references."""
        embeddings = embed_in_micro_batches(self.embedder, images, self.micro_batch)
        return self.loss.parts_of(Source.over_processes(embeddings, labels.to(embeddings.device)))

    def start_epoch(self, epoch: int) -> None:
        """Told at the beginning of every epoch, from 0."""

    @property
    def embedders(self) -> list[Embedder]:
        """All models that learn; the first is the run's."""
        return [self.embedder]

    def losses(self) -> list[Loss]:
        """All losses, one a model."""
        return [self.loss]

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """The parameters by part: backbone, head, projector, loss; parts without parameters are left out."""
        groups: dict[str, list[nn.Parameter]] = {}
        for embedder, loss in zip(self.embedders, self.losses(), strict=True):
            for name, parameters in {**embedder.parameter_groups(), "loss": list(loss.parameters())}.items():
                groups.setdefault(name, []).extend(parameters)
        return {name: parameters for name, parameters in groups.items() if parameters}
