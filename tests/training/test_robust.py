"""Filters of wrong labels: PRISM and co-teaching by hand, what they find, and the report of it."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor

from vicinal.data import Table
from vicinal.errors import InputError
from vicinal.losses import (
    CenterContrastiveLoss,
    CenterLoss,
    ContextualLoss,
    MultiSimilarityLoss,
    NCALoss,
    NormSoftmaxLoss,
    SupConLoss,
)
from vicinal.similarity import Source
from vicinal.training import Recipe, train
from vicinal.training.co_teaching import CoTeachingSystem
from vicinal.training.filter_report import FilterReport, known_wrong
from vicinal.training.prism import PrismFilter


def prism_by_hand(memory: list[tuple[Tensor, int]], x: Tensor, labels: list[int]) -> list[float | None]:
    """Probability of each sample's own class, None where the memory does not know it."""
    means = {
        label: torch.stack([v for v, other in memory if other == label]).mean(dim=0) for label in {y for _, y in memory}
    }
    result: list[float | None] = []
    for vector, label in zip(x, labels, strict=True):
        total = sum(math.exp(vector @ mean) for mean in means.values())
        result.append(math.exp(vector @ means[label]) / total if label in means else None)
    return result


def test_prism_is_the_papers_filter() -> None:
    generator = torch.Generator().manual_seed(0)
    prism, memory, quantiles = PrismFilter(noise_rate=0.3, memory=25, window=3), [], []
    for step in range(8):
        x = torch.nn.functional.normalize(torch.randn(10, 5, generator=generator), dim=1)
        labels = torch.randint(0, 4 + step, (10,), generator=generator)
        kept = prism(3.0 * x, labels)
        probabilities = prism_by_hand(memory, x, labels.tolist()) if memory else [None] * 10
        known = [p for p in probabilities if p is not None]
        if known:
            quantiles = [*quantiles, torch.tensor(known, dtype=torch.float64).quantile(0.3).item()][-3:]
        threshold = sum(quantiles) / len(quantiles) if quantiles else 0.0
        expected = [p is None or p >= threshold - 1e-9 for p in probabilities]
        assert kept.tolist() == expected
        memory = [*memory, *((v, y) for v, y, k in zip(x, labels.tolist(), expected, strict=True) if k)][-25:]


def test_prism_waits_and_forgets_nothing_over_a_save() -> None:
    generator = torch.Generator().manual_seed(1)
    first, second = (PrismFilter(0.4, memory=30, window=5) for _ in range(2))
    first.active = False
    batches = [
        (torch.randn(8, 3, generator=generator), torch.randint(0, 3, (8,), generator=generator)) for _ in range(6)
    ]
    assert all(first(*batch).all() for batch in batches[:3])
    first.active = True
    second.load_state_dict(first.state_dict())
    assert [first(*batch).tolist() for batch in batches[3:]] == [second(*batch).tolist() for batch in batches[3:]]
    first.eval()
    before = first.labels
    first(*batches[0])
    assert first.labels is before


def test_prism_finds_wrong_labels_among_clusters() -> None:
    generator = torch.Generator().manual_seed(2)
    centers = torch.randn(5, 16, generator=generator)
    prism, report = PrismFilter(0.2, memory=500, window=10), FilterReport(torch.zeros(0, dtype=torch.bool))
    for step in range(30):
        true = torch.randint(0, 5, (50,), generator=generator)
        wrong = torch.rand(50, generator=generator) < 0.2
        labels = torch.where(wrong, (true + 1) % 5, true)
        prism.active = step >= 2
        kept = prism(centers[true] + 0.5 * torch.randn(50, 16, generator=generator), labels)
        if step >= 10:
            report.wrong = wrong
            report.add(kept, torch.arange(50))
    values = report.values()
    assert values["filter precision"] > 0.8
    assert values["filter recall"] > 0.8


@pytest.mark.parametrize(
    "loss",
    [
        MultiSimilarityLoss(miner=None),
        SupConLoss(),
        NCALoss(),
        CenterContrastiveLoss(4, 6),
        NormSoftmaxLoss(4, 6),
        CenterLoss(4, 6, center_weight=1.0),
    ],
)
def test_values_of_samples_add_up_to_the_loss(loss) -> None:
    x, labels = torch.randn(20, 6), torch.arange(20) % 4
    values = loss.values(Source.of(x, labels))
    value = loss(x, labels).detach()
    whole = values.sum() if getattr(loss, "reduction", "anchors") == "sum" else values.mean()
    torch.testing.assert_close(whole, value)
    torch.testing.assert_close((2 * loss).values(Source.of(x, labels)), 2 * values)


def test_a_loss_of_the_whole_batch_has_no_values() -> None:
    with pytest.raises(InputError, match="ContextualLoss is of the whole batch"):
        ContextualLoss(k=2).values(Source.of(torch.randn(4, 3), torch.tensor([0, 0, 1, 1])))


