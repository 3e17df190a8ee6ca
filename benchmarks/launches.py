"""What a training step of each loss costs a GPU, counted without one: waits of the host, launches, bytes.

    python -m benchmarks.launches [--size 4096] [--dim 512] [--per_class 4] [--losses contextual]
    python -m benchmarks.launches --work

The second counts a step in two stages, a step of the context refiner and an evaluation.

Forward and backward on a pretend device of 80 GB: operations are counted, nothing is timed. Bytes are those of the
tensors that operations take and return; Triton kernels count as one launch. The time is computed, not measured: 5 us a
launch or the bytes at 3.35 TB/s (H100), whichever is more, and the products at 67 TFLOP/s.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F

from benchmarks.table import print_machine
from tests.pretend_device import PretendDevice, module_on_device, on_device, pretend_device
from vicinal import Table, losses
from vicinal.data import ImageTransform
from vicinal.evaluation import evaluate
from vicinal.evaluation.counting import counter as counting
from vicinal.mixing import SiMix
from vicinal.models import ContextRefiner, Embedder
from vicinal.training.large_batch import embed_in_micro_batches
from vicinal.training.refiner_trainer import RefinerModule
from vicinal.utils import devices

LAUNCH, BANDWIDTH, FLOPS = 5e-6, 3.35e12, 67e12
LOSSES: dict[str, Callable[[int, int], losses.Loss]] = {
    "contrastive": lambda *_: losses.ContrastiveLoss(),
    "multi-similarity": lambda *_: losses.MultiSimilarityLoss(),
    "NT-Xent": lambda *_: losses.NTXentLoss(),
    "triplet, all": lambda *_: losses.TripletLoss(),
    "Smooth-AP": lambda *_: losses.SmoothAPLoss(),
    "RS@k": lambda *_: losses.RecallAtKLoss(),
    "RS@k + SiMix": lambda *_: SiMix(losses.RecallAtKLoss()),
    "ROADMAP": lambda *_: losses.RoadmapLoss(),
    "contextual": lambda *_: losses.ContextualLoss(),
    "NormSoftmax": lambda classes, dim: losses.NormSoftmaxLoss(classes, dim),
    "Proxy Anchor": lambda classes, dim: losses.ProxyAnchorLoss(classes, dim),
}


def two_stage_step(_: PretendDevice) -> Callable[[], object]:
    """RS@k with ViT-B/16 of 224 pixels, 8 images in micro-batches of 4."""
    transform = ImageTransform(size=224, resize=224)
    network = Embedder("vit_base_patch16_224", pooling="token", norm="none", pretrained=False, transform=transform)
    model, images, labels = module_on_device(network), on_device(torch.randn(8, 3, 224, 224)), _labels(8)
    return lambda: losses.RecallAtKLoss()(embed_in_micro_batches(model, images, 4), labels).backward()


def refiner_step(_: PretendDevice) -> Callable[[], object]:
    """Multi-similarity with the refiner of 8 blocks, 128 embeddings of 512 dimensions with 8 neighbors each."""
    module = module_on_device(RefinerModule(ContextRefiner(512), losses.MultiSimilarityLoss()))
    embeddings, context = (on_device(F.normalize(torch.randn(128, *shape), dim=-1)) for shape in ((512,), (8, 512)))
    inputs = embeddings, context, on_device(torch.ones(128, 8, dtype=torch.bool)), _labels(128)
    return lambda: torch.autograd.backward(torch.stack(list(module(*inputs).values())).sum())


def evaluation(device: PretendDevice) -> Callable[[], object]:
    """All metrics of 8,000 vectors of 128 dimensions, 5 of each class; the kernel counts nothing but itself."""
    vectors, table = on_device(torch.randn(8000, 128)), Table(pd.DataFrame({"label": np.arange(8000) // 5}))

    def count_kernel(_: object, scores: torch.Tensor, *places: int) -> None:
        device.launches += 1
        device.bytes += 4 * scores.numel()

    def run() -> None:
        with (
            patch.object(counting, "uses_kernel", lambda *_: True),
            patch.object(counting.DeviceCounter, "_count_by_kernel", count_kernel),
        ):
            evaluate(vectors, table)

    return run


WORK = {
    "two-stage step of ViT-B/16, 2 micro-batches": two_stage_step,
    "step of the context refiner": refiner_step,
    "evaluation of 8,000 vectors": evaluation,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=4096, help="embeddings in the batch")
    parser.add_argument("--dim", type=int, default=512, help="dimension of the embeddings")
    parser.add_argument("--per_class", type=int, default=4, help="embeddings of each class")
    parser.add_argument("--losses", nargs="+", choices=list(LOSSES), default=list(LOSSES))
    parser.add_argument("--work", action="store_true", help="steps and an evaluation as a whole instead of losses")
    args = parser.parse_args()
    devices.MIN_GPU_ELEMENTS = devices.MAX_GPU_ELEMENTS  # those of 80 GB
    print_machine()
    if args.work:
        _print_work()
        return
    print(f"\nn = {args.size}, d = {args.dim}, {args.per_class} of each class; counted, but for the time\n")
    print("| | waits | launches | bytes per similarity | GFLOP | computed ms |")
    print("|---|---|---|---|---|---|")
    for name in args.losses:
        print(f"| {name} | {' | '.join(_counts(name, args.size, args.dim, args.per_class))} |", flush=True)


def _print_work() -> None:
    print("\n| | waits | launches | MB |\n|---|---|---|---|")
    for name, make in WORK.items():
        torch.manual_seed(0)
        with pretend_device(has_kernels=True) as device:
            run = make(device)
            device.waits.clear()
            launches, moved = device.launches, device.bytes
            run()
        numbers = device.waits.total(), device.launches - launches, round((device.bytes - moved) / 1e6)
        print(f"| {name} | {' | '.join(f'{each:,}' for each in numbers)} |", flush=True)


def _labels(number: int) -> torch.Tensor:
    return on_device(torch.arange(number) // 4)


def _counts(name: str, size: int, dim: int, per_class: int) -> list[str]:
    torch.manual_seed(0)
    loss = LOSSES[name](-(-size // per_class), dim)
    with pretend_device(has_kernels=True) as device:
        x, labels = on_device(torch.randn(size, dim).requires_grad_()), on_device(torch.arange(size) // per_class)
        module_on_device(loss)(x, labels).backward()
    seconds = max(device.launches * LAUNCH, device.bytes / BANDWIDTH) + device.flops / FLOPS
    counts = device.waits.total(), device.launches, device.bytes / size**2, device.flops / 1e9
    return [*(f"{number:,.0f}" for number in counts), f"{1e3 * seconds:.1f}"]


if __name__ == "__main__":
    main()
