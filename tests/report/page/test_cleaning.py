"""The page of findings: what it shows, and a review with keys and buttons in a real browser."""

import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from tests.report.page.browser import Browser
from tests.report.page.cases import Page, draw_pictures
from vicinal.analysis import Findings, find_problems, image_facts
from vicinal.data import Table, apply_decisions
from vicinal.report import write_cleaning_page

BAR = "document.getElementById('review-count').textContent"


def planted(folder: Path) -> Table:
    """Two classes of ten pictures: 3 is like 2, 4 is labeled wrong, and 20 is broken."""
    draw_pictures(folder, 20)
    Image.open(folder / "2.png").save(folder / "3.jpg", quality=60)
    (folder / "20.png").write_bytes(b"no image")
    names = [f"{number}.{'jpg' if number == 3 else 'png'}" for number in range(21)]
    labels = np.where(np.arange(21) < 10, "owl", 'the "kiwi", brown')
    labels[4] = labels[-1]
    return Table(pd.DataFrame({"path": names, "label": labels}), root=folder)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return planted(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def findings(table: Table) -> Findings:
    vectors = np.repeat(np.eye(2, 6), 10, axis=0) + 0.2 * np.random.default_rng(0).normal(size=(20, 6))
    vectors[3] = vectors[2]
    findings = find_problems(vectors, table, image_facts(table), embedded_rows=np.arange(20), num_neighbors=5)
    assert findings.counts["near_duplicate"] == findings.counts["label_error"] == findings.counts["broken"] == 1
    return findings


@pytest.fixture(scope="module")
def page(findings: Findings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "cleaning.html"
    write_cleaning_page(path, findings, title="<Birds>")
    return path


def test_it_has_a_section_for_each_finding_and_loads_nothing(page: Path, table: Table) -> None:
    read = Page(page)
    assert {"overview", "broken", "near-duplicate", "label-error", "small-class", "new-class"} <= set(read.sections)
    assert "exact-duplicate" not in read.sections
    assert read.unclosed == []
    assert "<Birds>" in read.words
    assert not [each for each in read.all("img") if each.get("src")]
    assert str(Path(table.paths[0]).parent) not in read.source  # of the author's folders nothing is told
    suggestions = read.data["review"]["suggestions"]
    images = read.data["review"]["images"]
    assert [images[str(number)]["path"] for number, *_ in suggestions["broken"]] == ["20.png"]
    assert [(images[str(number)]["path"], *rest) for number, *rest in suggestions["label-error"]] == [
        ("4.png", "relabel", "owl")
    ]


def test_decisions_of_an_earlier_page_are_made_already(findings: Findings, tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("path,decision,new_label\n20.png,drop,\n4.png,relabel,owl\ngone.png,drop,\n")
    write_cleaning_page(tmp_path / "c.html", findings, decisions=tmp_path / "d.csv")
    review = Page(tmp_path / "c.html").data["review"]
    decided = {(review["images"][str(number)]["path"], *rest) for number, *rest in review["decided"]}
    assert decided == {("20.png", "drop", ""), ("4.png", "relabel", "owl")}


@pytest.fixture
def opened(tab: Browser, page: Path) -> Browser:
    tab.open(page)
    tab.ask("localStorage.clear()")
    tab.open(page)
    return tab


def saved(tab: Browser, folder: Path) -> Path:
    tab.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    tab.click("#review-export")
    file = folder / "decisions.csv"
    for _ in range(100):
        if file.is_file():
            return file
        time.sleep(0.05)
    raise AssertionError("nothing was saved")


def test_keys_decide_and_the_file_makes_a_new_table(opened: Browser, table: Table, tmp_path: Path) -> None:
    assert opened.ask(BAR) == "No decisions yet"
    opened.press("j")  # the broken file
    opened.press("x")
    opened.press("j")
    opened.press("d")
    opened.press("d")
    assert opened.ask(BAR) == "Decisions: 1 drop"
    opened.ask("document.querySelector('#label-error button[data-view]').focus()")
    opened.press("r")
    assert opened.ask("document.getElementById('relabel-name').value") == "owl"  # what is suggested
    opened.ask("document.getElementById('relabel-name').value = 'a \"new\" one'")
    opened.press("Enter")
    opened.press("ArrowRight")
    opened.press("c")
    assert opened.ask(BAR) == "Decisions: 1 drop, 1 relabel, 1 keep"
    assert opened.errors == []
    new = apply_decisions(table, saved(opened, tmp_path))
    assert len(new) == 20
    assert new.frame["label"][4] == 'a "new" one'
    assert (new.frame["label"].drop(4) == table.frame["label"][:20].drop(4)).all()


def test_decisions_are_remembered_shown_everywhere_and_cleared(opened: Browser, page: Path) -> None:
    opened.click("#label-error .suggest")
    number = opened.ask("document.querySelector('#label-error button[data-view]').dataset.view")
    opened.open(page)
    shown = (
        f"[...document.querySelectorAll('button[data-view=\"{number}\"]')].map((c) => c.parentElement.dataset.decision)"
    )
    assert set(opened.ask(shown)) == {"relabel"}
    assert opened.ask(BAR) == "Decisions: 1 relabel"
    opened.ask("window.confirm = () => true")
    opened.click("#review-clear")
    assert opened.ask(BAR) == "No decisions yet"
    assert set(opened.ask(shown)) == {None}
    opened.open(page)
    assert opened.ask("document.getElementById('review-export').disabled")


def test_keys_decide_about_the_enlarged_image(opened: Browser) -> None:
    opened.press("j")
    opened.press("j")
    opened.press("Enter")
    assert opened.ask("document.getElementById('viewer').open")
    opened.press("ArrowRight")
    opened.press("x")
    opened.press("Escape")
    decided = "[...new Set([...document.querySelectorAll('[data-decision] > [data-view]')].map((c) => c.dataset.view))]"
    second = opened.ask("document.querySelectorAll('#near-duplicate button[data-view]')[1].dataset.view")
    assert opened.ask(decided) == [second]


def test_it_fits_a_phone_where_buttons_decide(tab: Browser, page: Path) -> None:
    tab.open(page, 390, 844, phone=True)
    tab.ask("localStorage.clear()")
    tab.open(page, 390, 844, phone=True, dark=True)
    assert tab.ask("document.documentElement.scrollWidth") <= 390
    left, _, width, height = tab.place("#near-duplicate .drop")
    assert width >= 30
    assert height >= 30
    assert left + width <= 390
    tab.click("#near-duplicate .drop")
    assert tab.ask(BAR) == "Decisions: 1 drop"
    assert tab.ask("document.querySelector('#near-duplicate .drop').getAttribute('aria-pressed')") == "true"
    assert tab.errors == []
    assert tab.requests == [page.as_uri()]
