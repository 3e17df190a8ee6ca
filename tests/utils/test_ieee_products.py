"""Settings that let torch round the factors of float32 products: they do not hold in a block, and come back after."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from vicinal.utils.devices import ieee_products

CPU, GPU = torch.device("cpu"), torch.device("cuda")
CUDA, MKLDNN = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul


def older(value: str) -> Callable[[], None]:
    return lambda: torch.set_float32_matmul_precision(value)


def allow_tf32() -> None:
    CUDA.allow_tf32 = True


def newer(settings: Any, value: str) -> Callable[[], None]:
    return lambda: setattr(settings, "fp32_precision", value)


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")
    for settings in (CUDA, MKLDNN, torch.backends):
        settings.fp32_precision = "none"


def state() -> list[object]:
    try:
        legacy = torch.get_float32_matmul_precision()
    except RuntimeError:
        legacy = "mixed"
    return [CUDA.fp32_precision, MKLDNN.fp32_precision, legacy]


@pytest.mark.parametrize(
    ("setting", "device"),
    [
        (older("medium"), GPU),
        (older("medium"), CPU),
        (allow_tf32, GPU),
        (newer(CUDA, "tf32"), GPU),
        (newer(MKLDNN, "bf16"), CPU),
    ],
)
def test_products_are_exact_in_the_block_and_the_settings_come_back(
    setting: Callable[[], None], device: torch.device
) -> None:
    setting()
    before = state()
    with ieee_products(device):
        assert (CUDA if device == GPU else MKLDNN).fp32_precision == "ieee"
        assert not CUDA.allow_tf32  # torch can read both kinds of settings
        assert torch.get_float32_matmul_precision() == "highest"
    assert state() == before
    with pytest.raises(ZeroDivisionError), ieee_products(device):
        _ = 1 / 0
    assert state() == before


def test_settings_that_round_nothing_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda _: pytest.fail("a setting is changed"))
    for device in (CPU, GPU):
        with ieee_products(device):
            pass


@pytest.mark.parametrize("first_out", [0, 1])
def test_blocks_of_several_threads_may_end_in_any_order(first_out: int) -> None:
    older("medium")()
    before = state()
    blocks = [ieee_products(CPU), ieee_products(GPU)]
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        threads = [one, other]
        for thread, block in zip(threads, blocks, strict=True):
            thread.submit(block.__enter__).result()
            assert state() == ["ieee", "ieee", "highest"]
        for number in (first_out, 1 - first_out):
            assert state() == ["ieee", "ieee", "highest"]  # also after the first one has left
            threads[number].submit(blocks[number].__exit__, None, None, None).result()
    assert state() == before
