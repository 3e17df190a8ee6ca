"""Metrix of `examples/metrix.py`: its formula, its coefficients, and the command that trains with it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from examples.metrix import Metrix
from tests.conftest import ROOT, SMALL
from tests.examples.metrix_reference import Mixed, coefficient, metrix
from tests.losses import center_references, references
from tests.losses.batches import nasty_batches
from tests.losses.cases import MINERS, Case
from tests.losses.gradients import value_and_gradients
from tests.refusals import refused_call
from vicinal import losses
from vicinal.cli.main import main
from vicinal.mining import MultiSimilarityMiner

BATCHES = nasty_batches()
FEW = {name: batch for name, batch in BATCHES.items() if len(batch.labels) <= 12}
NUM_CLASSES = 14


def _case(loss: losses.PairLoss, clean: Callable[..., Tensor], **arguments: Any) -> Case:
    mined = MINERS["multi-similarity"][1] if loss.miner else None
    return Case(Metrix, partial(metrix, clean=clean), {"loss": loss, **arguments}, mined)


CASES = [
    _case(losses.ContrastiveLoss(None, 0.0, reduction="pairs"), references.contrastive, pairs="both", alpha=0.3),
    _case(losses.MultiSimilarityLoss(miner=MultiSimilarityMiner(0.3)), references.multi_similarity, weight=2.0),
    _case(losses.LiftedStructureLoss(), references.lifted_structure, pairs="both"),
    _case(losses.BinLiftedLoss(), references.bin_lifted),
    _case(losses.NCALoss(), references.nca, alpha=1.0),
    _case(losses.BinomialDevianceLoss(), references.binomial_deviance),
    _case(losses.LiftedStructureStarLoss(), references.lifted_structure_star),
    _case(losses.CircleLoss(scale=5), references.circle),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case.arguments["loss"]).__name__)
def test_it_is_the_formula_in_tiles_too(case: Case) -> None:
    for name, batch in FEW.items():
        expected = case.values_by_hand(batch)
        for tile_rows in (None, 2):
            found, said = case.values(batch, tile_rows=tile_rows), lambda text, name=name: f"{name}: {text}"
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12, msg=said)


def proxy_anchor(x: Tensor, labels: Tensor, centers: Tensor) -> Tensor:
    """Proxy Anchor, with the mixed examples of each center of a class of the batch."""
    pulled, pushed = [], []
    for place, p in enumerate(sorted(set(labels.tolist()))):
        cosines = center_references.unit(x) @ center_references.unit(centers[p])
        mixed: Mixed = []
        for k, positive in enumerate(cosines[labels == p]):
            for j in (labels != p).nonzero().flatten().tolist():
                y = coefficient(place, k, j)
                mixed.append((y * positive + (1 - y) * cosines[j], y))
        pulled.append((1 + sum(y * (-32.0 * (s - 0.1)).exp() for s, y in mixed) + 0 * cosines[0]).log())
        pushed.append((1 + sum((1 - y) * (32.0 * (s + 0.1)).exp() for s, y in mixed) + 0 * cosines[0]).log())
    clean = center_references.proxy_anchor(x, labels, centers)
    return clean + 0.4 * (sum(pulled) / len(pulled) + sum(pushed) / len(centers))


def test_proxy_anchor_is_the_formula() -> None:
    batch = BATCHES["unequal classes"]
    batch = batch._replace(labels=batch.labels.unique(return_inverse=True)[1] * 3 % NUM_CLASSES)
    inner = losses.ProxyAnchorLoss(NUM_CLASSES, batch.embeddings.shape[1]).double()
    expected = value_and_gradients(lambda x, labels: proxy_anchor(x, labels, inner.centers), batch, [inner.centers])
    torch.testing.assert_close(value_and_gradients(Metrix(inner), batch, [inner.centers]), expected)


def test_losses_without_weights_are_refused() -> None:
    refused_call(r"^Metrix: loss must be an additive loss such as .*, not TripletLoss", Metrix, losses.TripletLoss())


def test_the_command_trains_with_it(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    words = ["train", "--allow_import", "metrix", "--loss", "metrix.Metrix", "--loss.loss.class_path",
             "ContrastiveLoss", "--data.source", str(photos), "--out", str(tmp_path / "run"), *SMALL]  # fmt: skip
    assert main(words) == 0
    assert "metrix.Metrix" in (tmp_path / "run" / "recipe.yaml").read_text()
