"""Products in bfloat16 parts: exact parts, the precision of float32, and the contextual loss by them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from tests.losses.test_contextual import SAMPLES, VARIANTS, by_hand, clearness, clusters, ours, value_and_gradient
from tests.pretend_device import on_device, pretend_device
from vicinal.losses import ContextualLoss
from vicinal.losses.contextual import loss as contextual_loss
from vicinal.losses.contextual import products
from vicinal.losses.contextual.products import Parts, product, split, uses_bfloat16
from vicinal.losses.contextual.row_blocks import row_block_loss
from vicinal.utils import tensor_cores

UNIT = 2.0**-24
"""What a float32 number loses at most by rounding, relative to it."""
BY_PRODUCTS = [
    name for name, options in VARIANTS.items() if "theta" not in options and options.get("conjunction") != "min"
]


def by_cpu(total: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """The twin: exact products, sums in float32 that are rounded to nearest."""
    return _add_product(total, a, b)


def by_tensor_cores(total: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """Sums as tensor cores were found to add: eight terms at a time, all of them and the sum cut off alike.

    Fasi et al., "Numerical behavior of NVIDIA tensor cores", 2021: terms are aligned with the largest, two bits more
    than float32 has are kept, and nothing is rounded up.
    """
    if a.dtype != torch.bfloat16:
        return _add_product(total, a, b)
    sums = torch.zeros(len(a), b.shape[1], dtype=torch.float64) if total is None else total.double()
    for start in range(0, a.shape[1], 8):
        some = slice(start, start + 8)
        terms = torch.cat([sums[:, None], a[:, some, None].double() * b[some].double()], dim=1)
        scale = torch.exp2(terms.abs().amax(dim=1, keepdim=True).frexp().exponent.double() - 26)
        sums = _towards_zero(((terms / scale).trunc() * scale).sum(dim=1))
    return sums.float() if total is None else total.copy_(sums)


def _towards_zero(numbers: Tensor) -> Tensor:
    nearest = numbers.float()
    is_above = nearest.double().abs() > numbers.abs()
    return torch.where(is_above, nearest.nextafter(torch.zeros(())), nearest).double()


_add_product = products._add_product
SUMS = {"CPU": by_cpu, "tensor cores": by_tensor_cores}


ON_TENSOR_CORES = pytest.mark.parametrize("in_parts", SUMS, indirect=True)


@pytest.fixture
def in_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of all float32 matrices are computed by parts, with sums of either kind, on a CPU if none is given."""
    monkeypatch.setattr(products, "uses_bfloat16", lambda matrix: matrix.dtype == torch.float32)
    monkeypatch.setattr(products, "_add_product", SUMS[getattr(request, "param", "CPU")])


def matrices() -> Iterator[tuple[str, Tensor, Tensor, bool, bool]]:
    """Matrices and whether they are binary."""
    generator = torch.Generator().manual_seed(0)

    def numbers(rows: int, columns: int, decades: int = 0) -> Tensor:
        exponents = torch.randint(-decades, decades + 1, (rows, columns), generator=generator)
        return torch.randn(rows, columns, generator=generator) * 10.0**exponents

    def ones(rows: int, columns: int) -> Tensor:
        return (torch.rand(rows, columns, generator=generator) < 0.5).float()

    wide, tall = numbers(9, 300), numbers(300, 7)
    yield "ones with ones", ones(9, 300), ones(300, 7), True, True
    yield "ones with numbers", ones(9, 300), tall, True, False
    yield "numbers with ones", wide, ones(300, 7), False, True
    yield "numbers with numbers", wide, tall, False, False
    yield "quotients", 1 / wide.abs().clamp_min(0.01), 1 / tall.abs().clamp_min(0.01), False, False
    yield "of all sizes", numbers(9, 300, 8), numbers(300, 7, 8), False, False
    yield "sums of zero", torch.cat([wide, -wide], dim=1), torch.cat([tall, tall]), False, False
    for name, number in (("all parts matter", 1 + 2**-8 - 2**-17), ("all bits", 2 - 2**-23)):
        yield name, torch.full((2, 64), number), torch.full((64, 2), number), False, False