class _Linear(torch.nn.Module):
    keeps_length = False

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def test_in_co_teaching_each_learns_what_the_other_finds_easy() -> None:
    torch.manual_seed(0)
    models, losses = [_Linear(), _Linear()], [NormSoftmaxLoss(3, 4), NormSoftmaxLoss(3, 4)]
    system = CoTeachingSystem(models[0], losses[0], None, models[1], losses[1], noise_rate=0.5, ramp=2)  # type: ignore[arg-type]
    x, labels = torch.randn(8, 3), torch.randint(0, 3, (8,))
    for epoch, number in ((0, 8), (1, 6), (2, 4), (5, 4)):
        system.start_epoch(epoch)
        parts = system(x, labels)
        easy = [
            loss.values(Source.of(model(x), labels)).argsort()[:number]
            for model, loss in zip(models, losses, strict=True)
        ]
        expected = [
            losses[0](models[0](x)[easy[1]], labels[easy[1]]),
            losses[1](models[1](x)[easy[0]], labels[easy[0]]),
        ]
        assert list(parts) == ["NormSoftmaxLoss", "NormSoftmaxLoss (peer)"]
        torch.testing.assert_close(list(parts.values()), expected)
        assert system.kept is not None
        assert sorted(easy[1].tolist()) == system.kept.nonzero().flatten().tolist()


def test_the_report_counts() -> None:
    report = FilterReport(torch.tensor([True, False, True, False, False]))
    assert math.isnan(report.values()["left out"])
    report.add(torch.tensor([False, False, True]), torch.tensor([0, 1, 2]))
    report.add(torch.tensor([True, True]), torch.tensor([3, 4]))
    assert report.values() == {"left out": 0.4, "filter precision": 0.5, "filter recall": 0.5}
    assert str(report) == (
        "the filter left out 40.0% of the images; "
        "50.0% of these are wrong (precision), 50.0% of the wrong ones (recall)"
    )
    unknown = FilterReport(None)
    unknown.add(torch.tensor([False, True]), torch.tensor([0, 1]))
    assert str(unknown) == "the filter left out 50.0% of the images"


def test_what_is_known_to_be_wrong() -> None:
    frame = pd.DataFrame({"label": [1, 2, 3], "path": list("abc")})
    assert known_wrong(Table(frame)) is None
    noisy = frame.assign(label_clean=[1, 9, 3], noisy_image=[False, False, True])
    wrong = known_wrong(Table(noisy))
    assert wrong is not None
    assert wrong.tolist() == [False, True, True]


@pytest.mark.parametrize("method", ["prism", "co-teaching"])
def test_a_run_reports_what_its_filter_finds(
    method: str, small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = ["--data.noise.random_labels=0.3", f"--robust.method={method}", "--robust.noise_rate=0.3"]
    run = train(Recipe.load(overrides=[*small, *noise, "--loss=NormSoftmaxLoss", "--epochs=3"]), tmp_path / "run")
    log = pd.read_csv(run.log)
    assert {"left out", "filter precision", "filter recall"} <= set(log)
    assert log["left out"].iloc[0] == 0
    assert 0 < log["left out"].iloc[-1] < 0.7
    assert capsys.readouterr().err.count("the filter left out") == 3


def test_values_are_not_computed_in_half_precision() -> None:
    loss, x, labels = NormSoftmaxLoss(4, 6), torch.randn(8, 6), torch.arange(8) % 4
    expected = loss.values(Source.of(x, labels))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(loss.values(Source.of(x, labels)), expected, rtol=0, atol=0)


def test_without_noise_nothing_is_left_out() -> None:
    prism, generator = PrismFilter(0.0, memory=50, window=5), torch.Generator().manual_seed(0)
    for _ in range(10):
        x, labels = torch.randn(10, 4, generator=generator), torch.randint(0, 3, (10,), generator=generator)
        assert prism(x, labels).all()


@pytest.mark.parametrize("loss", [CenterLoss(3, 4), CenterContrastiveLoss(3, 4)])
def test_of_an_empty_batch_every_parameter_has_a_gradient_of_zero(loss: CenterLoss) -> None:
    loss(torch.zeros(0, 4, requires_grad=True), torch.zeros(0, dtype=torch.int64)).backward()
    assert all(p.grad is not None and not p.grad.any() for p in loss.parameters())
    assert loss.values(Source.of(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))).shape == (0,)


@pytest.mark.parametrize("loss", ["ProxyAnchorLoss", "ContextualLoss"])
def test_co_teaching_refuses_losses_of_the_whole_batch_before_it_begins(
    loss: str, small: list[str], tmp_path: Path
) -> None:
    recipe = Recipe.load(overrides=[*small, f"--loss={loss}", "--robust.method=co-teaching"])
    with pytest.raises(InputError, match=f"{loss} has none"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
