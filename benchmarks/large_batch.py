"""What two-stage backpropagation costs over a plain step of the same images, and that its memory stays flat.

    python -m benchmarks.large_batch                                            # everything
    python -m benchmarks.large_batch --batch_size 80 --micro-batch 20 --sizes 80 160 --rounds 2    # a try

Network and image size are those of the Omniglot recipe. Goals: at most 1.4 times a plain step (the limit is 4/3: one
forward pass more, where a backward pass takes as long as two), and a peak of memory that for a given micro-batch is the
same at batch 400 and 4000, images and embeddings apart. Memory is that of a process of its own for each size.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.table import peak_extra_megabytes, print_machine, print_table, take_turns
from vicinal.data import ImageTransform
from vicinal.losses import MultiSimilarityLoss
from vicinal.models import Embedder
from vicinal.training.training_module import TrainingModule

SIZE, SAMPLES_PER_CLASS, DIM = 40, 4, 512
CHANNELS = {"stem_width": 16, "channels": [24, 48, 96, 256]}

Step = Callable[[], None]


def training_step(batch_size: int, micro_batch_size: int | None) -> Step:
    """A step of training on ready images, in one pass or in micro-batches."""
    images, labels = torch.randn(batch_size, 1, SIZE, SIZE), torch.arange(batch_size) // SAMPLES_PER_CLASS
    step = _step_on(micro_batch_size)
    step(images[:8], labels[:8])  # one-time set-up is not part of the step
    return lambda: step(images, labels)


def micro_batches_alone(batch_size: int, micro_batch_size: int) -> Step:
    """A step for each micro-batch, of a loss that sees no other: what the network takes, in passes of that size."""
    images, labels = torch.randn(batch_size, 1, SIZE, SIZE), torch.arange(batch_size) // SAMPLES_PER_CLASS
    step = _step_on(None)

    def run() -> None:
        for part in zip(torch.split(images, micro_batch_size), torch.split(labels, micro_batch_size), strict=True):
            step(*part)

    return run


def _step_on(micro_batch_size: int | None) -> Callable[[torch.Tensor, torch.Tensor], None]:
    torch.manual_seed(0)
    transform = ImageTransform(size=SIZE, channels=1, mean=(0.92,), std=(0.26,))
    model = Embedder(
        "test_resnet",
        DIM,
        pretrained=False,
        freeze_batch_norm="statistics",
        transform=transform,
        backbone_args=CHANNELS,
    )
    system = TrainingModule(model, MultiSimilarityLoss(), micro_batch_size)
    optimizer = torch.optim.AdamW(system.parameters(), lr=1e-4)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        sum(system(images, labels).values()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def loss_alone(batch_size: int) -> Step:
    """The loss on ready embeddings, forward and backward."""
    embeddings, labels = torch.randn(batch_size, DIM), torch.arange(batch_size) // SAMPLES_PER_CLASS
    loss = MultiSimilarityLoss()

    def step(n: int) -> None:
        loss(embeddings[:n].clone().requires_grad_(), labels[:n]).backward()

    step(8)
    return lambda: step(batch_size)


def step_named(name: str, batch_size: int, micro_batch_size: int) -> Step:
    if name == "loss alone":
        return loss_alone(batch_size)
    return training_step(batch_size, micro_batch_size if name == "two-stage" else None)


def peak_in_own_process(name: str, batch_size: int, micro_batch_size: int) -> str:
    """Megabytes beyond images, weights and libraries."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.large_batch",
        "--measure-memory",
        name,
        str(batch_size),
        str(micro_batch_size),
    ]
    result = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent, check=False)
    return f"{float(result.stdout):.0f}" if result.returncode == 0 else "failed"


def print_memory(sizes: list[int], micro_batch_size: int) -> None:
    print(f"\nPeak extra MB of a process of its own, one thread, micro-batch {micro_batch_size}\n")
    print("| batch | images | embeddings | loss alone | plain | two-stage |")
    print("|---|---|---|---|---|---|")
    for batch in sizes:
        images, embeddings = (4e-6 * batch * numbers for numbers in (SIZE**2, DIM))
        peaks = (peak_in_own_process(name, batch, micro_batch_size) for name in ("loss alone", "plain", "two-stage"))
        print(f"| {batch} | {images:.0f} | {embeddings:.1f} | {' | '.join(peaks)} |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch_size", type=int, default=800, help="images of the steps that are timed")
    parser.add_argument("--micro-batch", type=int, default=200)
    parser.add_argument("--sizes", type=int, nargs="+", default=[400, 800, 1600, 4000], help="batches, for memory")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--measure-memory", nargs=3, metavar=("NAME", "BATCH", "MICRO"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure_memory:
        torch.set_num_threads(1)
        name, batch, micro_batch_size = arguments.measure_memory
        print(peak_extra_megabytes(step_named(name, int(batch), int(micro_batch_size))))
        return
    torch.set_num_threads(arguments.threads)
    print_machine()
    batch, micro_batch_size = arguments.batch, arguments.micro_batch_size
    steps = {
        "plain step": training_step(batch, None),
        "two-stage step": training_step(batch, micro_batch_size),
        "micro-batches, each a step": micro_batches_alone(batch, micro_batch_size),
    }
    seconds = take_turns(steps, arguments.rounds)
    title = f"test_resnet of the Omniglot recipe, {SIZE} px, batch {batch}, micro-batch {micro_batch_size}"
    print_table(title, seconds, batch, "images", "plain step")
    print_memory(sorted(arguments.sizes), micro_batch_size)


if __name__ == "__main__":
    main()
