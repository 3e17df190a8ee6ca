"""The similarities that weights depend on, against the tables of the paper and that of the guide."""

import re

import pytest

import vicinal.losses
from examples.figures.similarity_types import LOSSES, similarity_types, table
from tests.conftest import ROOT
from tests.weighting.cases import MS_MINER, OF_CENTERS, OFFERED
from vicinal import losses
from vicinal.weighting import EqualWeights, WeightedPairLoss

TABLE_1 = {
    "Contrastive": "S",
    "Binomial": "S",
    "Triplet": "P",
    "Histogram": "P",
    "N-pairs": "N",
    "N-pairs as Sohn has it": "PN",
    "Lifted Structure": "N",
    "BinLifted": "SN",
    "NCA": "PN",
    "MS": "SPN",
}
TABLE_2: list[tuple[str, losses.Loss, str]] = [
    ("Binomial", losses.BinomialDevianceLoss(), "S"),
    ("LiftedStruct*", losses.LiftedStructureStarLoss(), "N"),
    ("MS mining", WeightedPairLoss(EqualWeights(), MS_MINER, reduction="anchors"), "P"),
    ("BinLifted", losses.BinLiftedLoss(), "SN"),
    ("MS weighting", losses.MultiSimilarityLoss(miner=None), "SN"),
    # SP in the paper. Eq. (10) divides by the number of pairs; of mined pairs it depends on where the negatives are.
    ("Binomial_m", losses.BinomialDevianceLoss(miner=MS_MINER), "SPN"),
    ("LiftedStruct*_m", losses.LiftedStructureStarLoss(miner=MS_MINER), "PN"),
    ("MS", losses.MultiSimilarityLoss(), "SPN"),
]


def test_table_1() -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table().splitlines()[2:]]
    found = {name: "".join(letter for letter, mark in zip("SPN", marks, strict=True) if mark) for name, *marks in rows}
    assert found == TABLE_1
    assert list(found) == list(LOSSES)


@pytest.mark.parametrize(("name", "loss", "expected"), TABLE_2, ids=[row[0] for row in TABLE_2])
def test_table_2(name: str, loss: losses.Loss, expected: str) -> None:
    assert similarity_types(loss) == expected


@pytest.mark.slow
def test_the_table_in_the_documents() -> None:
    text = (ROOT / "docs" / "guides" / "losses.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([a-z]+|-) \| ([SPN]+) \|$", text, re.MULTILINE)
    abstract = {"Loss", "PairLoss", "RowLoss", "RankingLoss", "WeightedSum"}
    assert {name for name, _, _ in rows} == set(OFFERED) - abstract - {"ContextualLoss"} - OF_CENTERS
    for name, reduction, letters in rows:
        loss = getattr(vicinal.losses, name)()
        assert (name, reduction, letters) == (name, getattr(loss, "reduction", "-"), similarity_types(loss))


def test_nodes_that_a_shift_meets_again_hide_nothing() -> None:
    """Similarities that move together by whole bins are shared by nodes as before."""
    assert similarity_types(losses.SoftBinAPLoss(nodes=21)) == similarity_types(losses.FastAPLoss(bins=20)) == "PN"
