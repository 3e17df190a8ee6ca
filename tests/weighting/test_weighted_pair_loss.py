"""Losses that are made of weights against the losses whose weights these are, and against loops."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.conftest import ROOT
from tests.refusals import refused_call
from tests.weighting.cases import BATCHES, LABELS, MS_MINER, batch, gradients
from vicinal import losses
from vicinal.mining import Miner
from vicinal.similarity import PairSource, Rows, normalize
from vicinal.training import Recipe
from vicinal.utils.errors import InputError
from vicinal.weighting import EqualWeights, LossWeights, WeightedPairLoss, WeightingRule, pair_weights

ROW_LOSSES: list[Callable[..., losses.RowLoss]] = [
    lambda **options: losses.ContrastiveLoss(0.3, 0.1, **options),
    losses.TripletLoss,
    losses.LiftedStructureLoss,
    losses.LiftedStructureStarLoss,
    lambda **options: losses.BinomialDevianceLoss(base=0.5, **options),
    losses.BinLiftedLoss,
    losses.NPairsLoss,
    losses.NCALoss,
    losses.NTXentLoss,
    losses.SupConLoss,
    lambda **options: losses.MarginLoss(**{"miner": None, **options}),
    lambda **options: losses.CircleLoss(scale=5, **options),
    lambda **options: losses.MultiSimilarityLoss(base=0.5, **{"miner": None, **options}),
    losses.RecallAtKLoss,
    losses.SmoothAPLoss,
    losses.SupAPLoss,
    losses.FastAPLoss,
    losses.SoftBinAPLoss,
    losses.BlackboxAPLoss,
]

NOT_COMPILED = losses.TripletLoss, losses.RecallAtKLoss, losses.SmoothAPLoss, losses.SupAPLoss
"""Whose steps are operators of their own, which no compiled function can differentiate within itself."""


@pytest.mark.parametrize("of", ROW_LOSSES, ids=lambda of: type(of()).__name__)
def test_the_rule_of_a_loss_trains_as_the_loss(of: Callable[..., losses.RowLoss]) -> None:
    x, y, labels = batch(), torch.cat([batch(), batch(4, seed=1)]), torch.cat([LABELS, LABELS[:4]])
    for tile_rows, reduction, miner in ((None, "sum", MS_MINER), (5, "anchors", MS_MINER), (5, "sum", None)):
        loss = of(reduction=reduction, miner=miner)
        expected = gradients(lambda x: loss(x, LABELS), x)  # noqa: B023
        beside = gradients(lambda x, y: loss(x, LABELS, y, labels, 0), x, y)  # noqa: B023
        made = [
            WeightedPairLoss(LossWeights(loss), reduction=reduction, tile_rows=tile_rows),
            WeightedPairLoss(LossWeights(of(reduction=reduction, miner=None)), miner, reduction, tile_rows),
        ]
        for ours in made:
            torch.testing.assert_close(gradients(lambda x: ours(x, LABELS), x), expected)  # noqa: B023
            found = gradients(lambda x, y: ours(x, LABELS, y, labels, 0), x, y)  # noqa: B023
            torch.testing.assert_close(found, beside)


def by_hand(x: Tensor, rule: Callable[[float, bool], float]) -> tuple[float, int, int]:
    """F of a rule of a pair's similarity and kind, the number of pairs, and that of anchors with a pair."""
    s = (normalize(x) @ normalize(x).T).tolist()
    total, pairs, anchors = 0.0, 0, set()
    for i in range(len(x)):
        for j in range(len(x)):
            same = bool(LABELS[i] == LABELS[j])
            if i != j and (s[i][j] > 0.5 or same):
                total += rule(s[i][j], same) * s[i][j] * (-1 if same else 1)
                pairs, anchors = pairs + 1, anchors | {i}
    return total, pairs, len(anchors)


class CloseNegatives(Miner):
    def __call__(self, rows: Rows) -> Rows:
        return rows.keep(negatives=rows.negatives > 0.5)


class Careless(WeightingRule):
    """Its weights where there is no pair are infinite or NaN."""

    def __call__(self, rows: Rows) -> tuple[Tensor, Tensor]:
        return rows.positives - rows.positives + 3 - rows.positives, rows.negatives * rows.negatives


