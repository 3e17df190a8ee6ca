"""Training with whole images of differing sizes: the gradient of the whole batch, its memory, and runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from tests.conftest import SMALL
from tests.losses.gradients import assert_near
from tests.training.runs import assert_same_run, interrupted
from vicinal.data import ImageTransform
from vicinal.losses import MultiSimilarityLoss
from vicinal.models import Embedder
from vicinal.training import Recipe, embed_in_micro_batches, resume, train
from vicinal.training.training_data import load_training_table
from vicinal.utils.errors import InputError

SIDES = [(40, 33), (64, 40), (33, 64), (48, 48), (64, 64), (40, 33), (35, 70), (70, 35)]
LABELS = torch.tensor([0, 1, 0, 2, 1, 2, 0, 1])


def pixels(sides: list[tuple[int, int]] = SIDES) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 256, (3, *side), generator=generator, dtype=torch.uint8) for side in sides]


def embedder(**more: Any) -> Embedder:
    torch.manual_seed(0)
    transform = ImageTransform(longest=70)
    return Embedder("test_resnet", 8, pretrained=False, freeze_batch_norm="all", transform=transform, **more)


def gradients(model: nn.Module, embeddings: Tensor, loss: nn.Module) -> list[Tensor]:
    model.zero_grad()
    loss(embeddings, LABELS).backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("random", [{}, {"dropout": 0.3, "backbone_args": {"drop_path_rate": 0.5}}])
def test_the_gradient_is_that_of_one_graph_over_all_images(random: dict[str, Any]) -> None:
    model, loss = embedder(pooling="gem", learned_p=True, **random).double(), MultiSimilarityLoss()
    torch.manual_seed(1)
    ours = gradients(model, embed_in_micro_batches(model, pixels(), 1), loss)
    torch.manual_seed(1)
    expected = gradients(model, torch.cat([model(image[None]) for image in pixels()]), loss)
    assert len(ours) == sum(map(len, model.parameter_groups().values()))
    assert_near(ours, expected, 1e-10)


def test_images_of_a_list_get_their_gradients_too() -> None:
    model, images = embedder(), [image.float().requires_grad_() for image in pixels()]
    loss = MultiSimilarityLoss()
    ours = torch.autograd.grad(loss(embed_in_micro_batches(model, images, 1), LABELS), images)
    expected = torch.autograd.grad(loss(torch.cat([model(image[None]) for image in images]), LABELS), images)
    assert_near(list(ours), list(expected), 1e-6)


def test_a_list_needs_micro_batches_of_one() -> None:
    for size in (None, 2):
        with pytest.raises(InputError, match=f"micro_batch_size = {size} must be 1; images in a list are embedded"):
            embed_in_micro_batches(embedder(), pixels(), size)
    with pytest.raises(InputError, match="no images"):
        embed_in_micro_batches(embedder(), [], 1)
    assert embed_in_micro_batches(embedder(), pixels()[:1], 1).shape == (1, 8)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of a run on a folder of six classes, whose images differ in size."""
    folder, rng = tmp_path_factory.mktemp("whole"), np.random.default_rng(0)
    for label in range(6):
        (folder / str(label)).mkdir()
        for number in range(6):
            side = rng.integers(30, 60, 2)
            noise = np.clip(rng.integers(40, 216, 3) + rng.normal(0, 25, (*side, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(noise).save(folder / str(label) / f"{number}.png")
    more = ["--data.fractions={train: 0.7, val: 0.3}", "--transform.longest=48", "--micro_batch_size=1"]
    more += ["--model.freeze_batch_norm=statistics", "--model.dropout=0.2", f"--data.source={folder}"]
    return [*(each for each in SMALL if "transform" not in each and "cache" not in each), *more]


@pytest.mark.slow
def test_a_run_of_whole_images_resumes_exactly(settings: list[str], tmp_path: Path) -> None:
    straight = train(recipe := Recipe.load(overrides=settings), tmp_path / "straight")
    assert_same_run(resume(interrupted(settings, tmp_path / "run", 2).path), straight)
    model = Embedder.from_pretrained(straight.model)
    assert model.transform.longest == 48
    assert model.embed(load_training_table(recipe.settings), progress=False).shape == (36, 16)
