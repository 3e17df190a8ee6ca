"""The page of the service in a real browser, if this machine has one: pictures given in every way, and gone on from."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from tests.report.page.browser import Browser
from tests.report.page.conftest import tab  # noqa: F401
from tests.report.page.test_browser import CONTRAST, FOCUSED, REFUSED
from tests.serving import page_server
from tests.serving.gestures import drop, paste, pick, touch, wait_for
from tests.serving.page_server import COLORS, MARKUP, MeanColor, Watched, draw, make_index
from tests.serving.service import noise
from vicinal import Embedder, Index, Table
from vicinal.retrieval import LocalEncoder
from vicinal.workflows.local_features import store_local_features

LABELS = "[...document.querySelectorAll('#matches .name')].map((each) => each.textContent)"
IDS = "[...document.querySelectorAll('#matches .cell')].map((each) => each.dataset.id)"
LOADED = """(() => {
  const images = [...document.querySelectorAll("#matches img")];
  return images.length > 0 && images.every((each) => each.complete && each.naturalWidth > 0)
    && document.getElementById("results").getAttribute("aria-busy") === "false";
})()"""
SCROLLED = """(() => {
  const { top } = document.getElementById("results").getBoundingClientRect();
  return top >= 0 && top < innerHeight / 2;
})()"""
REGION = "['left', 'top', 'width', 'height'].map((each) => document.getElementById(`region-${each}`).valueAsNumber)"
CONTROLS = {"button", "textbox", "spinbutton", "combobox", "checkbox", "dialog", "application", "list", "region"}
CONTROLS.add("search")
SIZES = {"desktop": (1280, 900, False), "phone": (360, 740, True)}


def text(name: str) -> str:
    return f"document.getElementById('{name}').textContent"


def shown(selector: str) -> str:
    return f"document.querySelector('{selector}').checkVisibility()"


@pytest.fixture
def app(service: tuple[str, Watched]) -> Watched:
    _, app = service
    app.notes.clear()
    app.num_busy = 0
    return app


def open_page(tab: Browser, address: str, size: str = "desktop") -> Browser:  # noqa: F811
    width, height, phone = SIZES[size]
    tab.send("Emulation.setTouchEmulationEnabled", enabled=phone)
    tab.open("about:blank")  # an address that differs by its fragment alone would not be loaded
    tab.open(address, width, height, phone=phone)
    tab.emulate(motion="reduce")  # a page that still scrolls is clicked beside
    return tab


@pytest.fixture
def address(service: tuple[str, Watched]) -> str:
    return service[0]


@pytest.fixture
def page(tab: Browser, address: str, app: Watched) -> Browser:  # noqa: F811
    open_page(tab, address)
    wait_for(tab, f"{text('summary')} !== ''")
    return tab


@pytest.fixture(scope="module")
def halves(folder: Path) -> Path:
    """Red on the left, blue on the right, 120 x 80 pixels."""
    return draw(folder / "halves.png", "red", "blue")


def give(page: Browser, picture: Path) -> None:
    drop(page, picture)
    wait_for(page, f"!{text('status')}.startsWith('Give')")
    wait_for(page, LOADED)


def field(app: Watched, name: str) -> Any:
    """A field of the last search, of a form or of JSON."""
    body = app.searches()[-1]["body"].decode("latin-1")
    found = re.search(rf'name="{name}"\r\n\r\n(.*?)\r\n--|"{name}":(?:"((?:\\.|[^"])*)"|([^,}}]*))', body)
    return next((group for group in found.groups() if group is not None), None) if found else None


@pytest.mark.parametrize("way", ["drop", "paste", "pick"])
def test_a_picture_finds_its_neighbors(page: Browser, app: Watched, folder: Path, way: str) -> None:
    picture = draw(folder / "green.png", "green")
    {"drop": drop, "paste": paste, "pick": pick}[way](page, picture)
    wait_for(page, LOADED)
    assert page.ask(LABELS)[:6] == ["green"] * 6
    assert page.ask(text("status")) == "12 neighbors found."
    assert page.ask(text("decision")).startswith("Match: green, probability ")
    assert page_server.sent_image(app.searches()[-1]).size == (120, 80)
    assert MARKUP in page.ask("document.querySelector('#matches .cell').textContent")  # as text
    assert page.ask("document.querySelectorAll('#matches .cell img').length") == 12
    assert page.errors == []  # of which a style or script within the page would be one
    hosts = {re.sub("^blob:", "", address).split("/")[2] for address in page.requests}
    assert hosts == {page.ask("location.host")}
    assert page.ask(REFUSED) == "connect-src"  # the policy holds


def test_large_photos_are_shrunk_upright(page: Browser, app: Watched, folder: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the left side of the file is the top of the photograph
    give(page, draw(folder / "large.jpg", "red", "blue", size=(3000, 2000), exif=exif))
    sent = page_server.sent_image(app.searches()[-1])
    assert sent.size == (1067, 1600)
    assert sent.getexif().get(0x0112, 1) == 1
    for place, color in {(500, 100): "red", (500, 1500): "blue"}.items():
        assert max(abs(a - b) for a, b in zip(sent.convert("RGB").getpixel(place), COLORS[color], strict=True)) < 12


def test_a_region_is_drawn_by_the_pointer(page: Browser, app: Watched, halves: Path) -> None:
    give(page, halves)
    left, top, width, height = page.place("#picture")
    page.drag((left + 0.6 * width, top + 0.25 * height), (left + 0.9 * width, top + 0.75 * height))
    assert page.ask(REGION) == pytest.approx([72, 20, 36, 40], abs=1)
    page.drag((left + 0.75 * width, top + 0.5 * height), (left + 0.25 * width, top + 0.5 * height))  # moved
    assert page.ask(REGION) == pytest.approx([12, 20, 36, 40], abs=1)
    page.drag((left + 0.4 * width, top + 0.75 * height), (left + 0.45 * width, top + height))  # the lower right corner
    assert page.ask(REGION) == pytest.approx([12, 20, 42, 60], abs=1)
    page.click("#crop-search")
    wait_for(page, "document.querySelectorAll('#visits button').length === 2")
    wait_for(page, LOADED)
    assert page.ask(LABELS)[:6] == ["red"] * 6
    assert [int(side) for side in re.findall(r"\d+", field(app, "box"))] == page.ask(REGION)
    assert page.errors == []


def test_a_region_is_chosen_by_keys(page: Browser, app: Watched, halves: Path) -> None:
    give(page, halves)
    page.ask("document.getElementById('crop-start').focus()")
    page.press("Enter")
    assert page.ask(FOCUSED) == "region"
    assert page.ask(REGION) == [24, 16, 72, 48]
    page.press("ArrowRight")
    page.press("ArrowUp")
    for _ in range(12):
        page.press("ArrowLeft", shift=True)
    assert page.ask(REGION) == [27, 13, 36, 48]
    for _ in range(20):
        page.press("ArrowRight")
    assert page.ask(REGION) == [84, 13, 36, 48]  # it stays within the picture
    assert "36 by 48 pixels, 84 from the left" in page.ask("document.getElementById('region').ariaLabel")
    page.press("Enter")
    wait_for(page, "document.querySelectorAll('#visits button').length === 2")
    wait_for(page, LOADED)
    assert page.ask(LABELS)[:6] == ["blue"] * 6
    assert field(app, "box") == "[84,13,36,48]"
    page.ask("document.getElementById('region').focus()")
    page.press("Escape")
    assert not page.ask(shown("#region"))
    assert page.ask(FOCUSED) == "crop-start"


def test_a_phone_takes_photographs_and_a_finger_chooses_a_region(tab, address: str, halves: Path) -> None:  # noqa: F811
    page = open_page(tab, address, "phone")
    assert page.ask("document.getElementById('camera').getAttribute('capture')") == "environment"
    pick(page, halves, "#photograph")
    wait_for(page, LOADED)
    assert page.ask(SCROLLED)
    assert not page.ask("document.getElementById('options-fold').open")
    left, top, width, height = page.place("#picture")
    corners = [(left + 0.1 * width, top + 0.1 * height), (left + 0.4 * width, top + 0.9 * height)]
    touch(page, *corners)
    assert not page.ask(shown("#region"))  # the finger scrolls, as long as no region is to be chosen
    page.click("#crop-start")
    left, top, width, height = page.place("#picture")
    touch(page, (left + 2, top + 2), (left + 0.2 * width, top + 0.5 * height), (left + 0.4 * width, top + 0.9 * height))
    assert page.ask(REGION) == pytest.approx([1, 1, 47, 71], abs=2)
    page.ask("""(() => {
      document.getElementById("region-pixels").open = true;
      const left = document.getElementById("region-left");
      left.value = 500;
      left.dispatchEvent(new Event("change"));
    })()""")
    assert page.ask(REGION)[0] == 120 - page.ask(REGION)[2]


def test_a_neighbor_is_searched_on_with_and_back(page: Browser, app: Watched, halves: Path) -> None:
    give(page, halves)
    first = page.ask(IDS)
    page.click("#matches li:nth-child(2) .cell")
    wait_for(page, f"location.hash === '#item-{first[1]}'")
    wait_for(page, LOADED)
    second = page.ask(IDS)
    assert field(app, "id") == field(app, "exclude_id") == first[1]
    assert first[1] not in second
    assert page.ask("document.querySelectorAll('#visits button').length") == 2
    names = page.ask("[...document.querySelectorAll('dt')].map((one) => one.textContent)")
    assert {"label", "path", "note"} <= {*names}
    assert page.ask("document.activeElement.id") == "results"  # what was clicked is gone
    searched = len(app.searches())
    page.ask("history.back()")
    wait_for(page, "location.hash === ''")
    wait_for(page, LOADED)
    assert page.ask(IDS) == first
    assert "halves.png" in page.ask(text("asked-note"))
    page.ask("history.forward()")
    wait_for(page, "location.hash !== ''")
    assert page.ask(IDS) == second
    page.click("#visits li:first-child button")
    assert page.ask(IDS) == first
    assert page.ask("document.querySelector('#visits [aria-current]').textContent") == "Picture halves.png"
    assert len(app.searches()) == searched  # answers are kept
    page.ask("history.go(-3)")
    wait_for(page, f"{text('status')}.startsWith('Give')")
    assert not page.ask(shown("#asked"))
    assert page.errors == []


def test_an_item_can_be_linked_and_asked_for(tab: Browser, address: str) -> None:  # noqa: F811
    page = open_page(tab, address + "/#item-4")
    wait_for(page, LOADED)
    assert page.ask(LABELS)[:5] == ["green"] * 5
    page.ask("document.getElementById('item').focus()")
    page.press("9")
    page.press("9")
    page.press("Enter")
    wait_for(page, shown("#error"))
    assert "no item 99" in page.ask(text("error-detail"))


def test_columns_filter_and_group(page: Browser, app: Watched, halves: Path) -> None:
    give(page, halves)
    page.ask("document.querySelectorAll('.choices').forEach((one) => { one.open = true; })")
    page.click("input[name='is label'][value='\"green\"']")
    wait_for(page, f"{LABELS}.every((one) => one === 'green')")
    assert field(app, "filter") == '`label` == "green"'
    page.click("input[name='is label'][value='\"red\"']")
    page.ask("document.querySelector('input[name=\"min price\"]').focus()")
    for key in "12":
        page.press(key)
    page.press("Enter")
    wait_for(page, f"{LABELS}.length === 6")  # of 18 images, ids 8 and up, without the blue ones
    assert field(app, "filter") == '`label` in ["green", "red"] and `price` >= 12'
    assert page.ask("document.querySelector('.choices .chosen').textContent") == "green, red"
    assert page.ask(text("options-said")) == "2 set"
    page.ask("document.getElementById('group-by').focus()")
    page.press("l")
    page.press("Enter")
    wait_for(page, f"{LABELS}.length === 2")
    assert field(app, "group_by") == "label"
    page.click("#clear")
    wait_for(page, f"{LABELS}.length === 3")  # one of each label
    assert field(app, "filter") is None
    assert page.errors == []


def test_a_wrong_condition_is_explained(page: Browser, app: Watched, halves: Path) -> None:
    give(page, halves)
    page.ask("document.getElementById('condition').focus()")
    for key in "prize<3":
        page.press(key)
    page.press("Enter")
    wait_for(page, shown("#error"))
    assert "no column 'prize', did you mean 'price'?" in page.ask(text("error-detail"))
    assert page.ask(IDS) == []
    page.ask("document.getElementById('condition').value = 'price < 3'")
    page.click("#again")
    wait_for(page, LOADED)
    assert not page.ask(shown("#error"))
    assert page.ask(IDS) == ["0", "1"]


def test_a_token_is_asked_for_and_kept_in_the_tab(tab: Browser, tmp_path: Path, halves: Path) -> None:  # noqa: F811
    with page_server.serve(page_server.watched_app(make_index(tmp_path), MeanColor(), token="kiwi" * 4)) as address:
        page = open_page(tab, address)
        wait_for(page, shown("#token"))
        assert page.ask(FOCUSED) == "token-value"
        for typed in ("melon", "kiwi" * 4):
            for key in typed:
                page.press(key)
            page.press("Enter")
            if typed == "melon":
                wait_for(page, f"{text('token-said')} === 'The server refused this token.'")
        wait_for(page, f"{text('summary')} !== ''")
        give(page, halves)  # the thumbnails too
        assert page.ask("sessionStorage.getItem('vicinal-token')") == "kiwi" * 4
        assert "kiwi" not in page.ask("Object.values(localStorage).concat(document.cookie, location.href).join()")
        page.open(address)  # again
        wait_for(page, f"{text('summary')} !== ''")
        assert not page.ask(shown("#token"))


def test_a_busy_server_is_asked_again(page: Browser, app: Watched, halves: Path) -> None:
    app.num_busy = 1
    drop(page, halves)
    wait_for(page, f"{text('status')} === 'The server is busy; the next try is in 1 second.'")
    assert page.ask("document.getElementById('results').ariaBusy") == "true"
    assert page.ask(shown("#busy"))
    wait_for(page, LOADED)
    assert len(app.searches()) == 2
    assert not page.ask(shown("#busy"))


def test_what_fails_is_said(page: Browser, app: Watched, halves: Path, folder: Path) -> None:
    notes = folder / "notes.txt"
    notes.write_text("no picture")
    drop(page, notes)
    wait_for(page, shown("#error"))
    assert page.ask(text("error-title")) == "That is not a picture."
    broken = folder / "broken.heic"
    broken.write_bytes(b"no picture either")
    drop(page, broken)  # a kind that the browser cannot show, but the server may
    wait_for(page, f"{text('error-detail')}.startsWith('image: ')")
    assert "this browser cannot show it" in page.ask(text("asked-note"))
    assert not page.ask(shown("#crop"))
    page.send("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1)
    drop(page, halves)
    wait_for(page, f"{text('error-title')} === 'The server cannot be reached.'")
    page.send("Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1)
    page.click("#again")
    wait_for(page, LOADED)
    assert not page.ask(shown("#error"))


@pytest.mark.parametrize("size", SIZES)
def test_everything_fits_and_can_be_read(tab, address: str, folder: Path, size: str) -> None:  # noqa: F811
    page = open_page(tab, address, size)
    width, _, phone = SIZES[size]
    assert page.ask(shown("#photograph")) is phone
    picture = draw(folder / f"{'a-long-name-without-a-blank-' * 4}.png", "red", "blue", size=(900, 400))
    give(page, picture)
    page.click("#crop-start")
    page.press("Enter")
    wait_for(page, "document.querySelectorAll('#visits button').length === 2")
    wait_for(page, LOADED)
    assert page.ask(SCROLLED)
    page.ask("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    page.ask("document.getElementById('error').hidden = document.getElementById('busy').hidden = false")
    page.ask("document.getElementById('error-title').textContent = 'Something went wrong.'")
    page.ask("document.getElementById('token').showModal()")
    page.frames()
    assert page.ask("[innerWidth, document.documentElement.scrollWidth]") == [width, width]
    for scheme in ("light", "dark"):
        page.emulate(scheme, motion="reduce")
        page.frames()
        paper = page.ask("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") is (scheme == "light")
        read = page.ask(CONTRAST)
        assert read["weak"] == [], scheme
        assert read["texts"] > 80
    assert page.errors == []


def test_a_screen_reader_finds_names_and_landmarks(page: Browser, halves: Path) -> None:
    give(page, halves)
    page.click("#crop-start")
    page.ask("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    nodes = page.send("Accessibility.getFullAXTree")["nodes"]
    seen = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]
    assert {"banner", "main", "search", "contentinfo", "status", "region"} <= {role for role, _ in seen}
    assert [role for role, name in seen if role in CONTROLS and not name.strip()] == []
    assert ("list", "Neighbors") in seen
    assert sum(role == "button" and re.match("(red|green|blue) score ", name) is not None for role, name in seen) == 12
    assert page.ask("document.querySelectorAll('h1').length") == 1


def test_keys_alone_go_everywhere(page: Browser, halves: Path) -> None:
    page.press("Tab")
    assert page.ask("document.activeElement.className") == "skip"
    reached = []
    for _ in range(12):
        page.press("Tab")
        reached.append(page.ask(FOCUSED))
        assert page.ask("getComputedStyle(document.activeElement).outlineWidth") == "3px", reached[-1]
    assert reached[:4] == ["theme", "pick", "item", "BUTTON"]
    assert reached[5:7] == ["k", "group-by"]
    give(page, halves)
    page.ask("document.querySelector('#matches .cell').focus()")
    page.press("Enter")
    wait_for(page, f"{FOCUSED} === 'results'")
    page.press("Tab")
    assert page.ask("document.activeElement.matches('#matches li:first-child .cell')")


def test_without_a_model_the_index_is_searched_by_its_images(tab: Browser, tmp_path: Path) -> None:  # noqa: F811
    with page_server.serve(page_server.watched_app(make_index(tmp_path, has_calibration=False))) as address:
        page = open_page(tab, address + "/#item-0")
        wait_for(page, LOADED)
        assert page.ask("document.getElementById('pick').disabled")
        assert "no model" in page.ask(text("drop-help"))
        assert "not calibrated" in page.ask(text("decision"))
        assert page.errors == []


LINES = "document.querySelectorAll('#why-drawing line')"


@pytest.fixture
def page_of_parts(tab: Browser, model: Embedder, tmp_path: Path) -> Iterator[Browser]:  # noqa: F811
    for number in range(6):
        (tmp_path / f"{number}.png").write_bytes(noise(number))
    table = Table(pd.DataFrame({"path": [str(tmp_path / f"{number}.png") for number in range(6)]}))
    Index.build(model.embed(table, progress=False), table).save(tmp_path / "index")
    with Index.load(tmp_path / "index") as index:
        store_local_features(index, LocalEncoder.fit(model, table, dim=6, size=64), weight=2.0)
    with page_server.serve(page_server.watched_app(tmp_path / "index", model)) as address:
        open_page(tab, address)
        wait_for(tab, f"{text('summary')} !== ''")
        yield tab


def test_lines_join_the_parts_that_match(page_of_parts: Browser, tmp_path: Path) -> None:
    page = page_of_parts
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