@pytest.mark.parametrize("tile_rows", [None, 4])
@pytest.mark.parametrize(
    ("rule", "pair"), [(EqualWeights(), lambda s, same: 1.0), (Careless(), lambda s, same: 3 - s if same else s * s)]
)
def test_value_and_reductions(rule: WeightingRule, pair: Callable[[float, bool], float], tile_rows: int | None) -> None:
    x = batch(d=12)
    total, pairs, anchors = by_hand(x, pair)
    assert anchors < len(x)
    for reduction, divisor in (("sum", 1), ("anchors", len(x)), ("contributing", anchors), ("pairs", pairs)):
        loss = WeightedPairLoss(rule, CloseNegatives(), reduction, tile_rows)
        assert loss(x, LABELS).item() == pytest.approx(total / divisor)
        (gradient,) = gradients(lambda x: loss(x, LABELS), x)  # noqa: B023
        assert gradient.isfinite().all()


def test_weights_are_held_constant() -> None:
    x = batch()
    signed = pair_weights(WeightedPairLoss(Careless()), PairSource.from_batch(x, LABELS), signed=True)
    s, positive = normalize(x) @ normalize(x).T, LABELS[:, None] == LABELS
    expected = torch.where(positive, s - 3, s * s).fill_diagonal_(0)
    torch.testing.assert_close(signed, expected)


class PushOnly(losses.RowLoss):
    def row_values(self, rows: Rows) -> Tensor:
        return rows.negatives.exp().sum(dim=1)


def test_the_rule_of_a_loss_that_knows_one_kind_of_pairs() -> None:
    ours, loss = WeightedPairLoss(LossWeights(PushOnly()), reduction="anchors"), PushOnly()
    expected = gradients(lambda x: loss(x, LABELS), batch())
    torch.testing.assert_close(gradients(lambda x: ours(x, LABELS), batch()), expected)


def test_a_learned_boundary_is_left_alone() -> None:
    loss = WeightedPairLoss(LossWeights(losses.MarginLoss(miner=None)))
    loss(batch().requires_grad_(), LABELS).backward()
    assert [(p.requires_grad, p.grad) for p in loss.parameters()] == [(False, None)]  # no optimizer decays it
    assert "rule.loss.beta" in loss.state_dict()  # so that it moves to the device of the rest


@pytest.mark.parametrize("of", BATCHES)
def test_nasty_batches(of: str) -> None:
    x, *others = BATCHES[of]
    for rule in (EqualWeights(), LossWeights(losses.MultiSimilarityLoss()), Careless()):
        for reduction in WeightedPairLoss.reductions:
            loss = WeightedPairLoss(rule, MS_MINER, reduction)
            assert loss(x, *others).isfinite()
            assert gradients(lambda x: loss(x, *others), x)[0].isfinite().all()  # noqa: B023
    with torch.no_grad():
        assert not WeightedPairLoss(LossWeights(losses.NCALoss()))(x, *others).requires_grad


@pytest.mark.parametrize(
    "rule",
    [
        EqualWeights(),
        pytest.param(Careless(), marks=pytest.mark.slow),
        *(pytest.param(LossWeights(of()), marks=pytest.mark.slow) for of in ROW_LOSSES if of not in NOT_COMPILED),
    ],
    ids=lambda rule: type(getattr(rule, "loss", rule)).__name__,
)
def test_compiles_whole(rule: WeightingRule) -> None:
    torch.compiler.reset()
    x = batch().float()
    loss = WeightedPairLoss(rule, MS_MINER)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, LABELS), loss(x, LABELS))
    expected = gradients(lambda x: loss(x, LABELS), x)
    torch.testing.assert_close(gradients(lambda x: compiled(x, LABELS), x), expected)


def test_the_recipe_of_the_guide(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "guides" / "losses.md").read_text()
    (shown,) = re.findall(r"^```yaml\n([^`]*WeightedPairLoss[^`]*)^```", guide, re.MULTILINE)
    path = tmp_path / "recipe.yaml"
    path.write_text(shown)
    assert isinstance(Recipe.load(path).create_loss().rule.loss, losses.BinomialDevianceLoss)


def test_impossible_rules() -> None:
    class Swapped(WeightingRule):
        def __call__(self, rows: Rows) -> tuple[Tensor, Tensor]:
            return torch.ones_like(rows.negatives), torch.ones_like(rows.positives)

    with pytest.raises(InputError, match=r"Swapped: weights of positives are \[13, 13\] and must be \[13, 4\]"):
        WeightedPairLoss(Swapped())(batch(), LABELS)
    refused_call("MarginLoss has a random miner", LossWeights, losses.MarginLoss())
    with pytest.raises(InputError, match="HistogramLoss is not a RowLoss"):
        LossWeights(losses.HistogramLoss())  # type: ignore[arg-type]
    refused_call("reduction = 'violating'", WeightedPairLoss, EqualWeights(), reduction="violating")
    assert isinstance(WeightedPairLoss(EqualWeights()), losses.PairLoss)
