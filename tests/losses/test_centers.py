"""Center-based losses equal their formulas, whole and in tiles; edges and number types."""

import pytest
import torch

from tests.losses.batches import Batch, realistic_batch
from tests.losses.center_cases import BATCHES, CASES, DEFAULTS, classes_of
from tests.losses.gradients import assert_near, value_and_gradients
from vicinal.losses import ClusterContrastLoss, proxy_anchor
from vicinal.similarity import center_sum, normalize
from vicinal.similarity.pair_source import PairSource

ABSENT = {"shuffled": 3, "many classes": 20, "one class": 1, "one sample": 4}
"""Batches that are also tested with so many classes that are not in them."""


SIZES = [*((name, 0) for name in BATCHES if name != "zero vector"), *ABSENT.items()]


@pytest.mark.parametrize("case", CASES)
def test_value_and_gradients_are_the_formulas(case: str) -> None:
    for name, absent in SIZES:
        classes = classes_of(BATCHES[name]) + absent
        if case == "ProxyNCA" and classes == 1:
            continue  # one class has no others
        got, expected = (of(BATCHES[name], classes) for of in (CASES[case].values, CASES[case].values_by_hand))
        if case.startswith("ArcFace") and name == "one dimension":  # angles of 0 and pi have no slope
            got, expected = got[:1], expected[:1]
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(("tile", "rows", "kept"), [(1, 100, 2**25), (60, 7, 2**25), (60, 7, 0), (2**20, 7, 0)])
@pytest.mark.parametrize("case", CASES)
def test_tiles_change_nothing(case: str, tile: int, rows: int, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of few centers, blocks of few anchors, tiles that are computed once and those that are computed twice."""
    batch = BATCHES["many classes"]
    expected = CASES[case].values(batch, 13)
    for module in (center_sum, proxy_anchor):
        monkeypatch.setattr(module, "tile_elements", lambda device: tile)
    monkeypatch.setattr(center_sum, "MIN_ROWS", 7)
    monkeypatch.setattr(center_sum, "BLOCK_ROWS", rows)
    monkeypatch.setattr(center_sum, "MAX_KEPT", kept)
    monkeypatch.setattr(center_sum, "MAX_KEPT_TILES", 4 if kept else 0)
    torch.testing.assert_close(CASES[case].values(batch, 13), expected, rtol=1e-10, atol=1e-12)
    with torch.no_grad():
        value = CASES[case].loss(13, 8).double()(batch.embeddings, batch.labels)
    torch.testing.assert_close(value, expected[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", ["NormSoftmax", "CCL, margin", "CCL, stopped", "SoftTriple", "cross-entropy"])
def test_values_of_single_anchors(case: str) -> None:
    """Those that their mean is of, without a term that no anchor has alone."""
    more = {"regularizer": 0.0} if case == "SoftTriple" else {}
    batch, loss = BATCHES["shuffled"], CASES[case].loss(6, 5, **more).double()
    values = loss.anchor_values(PairSource.from_batch(*batch))
    alone = [loss(x[None], y[None]).detach() for x, y in zip(*batch[:2], strict=True)]
    torch.testing.assert_close(values, torch.stack(alone), rtol=1e-10, atol=1e-12)
    assert not values.requires_grad


@pytest.mark.parametrize("case", CASES)
def test_either_side_alone_has_its_gradient(case: str) -> None:
    """Embeddings that do not learn, as with a frozen model, and centers that do not."""
    batch, loss = BATCHES["shuffled"], CASES[case].loss(5, 5).double()
    _, grad_embeddings, *by_parameters = value_and_gradients(loss, batch, list(loss.parameters()))
    loss = CASES[case].loss(5, 5).double()
    learning = [p for p in loss.parameters() if p.requires_grad]
    if learning:
        got = torch.autograd.grad(loss(*batch), learning)
        torch.testing.assert_close(list(got), by_parameters, rtol=1e-12, atol=1e-14)
    loss = CASES[case].loss(5, 5).double().requires_grad_(False)
    torch.testing.assert_close(value_and_gradients(loss, batch)[1], grad_embeddings, rtol=1e-12, atol=1e-14)


# Edges ----------------------------------------------------------------------------------------------------------------


CLOSE = {"rtol": 1e-10, "atol": 1e-13}
LEARNED = [name for name, case in CASES.items() if case.kind is not ClusterContrastLoss]
SHUFFLED = BATCHES["shuffled"]


@pytest.mark.parametrize("case", CASES)
def test_zero_and_equal_vectors(case: str) -> None:
    """Embeddings and centers both, and each with itself: finite."""
    for name in ("zero vector", "duplicates", "collapsed"):
        x, labels, *_ = BATCHES[name].to(torch.float32)
        for centers in (torch.zeros(3, 5), torch.ones(3, 5), x[1:4], -x[1:4]):
            loss = CASES[case].loss(3, 5)
            loss.set_centers(torch.arange(3), centers)
            if not centers.any():
                loss.centers.data.zero_()
            for tensor in value_and_gradients(loss, Batch(x, labels), list(loss.parameters())):
                assert tensor.isfinite().all(), name


@pytest.mark.parametrize("case", CASES)
def test_a_broken_center_breaks_the_loss(case: str) -> None:
    loss = CASES[case].loss(4, 5).double()
    with torch.no_grad():
        loss.centers[-1, 2] = torch.nan
    assert loss(*SHUFFLED).isnan()


# Twice ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_gradients_accumulate_over_calls(case: str) -> None:
    """Of two batches, and scaled: each gradient belongs to whoever got it, and a later one does not change it."""
    loss = CASES[case].loss(6, 5).double().eval()
    batches = [SHUFFLED, BATCHES["opposites"]]
    expected = [value_and_gradients(loss, batch, list(loss.parameters())) for batch in batches]
    leaves = [batch.embeddings.clone().requires_grad_() for batch in batches]
    for factor, x, batch in zip((1.0, 0.25), leaves, batches, strict=True):
        (factor * loss(x, batch.labels)).backward()
    torch.testing.assert_close([x.grad for x in leaves], [expected[0][1], 0.25 * expected[1][1]], **CLOSE)
    for parameter, a, b in zip(
        (p for p in loss.parameters() if p.requires_grad), expected[0][2:], expected[1][2:], strict=True
    ):
        torch.testing.assert_close(parameter.grad, a + 0.25 * b, **CLOSE)


@pytest.mark.parametrize("case", CASES)
def test_a_second_pass_over_the_same_graph(case: str) -> None:
    """Also under autocast, which changes no number; SoftTriple's regulariser alone is left to torch."""
    loss = CASES[case].loss(6, 5, **({"regularizer": 0.0} if case.startswith("SoftTriple") else {})).eval()
    x = SHUFFLED.embeddings.float().requires_grad_()
    inputs = [x, *(p for p in loss.parameters() if p.requires_grad)]
    value = loss(x, SHUFFLED.labels)
    first = torch.autograd.grad(value, inputs, retain_graph=True)
    kept = [gradient.clone() for gradient in first]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        second = torch.autograd.grad(value, inputs, torch.tensor(2.0), retain_graph=True)
    torch.testing.assert_close(list(first), kept, rtol=0, atol=0)
    torch.testing.assert_close(list(second), [2 * gradient for gradient in kept], rtol=1e-5, atol=1e-6)
    (3 * value).backward()
    torch.testing.assert_close([leaf.grad for leaf in inputs], [3 * g for g in kept], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", [name for name in LEARNED if name != "CCL, stopped"])  # which copies what it needs
def test_what_changed_since_is_noticed(case: str) -> None:
    x = SHUFFLED.embeddings.clone().requires_grad_()
    loss = CASES[case].loss(6, 5).double()
    value = loss(x, SHUFFLED.labels)
    with torch.no_grad():
        loss.centers.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


# Number types ---------------------------------------------------------------------------------------------------------


HALVES = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("case", CASES)
def test_centers_in_half_precision(case: str) -> None:
    """They are a coarser input too, and get gradients of their own type."""
    for dtype in HALVES:
        x, labels, *_ = BATCHES["shuffled"].to(torch.float32)
        loss = CASES[case].loss(6, 5).to(dtype)
        got = value_and_gradients(loss, Batch(x, labels), list(loss.parameters()))
        coarse = CASES[case].loss(6, 5).to(dtype).float()
        expected = value_and_gradients(coarse, Batch(x, labels), list(coarse.parameters()))
        torch.testing.assert_close(got[:2], expected[:2], rtol=0, atol=0)
        assert_near([part.float() for part in got[2:]], expected[2:], torch.finfo(dtype).eps)
        assert all(part.dtype == dtype for part in (*got[2:], *loss.parameters()))


@pytest.mark.parametrize("case", CASES)
def test_float32_agrees_with_float64(case: str) -> None:
    batch = realistic_batch()
    single = CASES[case].values(batch.to(torch.float32), 20)
    assert all(tensor.dtype == torch.float32 for tensor in single)
    assert_near(single, CASES[case].values(batch, 20), 1e-5)


@pytest.mark.parametrize("length", [1e-2, 1e6])
@pytest.mark.parametrize("case", [name for name in DEFAULTS if not CASES[name].kind.uses_norms])
def test_short_and_long_centers(case: str, length: float) -> None:
    """As weight decay, or a large learning rate, may leave them."""
    batch, loss = realistic_batch(), CASES[case].loss(20, 32)
    value, by_x, *grad_centers = value_and_gradients(loss, batch.to(torch.float32), list(loss.parameters()))
    other = CASES[case].loss(20, 32)
    other.centers.data *= length
    got = value_and_gradients(other, batch.to(torch.float32), list(other.parameters()))
    assert_near(got, [value, by_x, *(part / length for part in grad_centers)], 1e-5)


@pytest.mark.parametrize("case", [name for name in DEFAULTS if not CASES[name].kind.uses_norms])
def test_the_gradient_of_very_short_centers_is_bounded(case: str) -> None:
    """It is that of centers of norm 1e-3, in both ways of computing it."""
    batch, loss = realistic_batch().to(torch.float32), CASES[case].loss(20, 32)
    with torch.no_grad():
        loss.centers.copy_(normalize(loss.centers) * 1e-3)
    _, _, *expected = value_and_gradients(loss, batch, list(loss.parameters()))
    with torch.no_grad():
        loss.centers.mul_(1e-4)
    _, _, *got = value_and_gradients(loss, batch, list(loss.parameters()))
    assert_near(got, expected, 1e-5)
    loss.centers.data.zero_()
    for part in value_and_gradients(loss, batch, list(loss.parameters()))[2:]:
        assert part.isfinite().all()
        assert part.abs().max() < 1e5


@pytest.mark.slow
@pytest.mark.parametrize("case", ["NormSoftmax", "CCL, margin"])
def test_a_million_classes_in_float16(case: str) -> None:
    classes, generator = 1_000_000, torch.Generator().manual_seed(0)
    batch = Batch(torch.randn(4, 4, generator=generator).half(), torch.tensor([0, classes - 1, 7, 7]))
    loss = CASES[case].loss(classes, 4)
    with torch.autocast("cpu", dtype=torch.float16):
        value, by_x, grad_centers = value_and_gradients(loss, batch, [loss.centers])
    assert by_x.dtype == torch.float16
    assert grad_centers.dtype == loss.centers.dtype == torch.float32
    expected = CASES[case].values_by_hand(batch, classes)
    assert_near([value, grad_centers], expected[::2], 1e-5)
    assert_near([by_x], [expected[1]], 1e-3)
