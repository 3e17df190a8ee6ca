"""The page of identified photos: what it shows, and decisions in a real browser that are applied to the gallery."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.report.page.browser import Browser
from tests.report.page.cases import Page, draw_pictures
from tests.report.page.test_cleaning import saved
from vicinal import Index, Table
from vicinal.report import write_proposals_page
from vicinal.report.page import proposals
from vicinal.retrieval import enrolled_photos, identify
from vicinal.utils.errors import InputError
from vicinal.workflows.embedded_table import EmbeddedTable
from vicinal.workflows.individuals import apply_identity_decisions

BAR = "document.getElementById('review-count').textContent"
WHO = [0, 0, 3, 3, 1, 4]


class Station:
    """A gallery of three identities, and photos of two of them and of two others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        names = ["Ada", "Ada", "Bo", 'C "<3"']
        table = Table(pd.DataFrame({"path": draw_pictures(folder / "old", 4), "label": names}))
        Index.build(np.eye(5)[[0, 0, 1, 2]], table).save(folder / "gallery")
        self.vectors = np.eye(5)[WHO].astype(np.float32)
        self.photos = Table(pd.DataFrame({"path": draw_pictures(folder / "new", 6)}))
        self.page = folder / "proposals.html"

    def write(self) -> None:
        index = Index.load(self.folder / "gallery")
        found = identify(index, self.vectors, self.photos, min_score=0.7)
        write_proposals_page(self.page, found, self.photos, enrolled_photos(index)[1], title="<Cats>")

    def apply(self, decisions: Path) -> dict[str, int]:
        def embed(rows: np.ndarray) -> EmbeddedTable:
            return EmbeddedTable(self.vectors[rows], self.photos.take(rows), "v.npy")

        return apply_identity_decisions(self.folder / "gallery", self.photos, decisions, embed)


@pytest.fixture
def station(tmp_path: Path) -> Station:
    made = Station(tmp_path)
    made.write()
    return made


def test_it_shows_every_proposal_and_loads_nothing(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Page(station.page)
    assert {"overview", "known", "new"} <= set(read.sections)
    assert read.unclosed == []
    assert "<Cats>" in read.words
    assert str(station.folder) not in read.source
    review = read.data["review"]
    assert review["identities"] == ["Ada", "Bo", 'C "<3"']
    described = [(each["name"], each["isNew"], [path for _, path in each["photos"]]) for each in review["proposals"]]
    assert described == [
        ("Ada", False, ["0.png", "1.png"]), ("Bo", False, ["4.png"]),
        ("new-1", True, ["2.png", "3.png"]), ("new-2", True, ["5.png"]),
    ]  # fmt: skip
    monkeypatch.setattr(proposals, "MAX_PROPOSALS", 3)
    monkeypatch.setattr(proposals, "MAX_PHOTOS", 1)
    station.write()
    review = Page(station.page).data["review"]
    assert [len(each["photos"]) for each in review["proposals"]] == [2, 1, 2]
    assert [number for number, _ in review["proposals"][0]["photos"]][1] == -1
    assert "Of 4 proposals, 3 are shown." in Page(station.page).words


def test_photos_without_paths_are_refused(station: Station) -> None:
    index, table = Index.load(station.folder / "gallery"), Table(pd.DataFrame(index=range(6)))
    found = identify(index, station.vectors, table, min_score=0.7)
    with pytest.raises(InputError, match="the source has no paths"):
        write_proposals_page(station.folder / "none.html", found, table, station.photos)
    assert not (station.folder / "none.html").exists()


def test_decisions_of_a_browser_are_applied(station: Station, tab: Browser) -> None:
    tab.open(station.page)
    tab.ask("localStorage.clear()")
    tab.open(station.page)
    assert tab.ask(BAR) == "No decisions yet"
    button = "[data-proposal='{}'] button[data-action='{}']"
    tab.click(button.format(0, "same"))
    tab.click("[data-path='1.png']")  # taken out
    tab.click(button.format(2, "new"))
    tab.ask("document.activeElement.select()")
    tab.send("Input.insertText", text="Ada")
    assert tab.ask("document.getElementById('review-export').disabled")  # a name of the gallery
    tab.ask("document.activeElement.select()")
    tab.send("Input.insertText", text='M "imi", 2')
    tab.click(button.format(3, "not sure"))
    assert tab.ask(BAR) == "Photos: 1 same, 2 new, 2 not sure"
    tab.open(station.page)  # the browser remembers
    assert tab.ask(BAR) == "Photos: 1 same, 2 new, 2 not sure"
    assert tab.errors == []
    assert station.apply(saved(tab, station.folder)) == {"same": 1, "new": 2, "not sure": 2}
    index = Index.load(station.folder / "gallery")
    assert index.metadata.frame["label"].tolist()[4:] == ["Ada", 'M "imi", 2', 'M "imi", 2']
    assert [Path(key).name for key in index.unsure] == ["1.png", "5.png"]


def test_a_phone_has_room_for_the_buttons(station: Station, tab: Browser) -> None:
    tab.open(station.page, 390, 844, phone=True, dark=True)
    assert tab.ask("document.documentElement.scrollWidth") <= 390
    left, _, width, height = tab.place("[data-proposal='0'] button")
    assert height >= 30
    assert left + width <= 390
    assert tab.requests == [station.page.as_uri()]
