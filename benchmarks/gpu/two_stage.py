"""A training step of ViT-B/16 in two stages: where its time goes, and that its memory does not grow with the batch.

The loss is computed on the embeddings apart, and their gradient goes on into the network, which is the same step with
a time of its own for the loss. Images are on the device; bfloat16 autocast, AdamW.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu.rows import Key, Measurement, Numbers
from benchmarks.gpu.timing import Settings, Stopwatch, measured, spread
from vicinal.data import ImageTransform
from vicinal.losses import ContextualLoss, ContrastiveLoss, Loss, MultiSimilarityLoss, RecallAtKLoss, SmoothAPLoss
from vicinal.mixing import SiMix
from vicinal.models import Embedder
from vicinal.training.large_batch import embed_in_micro_batches

NETWORK, PIXELS, MICRO_BATCH = "vit_base_patch16_224", 224, 256
SMALL_NETWORK, SMALL_PIXELS, SMALL_MICRO_BATCH = "test_vit", 32, 8
BATCHES, SMALL_BATCHES = (1024, 4096), (16, 24)
LOSSES: dict[str, Callable[[], Loss]] = {
    "RS@k": RecallAtKLoss,
    "RS@k + SiMix": lambda: SiMix(RecallAtKLoss()),
    "multi-similarity": MultiSimilarityLoss,
    "Smooth-AP": SmoothAPLoss,
    "contextual + contrastive": lambda: 0.8 * ContextualLoss() + 0.2 * ContrastiveLoss(),
}
STAGES = ("first pass", "loss", "second pass", "optimizer")
PLAIN, TWO_STAGES = "one pass", "two stages"


def measurements(settings: Settings) -> Iterator[Measurement]:
    """The plain step of one micro-batch, then steps of each loss; of smaller batches with the first loss only."""
    micro_batch_size = SMALL_MICRO_BATCH if settings.small else MICRO_BATCH
    first, batches = next(iter(LOSSES)), SMALL_BATCHES if settings.small else BATCHES
    yield _measurement(first, PLAIN, micro_batch_size, settings)
    for batch_size in batches:
        for name in LOSSES if batch_size == max(batches) else (first,):
            yield _measurement(name, TWO_STAGES, batch_size, settings)


def network(settings: Settings) -> Embedder:
    """ViT-B/16 with random weights; in small, a tiny one."""
    name, pixels = (SMALL_NETWORK, SMALL_PIXELS) if settings.small else (NETWORK, PIXELS)
    torch.manual_seed(0)
    transform = ImageTransform(size=pixels, resize=pixels)
    model = Embedder(name, 512, pooling="token", norm="none", pretrained=False, transform=transform)
    return model.to(settings.device)


def _measurement(name: str, who: str, batch_size: int, settings: Settings) -> Measurement:
    key = Key("two_stage", name, who, f"batch {batch_size:,}")
    return Measurement(key, partial(_measure, name, who, batch_size, settings), limit=120)


def _measure(name: str, who: str, batch_size: int, settings: Settings) -> Numbers:
    model, loss = network(settings), LOSSES[name]().to(settings.device)
    micro_batch_size = (SMALL_MICRO_BATCH if settings.small else MICRO_BATCH) if who == TWO_STAGES else None
    size = model.transform.size
    images = torch.randn(batch_size, 3, size, size, device=settings.device)
    labels = torch.arange(batch_size, device=settings.device) // 4
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    laps: list[dict[str, float]] = []

    def step(count: int = batch_size) -> None:
        laps.append(_step(model, loss, optimizer, images[:count], labels[:count], micro_batch_size))

    few = 2 * micro_batch_size if micro_batch_size else batch_size
    numbers = measured(step, settings, warm_up=partial(step, few))
    timed = laps[1 : 1 + numbers["rounds"]]
    stages = {stage: spread([each[stage] for each in timed])["ms"] for stage in STAGES}
    fraction = spread([each["loss"] / sum(each.values()) for each in timed])["ms"]
    return {**numbers, **stages, "loss_fraction": fraction, "images_per_s": 1000 * batch_size / numbers["ms"]}


def _step(
    model: Embedder,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    images: Tensor,
    labels: Tensor,
    micro_batch_size: int | None,
) -> dict[str, float]:
    """A step, and the milliseconds of its stages."""
    stopwatch = Stopwatch(images.device)
    stopwatch.lap("")
    with torch.autocast(images.device.type, torch.bfloat16):
        embeddings = embed_in_micro_batches(model, images, micro_batch_size)
    stopwatch.lap("first pass")
    leaf = embeddings.detach().requires_grad_()
    loss(leaf, labels).backward()
    stopwatch.lap("loss")
    torch.autograd.backward(embeddings, leaf.grad)
    stopwatch.lap("second pass")
    optimizer.step()
    optimizer.zero_grad()
    stopwatch.lap("optimizer")
    return stopwatch.milliseconds()
