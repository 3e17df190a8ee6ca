"""Sample selection: PRISM and co-teaching against references, the noise that they find, and the report."""

import math
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor

from tests.refusals import refused_call
from vicinal.data import Table
from vicinal.losses import (
    CenterContrastiveLoss,
    CenterLoss,
    ContextualLoss,
    CrossEntropyLoss,
    MultiSimilarityLoss,
    NCALoss,
    NormSoftmaxLoss,
    SupConLoss,
)
from vicinal.similarity.pair_source import PairSource
from vicinal.training import Recipe, train
from vicinal.training.sample_selection import (
    CoTeachingModule,
    CoTeachingPlusModule,
    PrismSelector,
    SelectionReport,
    known_noisy,
)
from vicinal.utils.errors import InputError


def prism_by_hand(memory: list[tuple[Tensor, int]], x: Tensor, labels: list[int]) -> list[float | None]:
    """Probability of each sample's own class, None where the memory has no entry of the class."""
    means = {
        label: torch.stack([v for v, other in memory if other == label]).mean(dim=0) for label in {y for _, y in memory}
    }
    result: list[float | None] = []
    for vector, label in zip(x, labels, strict=True):
        total = sum(math.exp(vector @ mean) for mean in means.values())
        result.append(math.exp(vector @ means[label]) / total if label in means else None)
    return result


def test_prism_selects_as_the_paper_does() -> None:
    generator = torch.Generator().manual_seed(0)
    prism, memory, quantiles = PrismSelector(noise_rate=0.3, memory_size=25, window=3), [], []
    for step in range(8):
        x = torch.nn.functional.normalize(torch.randn(10, 5, generator=generator), dim=1)
        labels = torch.randint(0, 4 + step, (10,), generator=generator)
        selected = prism(3.0 * x, labels)
        probabilities = prism_by_hand(memory, x, labels.tolist()) if memory else [None] * 10
        known = [p for p in probabilities if p is not None]
        if known:
            quantiles = [*quantiles, torch.tensor(known, dtype=torch.float64).quantile(0.3).item()][-3:]
        threshold = sum(quantiles) / len(quantiles) if quantiles else 0.0
        expected = [p is None or p >= threshold - 1e-9 for p in probabilities]
        assert selected.tolist() == expected
        memory = [*memory, *((v, y) for v, y, k in zip(x, labels.tolist(), expected, strict=True) if k)][-25:]


def test_prism_can_be_inactive_and_its_state_is_saved() -> None:
    generator = torch.Generator().manual_seed(1)
    first, second = (PrismSelector(0.4, memory_size=30, window=5) for _ in range(2))
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


def test_values_of_samples_add_up_to_the_loss() -> None:
    x, labels = torch.randn(20, 6), torch.arange(20) % 4
    of_centers = (CenterContrastiveLoss(4, 6), NormSoftmaxLoss(4, 6), CenterLoss(4, 6, center_weight=1.0))
    for loss in (MultiSimilarityLoss(miner=None), SupConLoss(), NCALoss(), *of_centers):
        values = loss.anchor_values(PairSource.from_batch(x, labels))
        whole = values.sum() if getattr(loss, "reduction", "anchors") == "sum" else values.mean()
        torch.testing.assert_close(whole, loss(x, labels).detach(), msg=lambda text, loss=loss: f"{loss}: {text}")
        torch.testing.assert_close((2 * loss).anchor_values(PairSource.from_batch(x, labels)), 2 * values)


def test_a_loss_of_the_whole_batch_has_no_values() -> None:
    with pytest.raises(InputError, match="ContextualLoss has no value for each sample"):
        ContextualLoss(k=2).anchor_values(PairSource.from_batch(torch.randn(4, 3), torch.tensor([0, 0, 1, 1])))


