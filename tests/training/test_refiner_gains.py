"""Which epochs of a refiner's run count: gains that are not chance, and nothing lost that must not be lost."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tests.training.refiner_runs import RISING, move, script_validation, trainer
from vicinal.models import ContextRefiner
from vicinal.training import RefinerTrainer, refiner_validation
from vicinal.training.checkpoint import load_checkpoint
from vicinal.training.refiner_trainer import LOWEST_GAIN
from vicinal.utils.errors import InputError, NotBetterError


def test_any_metric_can_decide_and_guard(tiny: list[str], tmp_path: Path) -> None:
    one = trainer(tiny, tmp_path / "run", "--validation.metric=recall@7", "--guardrail_metrics=[precision@3, MRR]")
    one.start()
    one.validate()
    metrics = pd.read_csv(one.run.metrics)
    assert {"recall@1", "mAP@R", "recall@7", "precision@3", "MRR"} < set(metrics)
    assert metrics["precision@3"][0] == pytest.approx(one.validation.before.metrics["precision@3"], abs=1e-5)
    with pytest.raises(InputError, match=r"guardrail_metrics = recall@0: recall@0 is invalid"):
        trainer(tiny, tmp_path / "run", "--guardrail_metrics=[recall@0]")


def script_gains(monkeypatch: pytest.MonkeyPatch, scores: list[float], lowest: Callable[[float], float]) -> None:
    """Let mAP@R be so after each epoch, and the lowest gain a function of the gate of the first block."""
    measure = RefinerTrainer._validation_metrics

    def scripted(self: RefinerTrainer) -> dict[str, float]:
        gate = self.refiner.blocks[0].gate.item()
        return {**measure(self), "mAP@R": scores[self.progress.epoch], LOWEST_GAIN: lowest(gate)}

    monkeypatch.setattr(RefinerTrainer, "_validation_metrics", scripted)
    monkeypatch.setattr(refiner_validation, "mean_of_classes", lambda *given: (1.0, 0.0))


def test_epochs_that_lose_what_must_not_be_lost_do_not_count(tiny: list[str], tmp_path: Path, monkeypatch) -> None:
    one = trainer(tiny, tmp_path / "run", "--update_factors=[1]")
    lowest = {0: 0.0, 1: -0.6, 2: -0.4, 3: 0.0}
    script_gains(monkeypatch, [0.1, 0.9, 0.8, 0.3], lambda _: lowest[one.progress.epoch])
    one.fit()
    assert one.progress.best_epoch == 2  # not the first, whose mAP@R is best, and not the last


def test_the_largest_updates_that_lose_nothing_are_kept(tiny: list[str], tmp_path: Path, monkeypatch) -> None:
    one = trainer(tiny, tmp_path / "run", "--update_factors=[1,0.5,0.25]")
    weights = {0: 0.0}

    def lowest(gate: float) -> float:
        """Updates of more than half of what was trained lose something."""
        trained = weights.setdefault(one.progress.epoch, gate)
        return 0.0 if abs(gate) <= 0.6 * abs(trained) or not trained else -3.0

    script_gains(monkeypatch, [0.1, 0.5, 0.9, 0.3], lowest)
    one.fit()
    assert pd.read_csv(one.run.metrics)["update factor"].tolist() == [1.0, 0.5, 0.5, 0.5]
    saved, best = ContextRefiner.from_pretrained(one.run.model), load_checkpoint(one.run.best)["module"]
    assert saved.metrics["val update factor"] == 0.5
    assert best["refiner.blocks.0.gate"].item() == weights[2]  # trying a factor changes nothing
    for name, weight in saved.state_dict().items():
        factor = 0.5 if name.endswith("gate") else 1.0
        assert torch.equal(weight, factor * best[f"refiner.{name}"]), name
    assert one.progress.best_epoch == 2


def test_gains_are_in_standard_errors_over_the_classes(tiny: list[str], tmp_path: Path) -> None:
    one = trainer(tiny, tmp_path / "run", "--guardrail_metrics=[recall@1,mAP@R]", "--guardrail_class_sizes=[4]")
    move(one)
    metrics, gains = one._validation_metrics(), [0.0]
    for part in (one.validation, one.guardrails[4]):
        after = part.after()
        for name in ("recall@1", "mAP@R"):
            changes = pd.Series(after.per_query[name] - part.before.per_query[name]).groupby(after.labels).mean()
            gains.append(changes.mean() / (changes.std() / np.sqrt(8)))
    assert metrics[LOWEST_GAIN] == pytest.approx(min(gains))
    assert min(gains) < 0


def test_a_gain_that_may_be_chance_is_none(tiny: list[str], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(refiner_validation, "mean_of_classes", lambda *given: (0.03, 0.02))
    with pytest.raises(NotBetterError, match=r"not help significantly .* 3.00 \+- 2.00 points \(mean of 8 cl"):
        trainer(tiny, tmp_path / "run").fit()
    assert not (tmp_path / "run" / "model").exists()
    assert (tmp_path / "run" / "curves.png").exists()


def test_mean_of_classes() -> None:
    values, labels = np.array([1.0, 3.0, np.nan, 5.0, 6.0]), np.array([0, 0, 1, 2, 2])
    mean, error = refiner_validation.mean_of_classes(values, labels)
    assert (mean, error) == pytest.approx((3.75, 3.5 / 2))  # of 2 and 5.5; class 1 does not count
    assert refiner_validation.mean_of_classes(values[:2], labels[:2]) == (2.0, np.inf)


def test_an_epoch_that_harms_small_classes_does_not_count(tiny: list[str], tmp_path: Path, monkeypatch) -> None:
    script_validation(monkeypatch, RISING)
    more = ["--guardrail_metrics=[recall@1]", "--guardrail_class_sizes=[2,8,9]", "--update_factors=[1]"]
    one = trainer(tiny, tmp_path / "run", *more)
    assert list(one.guardrails) == [2, 8]  # no class has nine
    # With all images and of both sizes, in each of four evaluations.
    gains = iter([0.0, 0.0, 0.0, 0.1, 0.5, 0.0, 0.0, -0.4, 0.2, 0.0, -0.6, 0.3])
    monkeypatch.setattr(refiner_validation.Scores, "gain", lambda *given: (next(gains, 9.0), 1.0))
    one.fit()
    assert pd.read_csv(one.run.metrics)["lowest gain in standard errors"].tolist() == [0, 0, -0.4, -0.6]
    assert one.progress.best_epoch == 2  # mAP@R rises further in the third, which loses more than half an error


def test_parts_of_classes_are_disjoint_and_of_one_size() -> None:
    labels = np.array([0] * 5 + [1] * 7 + [2] * 3 + [3])
    parts = refiner_validation.parts_of_classes(labels, 2, seed=0)
    assert [np.bincount(labels[rows], minlength=4).tolist() for rows in parts] == [[2, 2, 2, 0]]
    parts = refiner_validation.parts_of_classes(labels[:12], 2, seed=0)
    assert [np.bincount(labels[rows]).tolist() for rows in parts] == [[2, 2], [2, 2]]
    assert not set(parts[0]) & set(parts[1])
    assert refiner_validation.parts_of_classes(labels, 6, seed=0) == []


def test_right_class_attention(tiny: list[str], tmp_path: Path) -> None:
    one = trainer(tiny, tmp_path / "run")
    move(one)
    part = one.validation.parts[0]
    attention, uniform = part.right_class_attention()
    embeddings, labels = part.vectors.block(0, 64), part.table.labels
    weights = one.refiner.eval().attention_weights(embeddings, embeddings[torch.from_numpy(part.neighbors)])
    by_image = []
    for image in range(64):
        own = [j for j, other in enumerate(part.neighbors[image]) if labels[other] == labels[image]]
        by_image.append((weights[:, image, own].sum() / weights[:, image].sum()).item())
    assert attention == pytest.approx(np.mean(by_image), rel=1e-5)
    assert uniform == pytest.approx((labels[part.neighbors] == labels[:, None]).mean())
    assert attention > uniform  # attention starts as similarity
