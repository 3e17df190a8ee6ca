"""Training steps on a pretend GPU: the gradients of the CPU, few waits and launches; and augmentation on the device."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.pretend_device import PretendDevice, PretendTensor, module_on_device, on_device, pretend_device
from tests.training.runs import interrupted, weights
from vicinal import Embedder
from vicinal.data import ImageTransform
from vicinal.data.images.augmentation import AugmentationSampler, augment
from vicinal.losses import CrossEntropyLoss, MultiSimilarityLoss, SmoothAPLoss
from vicinal.memory import CrossBatchMemory
from vicinal.models import ContextRefiner
from vicinal.retrieval.scores import UnitVectors
from vicinal.training import Recipe, resume, train
from vicinal.training.recipes.refiner_settings import ContextAugmentation
from vicinal.training.refiner_context import TrainingContext
from vicinal.training.refiner_trainer import RefinerModule
from vicinal.training.sample_selection import CoTeachingModule, CoTeachingPlusModule, PrismModule, PrismSelector
from vicinal.training.step_message import StepMessage
from vicinal.training.training_module import TrainingModule

LABELS = torch.arange(12) % 4
NUM_STEPS = 2


def embedder() -> Embedder:
    return Embedder("resnet10t", dim=8, pretrained=False, transform=ImageTransform(size=32), freeze_batch_norm="all")


def plain(micro_batch_size: int | None = None) -> TrainingModule:
    return TrainingModule(embedder(), MultiSimilarityLoss(), micro_batch_size)


def with_memory() -> TrainingModule:
    return TrainingModule(embedder(), CrossBatchMemory(MultiSimilarityLoss(), size=18))


def prism() -> TrainingModule:
    return PrismModule(embedder(), MultiSimilarityLoss(), PrismSelector(0.3, 18, window=2), warmup_epochs=0)


def co_teaching() -> TrainingModule:
    losses = (MultiSimilarityLoss(), MultiSimilarityLoss())
    module = CoTeachingModule(embedder(), losses[0], embedder(), losses[1], noise_rate=0.3, warmup_epochs=0)
    module.start_epoch(1)
    return module


def co_teaching_plus() -> TrainingModule:
    first, second = ((embedder(), CrossEntropyLoss(4, 8)) for _ in range(2))
    module = CoTeachingPlusModule(*first, *second, noise_rate=0.3, warmup_epochs=0, co_teaching_epochs=0)
    module.start_epoch(1)
    return module


MODULES: dict[str, tuple[Callable[[], TrainingModule], int, int]] = {
    "one pass": (plain, 2, 300),
    "micro-batches": (lambda: plain(4), 2, 950),
    "memory": (with_memory, 2, 310),
    "PRISM": (prism, 3, 350),
    "co-teaching": (co_teaching, 5, 740),
    "co-teaching+": (co_teaching_plus, 3, 690),
}
"""Module -> how it is made, and the host's waits and the launches of one step, which may become fewer, not more."""


def images() -> Tensor:
    return torch.randn(len(LABELS), 3, 32, 32, generator=torch.Generator().manual_seed(0))


def step(module: nn.Module, inputs: dict[str, Tensor]) -> dict[str, float]:
    terms = module(**inputs)
    torch.stack(list(terms.values())).sum().backward()
    values = [{name: term.detach() for name, term in terms.items()}]
    message = StepMessage.exchange(values, with_terms=True, is_stopping=False, is_saving=False, shard_squares=None)
    return message.terms


def gradients(module: nn.Module) -> list[Tensor]:
    found = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    return [each.values if isinstance(each, PretendTensor) else each for each in found]