class _Linear(torch.nn.Module):
    normalize_in_training = False

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def test_in_co_teaching_each_model_learns_the_easiest_samples_of_the_other() -> None:
    torch.manual_seed(0)
    models, losses = [_Linear(), _Linear()], [NormSoftmaxLoss(3, 4), NormSoftmaxLoss(3, 4)]
    module = CoTeachingModule(models[0], losses[0], models[1], losses[1], noise_rate=0.5, warmup_epochs=2)  # type: ignore[arg-type]
    x, labels = torch.randn(8, 3), torch.randint(0, 3, (8,))
    for epoch, number in ((0, 8), (1, 6), (2, 4), (5, 4)):
        module.start_epoch(epoch)
        terms = module(x, labels)
        easy = [
            loss.anchor_values(PairSource.from_batch(model(x), labels)).argsort()[:number]
            for model, loss in zip(models, losses, strict=True)
        ]
        expected = [
            losses[0](models[0](x)[easy[1]], labels[easy[1]]),
            losses[1](models[1](x)[easy[0]], labels[easy[0]]),
        ]
        assert list(terms) == ["NormSoftmaxLoss", "NormSoftmaxLoss (peer)"]
        torch.testing.assert_close(list(terms.values()), expected)
        assert sorted(easy[1].tolist()) == module.selected.nonzero().flatten().tolist()


def test_in_co_teaching_plus_only_what_the_models_classify_differently_is_learned() -> None:
    torch.manual_seed(0)
    models, losses = [_Linear(), _Linear()], [CrossEntropyLoss(5, 4), CrossEntropyLoss(5, 4)]
    module = CoTeachingPlusModule(
        *(models[0], losses[0], models[1], losses[1]),  # type: ignore[arg-type]
        noise_rate=0.5,
        warmup_epochs=2,
        co_teaching_epochs=1,
    ).double()
    x, labels = torch.randn(30, 3, dtype=torch.float64), torch.randint(0, 5, (30,))
    for epoch, fraction in ((0, 1.0), (1, 0.75), (2, 0.5), (5, 0.5)):
        module.start_epoch(epoch)
        terms = module(x, labels)
        logits = [model(x) @ loss.centers.T + loss.bias for model, loss in zip(models, losses, strict=True)]
        differ = [i for i in range(30) if epoch == 0 or logits[0][i].argmax() != logits[1][i].argmax()]
        assert epoch == 0 or 4 < len(differ) < 26
        values = [[-each[i].log_softmax(0)[labels[i]] for i in range(30)] for each in logits]
        easy = [sorted(differ, key=lambda i, v=v: v[i].item())[: round(fraction * len(differ))] for v in values]
        expected = [
            torch.stack([values[0][i] for i in easy[1]]).mean(),
            torch.stack([values[1][i] for i in easy[0]]).mean(),
        ]
        assert list(terms) == ["CrossEntropyLoss", "CrossEntropyLoss (peer)"]
        torch.testing.assert_close(list(terms.values()), expected)
        assert sorted(easy[1]) == module.selected.nonzero().flatten().tolist()


def test_where_both_models_agree_neither_learns() -> None:
    torch.manual_seed(0)
    model, loss = _Linear(), NormSoftmaxLoss(3, 4)
    module = CoTeachingPlusModule(
        *(model, loss, model, loss),  # type: ignore[arg-type]
        noise_rate=0.2,
        warmup_epochs=0,
        co_teaching_epochs=0,
    )
    module.start_epoch(0)
    value = torch.stack(list(module(torch.randn(8, 3), torch.arange(8) % 3).values())).sum()
    value.backward()
    assert not value
    assert all(p.grad is not None and not p.grad.any() for p in module.parameters())
    assert not module.selected.any()


