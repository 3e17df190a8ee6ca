"""The weights that are read off a loss are its gradient: training with either is the same."""

import pytest
import torch
from torch import Tensor

from tests.weighting.cases import BATCHES, LABELS, OF_CENTERS, OFFERED, batch, gradients
from vicinal import losses
from vicinal.memory import CrossBatchMemory
from vicinal.mining import DistanceWeightedMiner, HardestMiner, SemiHardMiner
from vicinal.similarity import PairSource, normalize
from vicinal.utils.errors import InputError
from vicinal.weighting import LossWeights, WeightedPairLoss, pair_weights, similarity_weights

LOSSES: dict[str, losses.Loss] = {
    "contrastive": losses.ContrastiveLoss(0.3, 0.1),
    "contrastive, Eq. 4": losses.ContrastiveLoss(positive_margin=None, negative_margin=0.1, reduction="sum"),
    "contrastive, pairs": losses.ContrastiveLoss(0.3, 0.1, reduction="pairs"),
    "triplet": losses.TripletLoss(),
    "triplet, semi-hard": losses.TripletLoss(margin=0.5, triplets="semi-hard"),
    "triplet, soft": losses.TripletLoss(soft=True),
    "triplet, hardest": losses.TripletLoss(miner=HardestMiner()),
    "triplet, distance-weighted": losses.TripletLoss(miner=DistanceWeightedMiner(seed=5)),
    "lifted": losses.LiftedStructureLoss(),
    "lifted star": losses.LiftedStructureStarLoss(),
    "binomial": losses.BinomialDevianceLoss(beta=10, base=0.3),
    "bin-lifted": losses.BinLiftedLoss(beta=10, base=0.3),
    "N-pairs": losses.NPairsLoss(),
    "NCA": losses.NCALoss(scale=3),
    "histogram": losses.HistogramLoss(bins=20),
    "histogram, mined": losses.HistogramLoss(bins=20, miner=SemiHardMiner(None)),
    "NT-Xent": losses.NTXentLoss(),
    "SupCon": losses.SupConLoss(temperature=0.3),
    "margin": losses.MarginLoss(),
    "margin, classes": losses.MarginLoss(num_classes=6, nu=0.1, miner=None, reduction="sum"),
    "circle": losses.CircleLoss(scale=5),
    "multi-similarity": losses.MultiSimilarityLoss(base=0.5, beta=10),
    "sum": 0.7 * losses.MultiSimilarityLoss(base=0.5) + 0.3 * losses.TripletLoss(miner=DistanceWeightedMiner()),
    "recall@k": losses.RecallAtKLoss(k=[1, 3], similarity_temperature=0.1),
    "smooth AP": losses.SmoothAPLoss(temperature=0.1),
    "SupAP": losses.SupAPLoss(temperature=0.1, linear_from=0.3, slope=5),
    "ROADMAP": losses.RoadmapLoss(positive_margin=0.3, negative_margin=0.1),
    "FastAP": losses.FastAPLoss(),
    "SoftBinAP": losses.SoftBinAPLoss(),
    "blackbox AP": losses.BlackboxAPLoss(),
    "own": WeightedPairLoss(LossWeights(losses.NCALoss()), reduction="pairs"),
}

PUSHES_POSITIVES = "SupCon", "recall@k", "smooth AP", "FastAP", "SoftBinAP", "blackbox AP"
"""Losses of which a positive pair may be apart too little: one that is much closer than the anchor's others, or that
stands in their way where positives are ranked among themselves."""

NO_ROWS = {"ContextualLoss", "SimilarityRegularizer"}
"""Not made of anchors with positives and negatives: they move pairs against their labels too, or whatever these are."""


def weighted(weights: Tensor, positive: Tensor, similarity: Tensor) -> Tensor:
    """Eq. (3), F."""
    return (torch.where(positive, -weights, weights) * similarity).sum()


def test_every_loss_of_the_library_is_here() -> None:
    names = {type(loss).__name__ for loss in LOSSES.values()}
    abstract = {"Loss", "PairLoss", "RowLoss", "RankingLoss"}
    assert names >= set(OFFERED) - abstract - NO_ROWS - OF_CENTERS


