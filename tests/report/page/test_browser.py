"""Pages in a real browser, if this machine has one: no error in the console, the images there, the map moves."""

from pathlib import Path

import numpy as np
import pytest

from tests.report.page.browser import Browser
from tests.report.page.cases import Case, results_of, with_interval
from vicinal.data import Table
from vicinal.evaluation import evaluate
from vicinal.report.page import EvaluatedEmbeddings, write_comparison_page, write_page, write_unlabeled_page

DECODED = """Promise.all([...document.querySelectorAll("img[data-image]")].map((image) =>
  image.decode().then(() => image.naturalWidth > 0)))"""
FOCUSED = "document.activeElement.id || document.activeElement.tagName"
PIXELS = "document.getElementById('map-canvas').toDataURL()"
MAP = "document.getElementById('map-canvas').dataset"
CONTRAST = """(() => {  // texts whose contrast is below that of WCAG AA, each with its class
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const linear = (value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const behind = (one) => {
    const color = rgb(getComputedStyle(one).backgroundColor);
    return color[3] === 255 ? color : behind(one.parentElement);
  };
  const isText = (one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  const isSeen = (one) => one.getClientRects().length && !one.closest("script, noscript, .skip");
  const texts = [...document.querySelectorAll("body *")].filter((one) => isText(one) && isSeen(one));
  const ratios = texts.map((one) => {
    const style = getComputedStyle(one);
    const both = [light(rgb(one instanceof SVGElement ? style.fill : style.color)), light(behind(one))];
    return [String(one.getAttribute("class") || one.tagName), (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05)];
  });
  return { texts: texts.length, weak: ratios.filter(([, ratio]) => ratio < 4.5) };
})()"""
CHARTS = """[...document.querySelectorAll("svg.chart")].map((chart) => {
  const isSeen = (one) => one.getBoundingClientRect().width > 0;
  const seen = (parts) => [...chart.querySelectorAll(parts)].filter(isSeen).length;
  return [seen("[style*='--color']"), seen("text[style*='--pale']"), seen("text[style*='--ink']")];
})"""
ON_MAP = """(() => {
  const { x, y, side, label, classes } = JSON.parse(document.getElementById("page-data").textContent).map;
  const span = (places) => Math.max(...places) - Math.min(...places);
  return [x[0] / side - 0.5, 0.5 - y[0] / side, classes[label[0]], span(x) / side, span(y) / side];
})()"""
REFUSED = """new Promise((done) => {
  document.addEventListener("securitypolicyviolation", (event) => done(event.effectiveDirective));
  fetch("https://example.org").catch(() => setTimeout(done, 200, "not by the policy"));
})"""
FRAMES = """["query", "found"].map((name) => {
  const image = document.getElementById(`${name}-image`);
  return [image.naturalWidth > 0 && image.checkVisibility(), image.src];
})"""


BROKEN_WORDS = """(() => {  // words of which a part is on the next line
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const broken = [];
  let seen = 0;
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const one = node.parentElement;
    if (!one.checkVisibility() || one.closest("script, noscript, svg, pre, .skip")) continue;
    for (const word of node.data.matchAll(/[\\p{L}\\p{N}@]+/gu)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      seen += 1;
      if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1) {
        broken.push([word[0], one.outerHTML]);
      }
    }
  }
  return { broken, seen };
})()"""
SEEN_CELLS = """[...document.querySelector("ul.cells").children]
  .filter((cell) => cell.checkVisibility())
  .map((cell) => cell.getBoundingClientRect())
  .map(({ left, right }) => left >= 0 && right <= innerWidth)"""
FIRST_PICTURES = """[...document.querySelectorAll("main .cell img")].slice(1, 4).map((image) => {
  const { top, bottom } = image.getBoundingClientRect();
  return image.checkVisibility() && top > 0 && bottom <= innerHeight;
})"""
NAMES = ["Garant-Ecological-Medium-Fat-Milk", "Arla-Standard-Milk", "black_footed_albatross", "Oat", "Zero", "Kiwi"]
SIZES = [(1400, 900, False), (390, 844, True)]


def text_of(name: str) -> str:
    return f"document.getElementById('{name}').textContent"


