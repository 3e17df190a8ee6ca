"""Matching parts on the page of the service, in a real browser: lines between the picture and a neighbor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from tests.report.page.browser import Browser
from tests.report.page.conftest import tab  # noqa: F401
from tests.serving.gestures import drop, wait_for
from tests.serving.page_server import serve, watched_app
from tests.serving.service import noise
from tests.serving.test_page import IDS, LOADED, open_page, text
from vicinal import Embedder, Index, Table
from vicinal.retrieval import LocalEncoder
from vicinal.workflows.local_features import store_local_features

LINES = "document.querySelectorAll('#why-drawing line')"


@pytest.fixture
def page(tab: Browser, model: Embedder, tmp_path: Path) -> Iterator[Browser]:  # noqa: F811
    for number in range(6):
        (tmp_path / f"{number}.png").write_bytes(noise(number))
    table = Table(pd.DataFrame({"path": [str(tmp_path / f"{number}.png") for number in range(6)]}))
    Index.build(model.embed(table, progress=False), table).save(tmp_path / "index")
    with Index.load(tmp_path / "index") as index:
        store_local_features(index, LocalEncoder.fit(model, table, dim=6, size=64), weight=2.0)
    with serve(watched_app(tmp_path / "index", model)) as address:
        open_page(tab, address)
        wait_for(tab, f"{text('summary')} !== ''")
        yield tab


def test_lines_join_the_parts_that_match(page: Browser, tmp_path: Path) -> None:
    drop(page, tmp_path / "3.png")
    wait_for(page, LOADED)
    assert page.ask("document.querySelectorAll('#matches .why').length") == 0  # before it is asked for
    page.click("#parts")
    wait_for(page, "document.querySelectorAll('#matches .why').length > 0")
    wait_for(page, LOADED)
    assert page.ask(f"{IDS}[0]") == "3"
    assert page.ask("document.querySelector('#matches .why').textContent") == "16 matching parts"
    page.click("#matches .why")
    wait_for(page, f"{LINES}.length === 16")
    assert page.ask("document.getElementById('why').open")
    assert page.ask(f"[...{LINES}].every((one) => one.x2.baseVal.value - one.x1.baseVal.value === 108)")
    assert page.ask("document.querySelectorAll('#why-drawing image').length") == 2
    page.press("Escape")
    assert not page.ask("document.getElementById('why').open")
    assert page.errors == []
