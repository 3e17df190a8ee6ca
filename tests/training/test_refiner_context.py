"""What a refiner is shown in training: the neighbors of an image, and which of them are left out."""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from tests.training.refiner_runs import RISING, TINY, first_batch, move, save_clusters, script_validation, trainer
from vicinal.data import load_embeddings
from vicinal.models import ContextRefiner
from vicinal.training import RefinerRecipe, RefinerTrainer
from vicinal.training.refiner_context import draw_pairs, matching_noise, noise_factor, pair_recall
from vicinal.utils.errors import InputError
from vicinal.workflows.refine import train_refiner


def test_the_context_is_the_nearest_of_the_training_split_without_itself(tiny: list[str], tmp_path: Path) -> None:
    one = trainer(tiny, tmp_path / "run")
    vectors, table = load_embeddings(str(one.settings.embeddings))
    training = vectors[table.frame["split"] == "train"].astype(np.float64)
    training /= np.linalg.norm(training, axis=1, keepdims=True)
    np.testing.assert_allclose(one.context.embeddings, training, atol=1e-6)
    scores = training @ training.T
    np.fill_diagonal(scores, -np.inf)
    assert one.context.neighbors.tolist() == np.argsort(-scores, axis=1)[:, :6].tolist()
    batch = first_batch(one)
    rows = batch["rows"]
    assert torch.equal(batch["embeddings"], one.context.embeddings[rows])
    assert torch.equal(batch["context"], one.context.embeddings[one.context.neighbors[rows]])
    assert batch["mask"].all()
    labels = table.frame["label"][table.frame["split"] == "train"].to_numpy()
    assert batch["labels"].tolist() == labels[rows].tolist()  # the training classes are 0, 1, ...
    assert np.bincount(batch["labels"])[batch["labels"]].tolist() == [4] * 32
    assert one._sample_name(3) == f"row {one.rows[3]} of embeddings.parquet"


def shown(one: RefinerTrainer, number: int) -> torch.Tensor:
    """Which neighbors a batch of this number shows, if it is one of all samples."""
    plan = [list(range(len(one.context.embeddings)))] * (number + 1)
    return next(iter(one._load_batches(plan, number)))["mask"]


def test_neighbors_are_left_out_as_often_as_asked_for(tiny: list[str], tmp_path: Path) -> None:
    one = trainer(tiny, tmp_path / "run", "--augmentation.neighbor_dropout=0.3")
    first = [shown(one, number) for number in range(20)]
    fraction = torch.stack(first).float().mean(dim=(0, 1))  # of 2,560 each
    assert fraction.tolist() == pytest.approx([0.7] * 6, abs=0.04)
    torch.manual_seed(99)
    assert torch.equal(first[3], shown(one, 3))
    assert not torch.equal(first[3], first[4])
    one.progress.epoch = 1
    assert not torch.equal(first[3], shown(one, 3))


def test_a_random_size_shows_the_nearest_first(tiny: list[str], tmp_path: Path) -> None:
    one = trainer(tiny, tmp_path / "run", "--augmentation.random_num_neighbors=true")
    sizes = []
    for number in range(60):
        mask = shown(one, number)
        size = int(mask[0].sum())
        assert torch.equal(mask, torch.arange(6).expand_as(mask) < size)
        sizes.append(size)
    assert set(sizes) == {1, 2, 3, 4, 5, 6}


def test_a_neighbor_that_is_left_out_is_not_looked_at(tiny: list[str], tmp_path: Path) -> None:
    one = trainer(tiny, tmp_path / "run")
    move(one)
    batch = first_batch(one)

    def loss(mask: torch.Tensor) -> float:
        return sum(one._loss_terms({**batch, "mask": mask}).values()).item()

    whole, none = batch["mask"], torch.zeros_like(batch["mask"])
    unrefined = one.loss(batch["embeddings"], batch["labels"]).item()
    assert loss(none) == pytest.approx(unrefined, rel=1e-5)
    assert loss(whole) != pytest.approx(unrefined, rel=1e-2)
    only_the_first = torch.arange(6).expand_as(whole) < 1
    kept = {name: batch[name][:, :1] for name in ("context", "mask")}
    assert loss(only_the_first) == pytest.approx(sum(one._loss_terms({**batch, **kept}).values()).item(), rel=1e-5)


def test_blocks_without_neighbors_look_at_the_embedding_itself(tiny: list[str], tmp_path: Path, monkeypatch) -> None:
    script_validation(monkeypatch, RISING)
    one = trainer(tiny, tmp_path / "run", "--refiner.context=self", "--refiner.neighbors=0")
    assert one.context.neighbors.tolist() == [[row] for row in range(len(one.context.embeddings))]
    one.fit()
    assert pd.read_csv(one.run.log)["gradient norm"].min() > 0
    assert ContextRefiner.from_pretrained(one.run.model).context == "self"


def test_a_bank_has_some_images_of_each_class(tiny: list[str], tmp_path: Path) -> None:
    one = trainer(tiny, tmp_path / "run", "--augmentation.class_sizes=[2,5]", "--refiner.neighbors=100")
    labels, sizes, banks = one.context.labels, [], []
    for one.progress.epoch in range(3):
        first_batch(one)
        neighbors = one.context.neighbors.numpy()
        bank = np.unique(neighbors)
        banks.append(bank.tolist())
        sizes += np.bincount(labels[bank], minlength=16).tolist()
        # All images see the same bank, without themselves.
        assert neighbors.shape == (128, min(100, len(bank) - 1))
        assert not (neighbors == np.arange(128)[:, None]).any()
    assert set(sizes) == {2, 5}
    assert banks[0] != banks[1]