def test_parts_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "uses_bfloat16", lambda matrix: True)
    bits = torch.randint(-(2**31), 2**31, (200_000,), generator=torch.Generator().manual_seed(0)).int()
    numbers = bits.view(torch.float32)
    numbers = numbers[(numbers.abs() < 3e38) & (numbers.abs() > 1e-33)][None]
    for matrix, is_binary in ((numbers, False), (torch.tensor([[0.0, 1.0]]), True)):
        parts = split(matrix, is_binary)
        assert [part.dtype for part in parts] == [torch.bfloat16] * (1 if is_binary else 3)
        assert torch.equal(sum(part.double() for part in parts), matrix.double())


@ON_TENSOR_CORES
def test_products_are_as_precise_as_in_float32(in_parts: None) -> None:
    """Counts are exact; other sums err by no more than what n roundings to float32 may add up to."""
    for name, a, b, *are_binary in matrices():
        got = product(split(a, are_binary[0]), split(b, are_binary[1]))
        expected, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
        assert got.dtype == torch.float32
        error = ((got - expected).abs() / size.clamp_min(1e-300)).max().item()
        assert error == 0 if all(are_binary) else error <= a.shape[1] / 8 * UNIT, (name, error / UNIT)
        total = torch.ones_like(got)
        assert product(split(a, are_binary[0]), split(b, are_binary[1]), total) is total
        torch.testing.assert_close(total, got + 1, rtol=1e-4, atol=1e-5 * size.max().item(), msg=name)


@ON_TENSOR_CORES
def test_two_parts_would_not_do(in_parts: None) -> None:
    """The bound of the test above tells two parts from three."""
    a, b = next((a, b) for name, a, b, *_ in matrices() if name == "all parts matter")
    expected = a.double() @ b.double()
    error = product(split(a)[:2], split(b)[:2]) - expected
    assert (error.abs() / expected).max() > 200 * UNIT


@pytest.mark.parametrize(
    ("variant", "in_parts"),
    [*((name, "CPU") for name in BY_PRODUCTS), ("the paper's", "tensor cores")],
    indirect=["in_parts"],
)
def test_value_and_gradient(variant: str, in_parts: None) -> None:
    """On all batches where neighborhoods go wrong; in float32 their borders must be clear."""
    compared = 0
    for name, sample in SAMPLES.items():
        sample = sample._replace(x=sample.x.float())
        if clearness(sample.x, sample.k, 0.05) < 1e-5 and name != "collapsed":
            continue
        got, expected = ours(sample, **VARIANTS[variant]), by_hand(sample, **VARIANTS[variant])
        for what, one, other in zip(("value", "gradient"), got, expected, strict=True):
            assert one.dtype == torch.float32
            assert (one - other).norm() <= 1e-5 * other.norm() + 3e-6, f"{name}: {what} {one} is not {other}"
        compared += 1
    assert compared > 20


@pytest.mark.parametrize("variant", BY_PRODUCTS)
def test_row_blocks(variant: str, in_parts: None) -> None:
    for name in ("16, k = 4", "20, k = 5", "24, k = 6, learned", "corners", "collapsed"):
        sample = SAMPLES[name]._replace(x=SAMPLES[name].x.float())
        same = sample.labels[:, None] == sample.labels

        def by_rows(x: Tensor, same: Tensor = same, k: int = sample.k) -> Tensor:
            vectors = torch.nn.functional.normalize(x)
            return row_block_loss(vectors, same, None, k, ContextualLoss(k, **VARIANTS[variant]).variant)

        expected = by_hand(sample, **VARIANTS[variant])
        for one, other in zip(value_and_gradient(by_rows, sample.x), expected, strict=True):
            assert (one - other).norm() <= 1e-5 * other.norm() + 3e-6, name