@pytest.mark.parametrize("name", LOSSES)
def test_training_with_the_weights_is_training_with_the_loss(name: str) -> None:
    x, loss = batch(), LOSSES[name]
    weights = pair_weights(loss, PairSource.from_batch(x, LABELS))
    signed = pair_weights(loss, PairSource.from_batch(x, LABELS), signed=True)
    assert torch.equal(signed.abs(), weights)
    assert weights.count_nonzero() > 10
    positive = LABELS[:, None] == LABELS
    # The loss itself comes last, for a random miner draws anew in each call.
    (by_signed,) = gradients(lambda x: (signed * (normalize(x) @ normalize(x).T)).sum(), x)
    (by_weights,) = gradients(lambda x: weighted(weights, positive, normalize(x) @ normalize(x).T), x)
    (own,) = gradients(lambda x: loss(x, LABELS), x)
    assert own.abs().max() > 1e-6
    torch.testing.assert_close(by_signed, own, rtol=1e-9, atol=1e-12)
    if name not in PUSHES_POSITIVES:
        torch.testing.assert_close(by_weights, own, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("loss", "second", "pushed", "pulled"),
    [
        (losses.SupConLoss(), 0.1, 0, 1),  # which is much closer than the other
        (losses.RecallAtKLoss(k=1), 0.88, 1, 0),  # more is gained near rank 1 than at rank 2, so the second leaves room
    ],
)
def test_a_positive_may_be_pushed_apart(loss: losses.Loss, second: float, pushed: int, pulled: int) -> None:
    similarity, positive = torch.tensor([[0.9, second, 0.0]]), torch.tensor([[True, True, False]])
    signed = similarity_weights(loss, similarity, positive, signed=True)
    assert signed[0, pushed] > 0 > signed[0, pulled]


@pytest.mark.parametrize("name", LOSSES)
def test_weights_against_references_and_with_other_pairs(name: str) -> None:
    for case in ("references", "offset", "relation", "masks"):
        if (name, case) != ("margin, classes", "masks"):  # it needs labels
            check_weights_with(name, case)


def check_weights_with(name: str, case: str) -> None:
    """In so many dimensions that the gradients of 8 anchors and 11 references are those of one weight per pair only."""
    x, references, loss = batch(8, 16), batch(11, 16, seed=1), LOSSES[name]
    labels, reference_labels = LABELS[:8], LABELS.roll(3)[:11]
    options: dict[str, object] = {"references": references, "reference_labels": reference_labels}
    if case == "offset":
        references[2:10], reference_labels[2:10], options["offset"] = x, labels, 2
    if case == "relation":
        options["relation"] = lambda a, b: (a[:, None] - b).abs() <= 1
    if case == "masks":
        positive = torch.rand(8, 11, generator=torch.Generator().manual_seed(2)) < 0.3
        negative = ~positive & (torch.rand(8, 11, generator=torch.Generator().manual_seed(3)) < 0.8)
        labels, options = None, {"references": references, "positive": positive, "negative": negative}
    signed = pair_weights(loss, PairSource.from_batch(x, labels, **options), signed=True)
    assert signed.any()
    if case == "offset":
        assert not signed.diagonal(2).any()
    if case == "masks":
        assert not signed[~positive & ~negative].any()
    by_weights = gradients(lambda x, y: (signed * (normalize(x) @ normalize(y).T)).sum(), x, references)
    own = gradients(lambda x, y: loss(x, labels, **{**options, "references": y}), x, references)
    for ours, theirs in zip(by_weights, own, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_looking_changes_nothing(name: str) -> None:
    loss, x = LOSSES[name], batch().requires_grad_()
    loss(x, LABELS)
    before = {key: value.clone() for key, value in loss.state_dict().items()}
    state = torch.get_rng_state()
    first = pair_weights(loss, PairSource.from_batch(x, LABELS))
    with torch.no_grad():
        assert torch.equal(pair_weights(loss, PairSource.from_batch(x, LABELS)), first)
    with torch.inference_mode():
        assert torch.equal(pair_weights(loss, PairSource.from_batch(x.detach().clone(), LABELS)), first)
    assert not first.requires_grad
    assert x.grad is None
    assert all(parameter.grad is None and parameter.requires_grad for parameter in loss.parameters())
    assert all(torch.equal(value, before[key]) for key, value in loss.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "margin, classes"])