def compare(
    module: nn.Module,
    inputs: Callable[[], dict[str, Tensor]],
    moved: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> PretendDevice:
    """Take steps on the CPU and on the device, to which inputs are moved; return what was counted in the last step."""

    def moved_inputs() -> dict[str, Tensor]:
        return {name: moved(each) for name, each in inputs().items()}

    other = copy.deepcopy(module)
    for _ in range(NUM_STEPS):
        expected = step(module, inputs())
    with pretend_device():
        module_on_device(other)
        for _ in range(NUM_STEPS - 1):
            step(other, moved_inputs())
    with pretend_device() as device:
        found = step(other, moved_inputs())
    assert found == pytest.approx(expected, rel=1e-6)
    for each, by_cpu in zip(gradients(other), gradients(module), strict=True):
        torch.testing.assert_close(each, by_cpu, rtol=1e-5, atol=1e-6)
    return device


@pytest.mark.parametrize("name", MODULES)
def test_a_step_is_that_of_the_cpu_with_few_waits_and_launches(name: str) -> None:
    create, waits, launches = MODULES[name]
    torch.manual_seed(0)
    device = compare(create().train(), lambda: {"images": images(), "labels": LABELS})
    assert device.waits.total() <= waits, device.waits
    assert device.launches <= launches


def test_a_step_of_the_refiner_is_that_of_the_cpu() -> None:
    torch.manual_seed(0)
    module = RefinerModule(ContextRefiner(8, depth=2, num_heads=2, neighbors=3), SmoothAPLoss()).train()
    vectors = torch.randn(12, 8, generator=torch.Generator().manual_seed(1))
    context = TrainingContext(
        module.refiner, UnitVectors(vectors, "vector"), LABELS.numpy(), ContextAugmentation(), seed=0
    )
    context.start_epoch(0)
    batch = context.batch(list(range(12)), 0)
    inputs = {name: batch[name] for name in ("embeddings", "context", "mask", "labels")}
    device = compare(module, lambda: inputs, on_device)
    assert device.waits.total() <= 2, device.waits
    assert device.launches <= 560


def test_the_context_of_a_refiner_is_that_of_the_cpu() -> None:
    vectors = torch.randn(12, 8, generator=torch.Generator().manual_seed(1))
    augmentation = ContextAugmentation(noise=0.3)

    def context(vectors: Tensor, refiner: ContextRefiner) -> TrainingContext:
        made = TrainingContext(refiner, UnitVectors(vectors, "vector"), LABELS.numpy(), augmentation, seed=0)
        made.start_epoch(1)
        return made

    torch.manual_seed(0)
    expected = context(vectors, ContextRefiner(8, depth=2, neighbors=3)).batch(list(range(12)), 0)
    torch.manual_seed(0)
    refiner = ContextRefiner(8, depth=2, neighbors=3)
    with pretend_device() as device:
        on = context(on_device(vectors), module_on_device(refiner))
        device.waits.clear()
        found = on.batch(list(range(12)), 0)
    for name in ("embeddings", "context", "mask", "labels"):
        torch.testing.assert_close(found[name].values, expected[name], rtol=1e-6, atol=1e-6)
    assert not device.waits


TRANSFORM = ImageTransform(size=32, color_jitter=0.4)
EXACT = (
    "--transform.color_jitter=0.4",
    "--transform.fast=false",
    "--model.dropout=0.2",
    "--model.freeze_batch_norm=statistics",
    "--micro_batch_size=3",
    "--epochs=1",
)


def batch() -> dict[str, Tensor]:
    torch.manual_seed(0)
    pixels = torch.randint(0, 256, (len(LABELS), 3, 32, 32), dtype=torch.uint8)
    sampler = AugmentationSampler(TRANSFORM)
    return {"images": pixels, "labels": LABELS, "augmentation": torch.stack([sampler.draw() for _ in LABELS])}


@pytest.mark.parametrize("create", [plain, lambda: plain(5), prism, co_teaching])
def test_a_step_is_that_of_augmented_images(create) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    module = create().train()
    for embedder in module.embedders:
        embedder.transform = TRANSFORM
    other, left = copy.deepcopy(module), batch()
    made = augment(left["images"], left["augmentation"], TRANSFORM)
    assert step(module, left) == step(other, {"images": made, "labels": LABELS})
    assert all(map(torch.equal, gradients(module), gradients(other)))


@pytest.mark.parametrize(("name", "more"), [("one pass", 1), ("micro-batches", 6)])
def test_on_a_device_nothing_more_waits_and_launches_are_few(name: str, more: int) -> None:
    create, waits, launches = MODULES[name]
    module = create().train()
    module.embedder.transform = TRANSFORM
    with pretend_device():
        module_on_device(module)
        step(module, batch())
    with pretend_device() as device:
        step(module, batch())
    assert device.waits.total() <= waits, device.waits
    assert device.launches <= launches + 45 * more


@pytest.mark.parametrize("where", ["device", pytest.param("workers", marks=pytest.mark.slow)])
def test_a_run_is_that_of_workers_wherever_it_is_resumed(small: list[str], tmp_path: Path, where: str) -> None:
    """Also where it began on the device and goes on in workers, as on another machine."""
    settings = [*small, *EXACT]
    straight = train(Recipe.load(overrides=[*settings, "--data.augmentation=workers"]), tmp_path / "workers")
    begun = interrupted([*settings, "--data.augmentation=device"], tmp_path / "device", 2)
    more = [f"--data.num_workers={int(where == 'workers')}", f"--data.augmentation={where}"]
    resumed = resume(begun.path, Recipe.load(overrides=[*settings, *more]))
    assert f"augmentation: {where}\n" in resumed.recipe.read_text()
    assert weights(resumed) == weights(straight)