@ON_TENSOR_CORES
def test_a_learned_batch_has_no_loss(in_parts: None) -> None:
    """Memberships add up to 1 exactly, also where the sizes of neighborhoods have no exact inverse."""
    labels = torch.arange(21) // 7
    value, gradient = value_and_gradient(lambda x: ContextualLoss(7)(x, labels), torch.eye(3)[labels])
    assert value == 0
    assert not gradient.any()


def test_a_large_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "uses_bfloat16", lambda matrix: matrix.dtype == torch.float32)
    monkeypatch.setattr(contextual_loss, "MIN_SPARSE_SAMPLES", 10**9)
    sample = clusters(100, 4, 32, 0.5)
    got, expected = ours(sample._replace(x=sample.x.float())), by_hand(sample)
    for one, other in zip(got, expected, strict=True):
        assert (one - other).norm() <= 1e-5 * other.norm()


# Where they are used --------------------------------------------------------------------------------------------------

H100 = {"capability": (9, 0), "torch": (2, 15), "hip": None, "dtype": torch.float32, "size": 4096}


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"capability": (8, 6)},
        {"capability": (7, 5)},
        {"torch": (2, 9)},
        {"hip": "6.4"},
        {"dtype": torch.float64},
        {"size": 1024},
    ],
    ids=str,
)
def test_a_gpu_uses_them_if_it_is_fast(other: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = H100 | other
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: gpu["capability"])
    monkeypatch.setattr(tensor_cores, "_torch_version", lambda: gpu["torch"])
    monkeypatch.setattr(torch.version, "hip", gpu["hip"])
    with FakeTensorMode():
        matrix = torch.empty(gpu["size"], gpu["size"], dtype=gpu["dtype"], device="cuda")
        assert uses_bfloat16(matrix) == (other == {})


def test_a_cpu_does_not() -> None:
    assert not uses_bfloat16(torch.empty(4096, 4096))


def needs_torch(run: Callable[..., None]) -> Callable[..., None]:
    is_old = tensor_cores._torch_version() < tensor_cores.MIN_TORCH
    return pytest.mark.skipif(is_old, reason="this version of torch lacks the products")(run)


@needs_torch
def test_pytorch_takes_the_arguments() -> None:
    """Shapes and strides of the operations that only a GPU has are checked without one."""
    total = torch.empty(8, 8, device="meta")
    parts: Parts = [torch.empty(8, 8, dtype=torch.bfloat16, device="meta") for _ in range(3)]
    assert product(parts, products.transpose(parts)).dtype == torch.float32
    assert product([part[:, 2:5] for part in parts], [part[2:5] for part in parts], total) is total
    assert product(parts, [parts[0][:4].T], total[:, :4]).shape == (8, 4)


@needs_torch
def test_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same value and gradient; each of five products in float32 becomes one, three or six, and splitting is 14."""
    sample = SAMPLES["16, k = 4"]
    counts = []
    for used in (False, True):
        monkeypatch.setattr(products, "uses_bfloat16", lambda matrix, used=used: used)
        with pretend_device() as device:
            x, labels = on_device(sample.x.float().requires_grad_()), on_device(sample.labels)
            value = ContextualLoss(4)(x, labels)
            value.backward()
            assert x.grad is not None
        torch.testing.assert_close([value.values, x.grad.values], [*by_hand(sample)], check_dtype=False)
        assert not device.waits
        counts.append(device.launches)
        n, d = sample.x.shape
        cube, similarities = 2 * n**3, 3 * 2 * n**2 * d
        cubes = {torch.float32: 5 * cube + similarities}
        if used:
            cubes = {torch.bfloat16: (1 + 3 + 3 + 3 + 6) * cube, torch.float32: similarities}
        assert device.flops == cubes
    assert counts[1] - counts[0] == 11 + 14