def clusters(spread: float, num_classes: int, size: int, seed: int) -> tuple[torch.Tensor, np.ndarray]:
    """Unit vectors in 16 dimensions, `size` around each of the class means, in random order."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(num_classes), size))
    vectors = rng.normal(size=(num_classes, 16))[labels] + spread * rng.normal(size=(len(labels), 16))
    return F.normalize(torch.from_numpy(vectors).float(), dim=1), labels


@pytest.mark.parametrize("covariance", ["embeddings", "isotropic"])
def test_training_images_with_the_noise_are_found_as_often_as_unseen_ones(covariance) -> None:
    (training, labels), (unseen, unseen_labels) = clusters(0.2, 60, 6, 0), clusters(0.9, 12, 9, 1)
    noise = matching_noise(training, labels, unseen, unseen_labels, covariance, seed=0)
    random = torch.randn(training.shape, generator=torch.Generator().manual_seed(5))
    noisy = F.normalize(training + random @ noise_factor(training, noise, covariance), dim=1)
    clean, found, wanted = (
        pair_recall(vectors[draw_pairs(each, 12, np.random.default_rng(7))])
        for vectors, each in ((training, labels), (noisy, labels), (unseen, unseen_labels))
    )
    assert clean > wanted + 0.2
    assert found == pytest.approx(wanted, abs=0.07)


def test_no_noise_where_training_images_are_not_easier() -> None:
    hard, easy = clusters(0.9, 12, 6, 0), clusters(0.2, 12, 6, 1)
    assert matching_noise(*hard, *easy, "embeddings", seed=0) == 0
    single = (easy[0][:2], np.array([0, 1]))
    assert matching_noise(*hard, *single, "embeddings", seed=0) == 0  # there is no pair to compare with


def test_recall_of_pairs() -> None:
    vectors, labels = clusters(1.0, 5, 2, 3)
    vectors = vectors[np.argsort(labels)].double()
    found = 0
    for i, j in itertools.product(range(10), repeat=2):
        others = [float(vectors[i] @ vectors[k]) for k in range(10) if k not in (i, j)]
        found += j == i ^ 1 and float(vectors[i] @ vectors[j]) > max(others)
    assert 0 < found < 10
    assert pair_recall(vectors[None]) == pytest.approx(found / 10)


def test_a_run_chooses_its_noise_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    embeddings = f"--embeddings={save_clusters(tmp_path / 'e.parquet', val_noise=0.5)}"
    settings = [embeddings, *(each for each in TINY if "noise" not in each)]
    one, again = (trainer(settings, tmp_path / name) for name in ("a", "b"))
    noise = one.context.augmentation.noise
    assert 0.1 < noise < 2
    assert again.context.augmentation.noise == noise
    assert f"augmentation.noise = {noise:.2f}" in capsys.readouterr().err
    one.context.start_epoch(0)
    assert not torch.equal(one.context.embeddings, one.context.clean)


def test_nothing_to_compare_with_needs_a_number(tmp_path: Path) -> None:
    embeddings = f"--embeddings={save_clusters(tmp_path / 'e.parquet', splits=False)}"
    settings = [embeddings, *(each for each in TINY if "noise" not in each), "--val_fraction=0", "--keep=last"]
    with pytest.raises(InputError, match=r"val_fraction = 0 leaves nothing to choose augmentation.noise by"):
        train_refiner(RefinerRecipe.load(overrides=settings), tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.yaml").exists()


def test_noise_has_the_wanted_length_and_is_that_of_the_batch(tiny: list[str], tmp_path: Path) -> None:
    isotropic = ["--augmentation.noise_per=neighbor", "--augmentation.noise_covariance=isotropic"]
    plain, noisy, again = (
        first_batch(trainer(tiny, tmp_path / name, f"--augmentation.noise={noise}", *isotropic))
        for name, noise in (("a", 0), ("b", 0.5), ("c", 0.5))
    )
    for part in ("embeddings", "context"):
        assert torch.equal(noisy[part], again[part])
        torch.testing.assert_close(noisy[part].norm(dim=-1), torch.ones(noisy[part].shape[:-1]))
        cosine = (noisy[part] * plain[part]).sum(dim=-1)
        assert cosine.mean() == pytest.approx(1 / np.sqrt(1 + 0.5**2), abs=0.03)


def test_noise_of_an_image_is_the_same_wherever_it_appears(tiny: list[str], tmp_path: Path) -> None:
    one = trainer(tiny, tmp_path / "run", "--augmentation.noise=0.8")
    clean, seen = one.context.clean, []
    for one.progress.epoch in (0, 1, 0):
        batch, embeddings = first_batch(one), one.context.embeddings
        neighbors = one.context.neighbors
        assert torch.equal(batch["embeddings"], embeddings[batch["rows"]])
        assert torch.equal(batch["context"], embeddings[neighbors[batch["rows"]]])
        scores = (embeddings @ embeddings.T).fill_diagonal_(-2)
        assert torch.equal(scores.gather(1, neighbors), scores.topk(6).values)
        seen.append(embeddings)
    assert torch.equal(seen[0], seen[2])
    assert not torch.equal(seen[0], seen[1])
    assert (seen[0] * clean).sum(dim=1).mean() == pytest.approx(1 / np.sqrt(1 + 0.8**2), abs=0.05)


def test_noise_has_the_covariance_of_the_embeddings(tiny: list[str], tmp_path: Path) -> None:
    one = trainer(tiny, tmp_path / "run", "--augmentation.noise=0.5")
    factor = noise_factor(one.context.clean, 0.5, "embeddings").double()
    covariance = torch.from_numpy(np.cov(one.context.clean.double().numpy().T, bias=True))
    torch.testing.assert_close(factor.T @ factor, 0.25 * covariance / covariance.trace(), rtol=1e-4, atol=1e-6)