def test_losses_that_co_teaching_refuses_before_it_begins(small: list[str], tmp_path: Path) -> None:
    two = "{class_path: WeightedSum, init_args: {weights: [1, 1], losses: [NormSoftmaxLoss, CosFaceLoss]}}"
    for method, loss, message in (
        ("co-teaching", "ProxyAnchorLoss", "ProxyAnchorLoss has none"),
        ("co-teaching", "ContextualLoss", "ContextualLoss has none"),
        ("co-teaching+", "MultiSimilarityLoss", "co-teaching.+ needs .* of MultiSimilarityLoss none has them"),
        ("co-teaching+", two, "co-teaching.+ needs a loss with class probabilities, .*2 have"),
    ):
        recipe = Recipe.load(overrides=[*small, f"--loss={loss}", f"--sample_selection.method={method}"])
        refused_call(message, train, recipe, tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_the_report_counts() -> None:
    report = SelectionReport(torch.tensor([True, False, True, False, False]))
    assert math.isnan(report.values()["excluded fraction"])
    report.add(torch.tensor([False, False, True]), torch.tensor([0, 1, 2]))
    report.add(torch.tensor([True, True]), torch.tensor([3, 4]))
    assert report.values() == {"excluded fraction": 0.4, "noise precision": 0.5, "noise recall": 0.5}
    assert str(report) == (
        "sample selection excluded 40.0% of the images: "
        "50.0% of them are noisy (precision), 50.0% of the noisy ones (recall)"
    )
    unknown = SelectionReport(None)
    unknown.add(torch.tensor([False, True]), torch.tensor([0, 1]))
    assert str(unknown) == "sample selection excluded 50.0% of the images"


def test_known_noisy_rows() -> None:
    frame = pd.DataFrame({"label": [1, 2, 3], "path": list("abc")})
    assert known_noisy(Table(frame)) is None
    noisy = frame.assign(label_clean=[1, 9, 3], noisy_image=[False, False, True])
    rows = known_noisy(Table(noisy))
    assert rows.tolist() == [False, True, True]


@pytest.mark.parametrize("method", ["prism", "co-teaching+"])
def test_a_run_reports_the_noise_it_finds(method: str, small: list[str], tmp_path: Path, capsys) -> None:
    noise = [
        "--data.noise.random_labels=0.3",
        f"--sample_selection.method={method}",
        "--sample_selection.noise_rate=0.3",
    ]
    if method == "co-teaching+":
        noise.append("--sample_selection.co_teaching_epochs=1")
    run = train(Recipe.load(overrides=[*small, *noise, "--loss=NormSoftmaxLoss", "--epochs=3"]), tmp_path / "run")
    log = pd.read_csv(run.log)
    assert {"excluded fraction", "noise precision", "noise recall"} <= set(log)
    assert log["excluded fraction"].iloc[0] == 0
    assert 0 < log["excluded fraction"].iloc[-1] <= (1 if method == "co-teaching+" else 0.7)
    assert capsys.readouterr().err.count("sample selection excluded") == 3


def test_values_are_not_computed_in_half_precision() -> None:
    loss, x, labels = NormSoftmaxLoss(4, 6), torch.randn(8, 6), torch.arange(8) % 4
    expected = loss.anchor_values(PairSource.from_batch(x, labels))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(loss.anchor_values(PairSource.from_batch(x, labels)), expected, rtol=0, atol=0)


def test_without_noise_nothing_is_left_out() -> None:
    prism, generator = PrismSelector(0.0, memory_size=50, window=5), torch.Generator().manual_seed(0)
    for _ in range(10):
        x, labels = torch.randn(10, 4, generator=generator), torch.randint(0, 3, (10,), generator=generator)
        assert prism(x, labels).all()


@pytest.mark.parametrize("loss", [CenterLoss(3, 4), CenterContrastiveLoss(3, 4)])
def test_of_an_empty_batch_every_parameter_has_a_gradient_of_zero(loss: CenterLoss) -> None:
    loss(torch.zeros(0, 4, requires_grad=True), torch.zeros(0, dtype=torch.int64)).backward()
    assert all(p.grad is not None and not p.grad.any() for p in loss.parameters())
    assert loss.anchor_values(PairSource.from_batch(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))).shape == (0,)
