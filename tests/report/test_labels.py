from __future__ import annotations

import pytest

from vicinal.utils.console import shorten


@pytest.mark.parametrize("text", ["Garant-Ecological-Medium-Fat-Milk", "a" * 50, "a b" * 20, "-" * 30, "-a" + "b" * 30])
@pytest.mark.parametrize("length", [4, 9, 18, 24, 36])
def test_no_label_is_longer_than_it_may_be(text: str, length: int) -> None:
    short = shorten(text, length)
    assert len(short) <= length
    start, _, end = short.partition("…")
    assert text.startswith(start)
    assert text.endswith(end)
    assert bool(end) == (len(text) > length)