def test_weights_are_finite(name: str) -> None:
    """Every second batch in bfloat16, the others in float64, and the other way round for the next loss."""
    for number, (of, data) in enumerate(BATCHES.items(), start=list(LOSSES).index(name)):
        dtype = torch.bfloat16 if number % 2 else torch.float64
        weights = pair_weights(LOSSES[name], PairSource.from_batch(*data.to(dtype)))
        assert weights.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert weights.isfinite().all(), of
        if data.references is None or data.offset is not None:
            assert not weights.diagonal(data.offset or 0).any(), of


def test_autocast_does_not_matter() -> None:
    x = batch().float()
    with torch.autocast("cpu", torch.bfloat16):
        weights = pair_weights(losses.NCALoss(), PairSource.from_batch(x, LABELS))
    torch.testing.assert_close(
        weights, pair_weights(losses.NCALoss(), PairSource.from_batch(x, LABELS)), rtol=0, atol=0
    )


def test_sizes_of_nothing() -> None:
    assert pair_weights(losses.NCALoss(), PairSource.from_batch(batch(0), LABELS[:0])).shape == (0, 0)
    weights = pair_weights(losses.NCALoss(), PairSource.from_batch(batch(2), LABELS[:2], batch(0), LABELS[:0]))
    assert weights.shape == (2, 0)


def test_a_similarity_matrix_is_enough() -> None:
    x, y = batch(8), batch(11, seed=1)
    positive = LABELS[:8, None] == LABELS[:11]
    similarity = normalize(x) @ normalize(y).T
    for name, loss in LOSSES.items():
        if name != "margin, classes":
            expected = pair_weights(loss, PairSource.from_batch(x, references=y, positive=positive), signed=True)
            ours = similarity_weights(loss, similarity, positive, dim=4, signed=True)
            torch.testing.assert_close(ours, expected, msg=name)
            assert torch.equal(similarity_weights(loss, similarity, positive, dim=4), ours.abs())
    few = similarity_weights(losses.NCALoss(), similarity, positive, negative=~positive & (similarity > 0))
    assert torch.equal(few > 0, positive | (similarity > 0) & positive.any(1, keepdim=True))
    assert similarity_weights(losses.NCALoss(), similarity.half(), positive).dtype == torch.float32


def test_what_has_no_weights_is_refused() -> None:
    x = batch()
    for loss in (CrossBatchMemory(losses.NCALoss(), 10), losses.NCALoss() + 2 * CrossBatchMemory(losses.NCALoss(), 10)):
        with pytest.raises(InputError, match="CrossBatchMemory has no pair weights of its own"):
            pair_weights(loss, PairSource.from_batch(x, LABELS))
    with pytest.raises(InputError, match=r"similarity must be float \[n, c\], not torch.int64 \[2, 2\]"):
        similarity_weights(losses.NCALoss(), torch.eye(2).long(), torch.eye(2).bool())
    with pytest.raises(InputError, match=r"positive must be bool \[2, 2\]"):
        similarity_weights(losses.NCALoss(), torch.eye(2), torch.eye(3).bool())
    with pytest.raises(InputError, match="labels must be int"):
        pair_weights(losses.NCALoss(), PairSource.from_batch(x, LABELS[:3]))


def test_weights_of_a_loss_of_neighborhoods() -> None:
    """By the similarities, as autograd has it, an anchor's own left out, some against the label."""
    x = batch().detach().requires_grad_()
    for loss in (
        losses.ContextualLoss(k=3),
        losses.SimilarityRegularizer(),
        0.8 * losses.ContextualLoss(k=3) + losses.SimilarityRegularizer(),
    ):
        weights = pair_weights(loss, PairSource.from_batch(x, LABELS), signed=True)
        assert weights.diagonal().count_nonzero() == 0
        unit = torch.nn.functional.normalize(x)
        (by_weights,) = torch.autograd.grad((weights * (unit @ unit.T)).sum(), x)
        (by_loss,) = torch.autograd.grad(loss(x, LABELS), x)
        torch.testing.assert_close(by_weights, by_loss)
    signs = pair_weights(losses.ContextualLoss(k=3), PairSource.from_batch(x, LABELS), signed=True).sign()
    assert (signs == -1)[LABELS[:, None] != LABELS].any()
    with pytest.raises(InputError, match="give a batch without references"):
        pair_weights(losses.ContextualLoss(k=3), PairSource.from_batch(x, LABELS, x, LABELS))