@pytest.fixture(scope="module")
def pages(digits: Case, run: Path, written: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, case = tmp_path_factory.mktemp("pages"), digits
    noisy = (case.vectors + np.random.default_rng(0).normal(0, 6, case.vectors.shape)).astype(np.float32)
    other = EvaluatedEmbeddings(noisy, case.table, evaluate(noisy, case.table))
    sets = {"plain": EvaluatedEmbeddings(*case, run=run), "noisy": other}
    apart = {"noisy": {"mAP": (-0.3, -0.1), "recall@1": (-1.0, 1.0)}}
    write_comparison_page(folder / "two.html", sets, results=results_of(sets, differences=apart))
    frame = case.table.frame
    named = Table(frame.assign(label=[NAMES[int(label[-1]) % len(NAMES)] for label in frame["label"]], split="test"))
    found = evaluate(noisy, named)
    write_page(
        folder / "names.html", noisy, named, found, run=run, backbone="resnet50", num_left_out=3,
        results=with_interval(found, "mAP@R"), map_images=60,
    )  # fmt: skip
    write_unlabeled_page(folder / "unlabeled.html", case.vectors, Table(frame[["path"]]), map_images=60)
    return {"one": written} | {name: folder / f"{name}.html" for name in ("two", "names", "unlabeled")}


@pytest.mark.parametrize("name", ["one", "two"])
def test_everything_is_there_and_nothing_is_asked_for(tab: Browser, pages: dict[str, Path], name: str) -> None:
    tab.open(pages[name])
    decoded = tab.ask(DECODED)
    assert all(decoded)
    assert len(decoded) > 50
    assert tab.errors == []
    assert tab.requests == [pages[name].as_uri()]
    assert tab.ask(REFUSED) == "connect-src"  # even if a script wanted to
    drawn = tab.ask(CHARTS)
    assert len(drawn) >= 3
    for shapes, ticks, names in drawn:
        assert shapes >= 1
        assert ticks >= 5
        assert names >= 2


@pytest.mark.parametrize("name", ["one", "two", "names", "unlabeled"])
@pytest.mark.parametrize(("width", "height", "phone"), [*SIZES, (1130, 800, False)])
def test_the_first_screen_shows_found_pictures_and_nothing_hangs_over_the_edge_and_no_word_is_broken(
    tab: Browser, pages: dict[str, Path], name: str, width: int, height: int, phone: bool
) -> None:
    tab.open(pages[name], width, height, phone=phone)
    if name != "two" and (width, height, phone) in SIZES:  # a comparison has differences there
        assert tab.ask(FIRST_PICTURES) == [True] * 3
    tab.ask("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    tab.frames()
    assert tab.ask("[innerWidth, document.documentElement.scrollWidth]") == [width, width]
    words = tab.ask(BROKEN_WORDS)
    assert words["broken"] == []
    assert words["seen"] > 300


def test_a_phone_shows_three_neighbors_and_more_if_asked(tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["names"], 390, 844, phone=True)
    assert tab.ask(SEEN_CELLS) == [True] * 4  # the query is the first
    more = "document.querySelector('.more')"
    said = f"[{more}.textContent, {more}.getAttribute('aria-expanded')]"
    assert tab.ask(said) == ["5 more", "false"]
    tab.click(".more")
    assert tab.ask(SEEN_CELLS) == [True] * 9
    assert tab.ask(said) == ["fewer", "true"]
    tab.click(".more")
    assert tab.ask(SEEN_CELLS) == [True] * 4
    assert tab.ask(said) == ["5 more", "false"]
    tab.open(pages["names"])
    assert tab.ask(SEEN_CELLS) == [True] * 9
    assert not tab.ask(f"{more}.checkVisibility()")


def test_the_best_and_random_queries_are_folded(tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["one"])
    folds = "[...document.querySelectorAll('#queries > details')]"
    assert tab.ask(f"{folds}.map((each) => [each.innerText, each.open])") == [
        ["Best by mAP@R", False],
        ["Drawn at random", False],
    ]
    tab.ask(f"{folds}[0].querySelector('summary').focus()")
    tab.press("Enter")
    assert tab.ask(f"{folds}.map((each) => each.open)") == [True, False]
    assert tab.ask(f"{folds}[0].querySelector('img').checkVisibility()")


@pytest.mark.parametrize("name", ["one", "two"])
def test_text_can_be_read_in_both_schemes(tab: Browser, pages: dict[str, Path], name: str) -> None:
    tab.open(pages[name], dark=True)
    for scheme in ("dark", "light"):
        tab.emulate(scheme)
        tab.frames()
        paper = tab.ask("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") is (scheme == "light")
        read = tab.ask(CONTRAST)
        assert read["weak"] == [], scheme
        assert read["texts"] > 300


def test_colors_can_be_chosen_and_print_is_light(tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["one"])
    paper = "getComputedStyle(document.body).backgroundColor"
    light, drawn = tab.ask(paper), tab.ask(PIXELS)
    tab.click("#theme")
    assert "light" in tab.ask(text_of("theme"))
    tab.click("#theme")
    assert tab.ask(paper) != light
    assert tab.ask(PIXELS) != drawn
    tab.emulate(media="print")
    assert tab.ask(paper) == light
    hidden = "['nav', '.controls', '#theme'].map((each) => getComputedStyle(document.querySelector(each)).display)"
    assert tab.ask(hidden) == ["none"] * 3
    tab.emulate()
    tab.click("#theme")  # back to the system's, which is stored


def test_click_enlarges_and_keys_go_on(tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["one"])
    tab.click("#queries .cell.query")
    assert tab.ask("document.getElementById('viewer').open")
    assert tab.ask(text_of("found-note")) == "query"
    assert tab.ask("document.getElementById('query').hidden")
    tab.press("ArrowRight")
    assert "neighbor 1, " in tab.ask(text_of("found-note"))
    (query, first), (found, second) = tab.ask(FRAMES)
    assert query
    assert found
    assert first != second
    paths = [tab.ask(text_of(f"{name}-file")) for name in ("query", "found")]
    assert all(path.endswith(".png") for path in paths)
    assert paths[0] != paths[1]
    tab.press("ArrowLeft")
    assert tab.ask(text_of("found-note")) == "query"
    tab.press("Escape")
    assert not tab.ask("document.getElementById('viewer').open")
    assert tab.ask("document.activeElement.matches('#queries .cell.query')")
    assert tab.errors == []


def test_keyboard_alone_goes_everywhere(tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["one"])
    tab.press("Tab")
    assert tab.ask("document.activeElement.className") == "skip"
    assert tab.ask("document.activeElement.getBoundingClientRect().left >= 0")
    tab.press("Enter")
    assert tab.ask(FOCUSED) == "main"
    tab.ask("document.querySelector('#queries .cell').focus()")
    tab.press("Tab")
    assert tab.ask("document.activeElement.matches('#queries .cell')")
    assert tab.ask("getComputedStyle(document.activeElement).outlineWidth") == "3px"
    tab.press("Enter")
    assert tab.ask("document.getElementById('viewer').open")
    tab.press("Escape")


def test_map_is_moved_by_pointer(tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["one"])
    left, top, width, height = tab.place("#map-canvas")
    whole = tab.ask(PIXELS)
    tab.wheel(left + width / 2, top + height / 2, -300)  # without focus the page scrolls
    assert tab.ask(MAP + ".zoom") == "1.000"
    left, top, *_ = tab.place("#map-canvas")
    tab.drag((left + 5, top + 5), (left + 65, top + 45))
    moved = tab.ask(PIXELS)
    assert moved != whole
    tab.wheel(left + width / 2, top + height / 2, -300)
    assert float(tab.ask(MAP + ".zoom")) > 1.2
    tab.click("#map-reset")
    assert tab.ask(PIXELS) == whole
    tab.click("#map-in")
    assert tab.ask(MAP + ".zoom") == "1.500"
    assert tab.errors == []


def test_map_shows_the_image_that_is_pointed_at(tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["one"])
    left, top, width, height = tab.place("#map-canvas")
    assert tab.ask("document.getElementById('map-tip').hidden")
    x, y, label, wide, high = tab.ask(ON_MAP)
    scale = 0.94 * min(width / wide, height / high)
    at = left + width / 2 + x * scale, top + height / 2 + y * scale
    tab.pointer("Moved", *at)
    tab.frames()
    assert tab.ask(MAP + ".current") == "0"
    assert tab.ask("document.getElementById('map-tip').checkVisibility()")
    assert tab.ask("document.getElementById('map-tip-image').decode().then(() => true)")
    assert tab.ask(text_of("map-tip-label")) == label
    for kind in ("Pressed", "Released"):
        tab.pointer(kind, *at, held=kind == "Pressed")
    tab.frames()
    assert tab.ask("document.getElementById('viewer').open")
    assert tab.ask(text_of("found-label")) == label


def test_map_is_moved_by_keys_and_says_where_it_is(tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["one"])
    tab.place("#map-canvas")
    tab.ask("document.getElementById('map-canvas').focus()")
    tab.press("+")
    assert tab.ask(MAP + ".zoom") == "1.500"
    tab.press("0")
    assert tab.ask(MAP + ".zoom") == "1.000"
    said = text_of("map-said")
    tab.press("ArrowRight")
    first = tab.ask(said)
    assert first.startswith("digit ")
    tab.press("ArrowRight")
    assert tab.ask(said) != first
    tab.press("Enter")
    assert tab.ask("document.getElementById('viewer').open")
    tab.press("Escape")
    assert tab.ask(FOCUSED) == "map-canvas"
