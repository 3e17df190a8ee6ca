"""Pages in a real browser, if this machine has one: no error in the console, the images there, the map moves.

The browser runs without a driver: a script that is added to a copy of the page does what a person would, and writes
what it saw into the page, which the browser prints.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.report.page.cases import digits_case
from tests.report.page.test_single import write_run
from vicinal.evaluation import evaluate
from vicinal.report.page.comparison import EvaluatedSet, write_comparison_page
from vicinal.report.page.single import write_page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PLAYWRIGHT = Path.home() / ".cache/ms-playwright"

LISTEN = """<script>
window.errors = [];
window.addEventListener("error", (event) => window.errors.push(String(event.message || event.target)), true);
document.addEventListener("securitypolicyviolation", (event) => window.errors.push("policy: " + event.blockedURI));
console.error = (...words) => window.errors.push(words.join(" "));
</script>"""

LOOK = """<script>
(async () => {
  const seen = {};
  const wait = () => new Promise((done) => setTimeout(done, 50));
  const byId = (id) => document.getElementById(id);
  const shown = [...document.querySelectorAll("img[data-image]")];
  await Promise.all(shown.map((image) => image.decode().catch(() => null)));
  seen.images = shown.length;
  seen.decoded = shown.filter((image) => image.naturalWidth > 0).length;
  const first = document.querySelector("#queries button.cell, #changes button.cell");
  first.focus();
  first.click();
  seen.viewer = byId("viewer").open;
  const before = byId("viewer-image").src;
  byId("viewer").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
  seen.next = byId("viewer-image").src !== before;
  seen.note = byId("viewer-note").textContent;
  byId("viewer").close();
  seen.focusReturns = document.activeElement === first;
  const canvas = byId("map-canvas");
  if (canvas) {
    const pixels = () => canvas.toDataURL();
    const press = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
    await wait();
    canvas.focus();
    seen.start = pixels();
    press("+");
    seen.zoom = Number(canvas.dataset.zoom);
    seen.zoomed = pixels() !== seen.start;
    press("0");
    seen.reset = pixels() === seen.start;
    press("ArrowRight");
    seen.said = byId("map-said").textContent;
    seen.tip = !byId("map-tip").hidden && byId("map-tip-image").src.startsWith("data:image/webp");
    press("Escape");
    const box = canvas.getBoundingClientRect();
    const drag = (type, x, y) => canvas.dispatchEvent(new PointerEvent(type,
      { pointerId: 1, clientX: box.left + x, clientY: box.top + y, bubbles: true }));
    canvas.setPointerCapture = () => {};
    drag("pointerdown", 100, 100);
    drag("pointermove", 160, 130);
    drag("pointerup", 160, 130);
    seen.dragged = pixels() !== seen.start;
    byId("map-reset").click();
    byId("map-class").value = "0";
    byId("map-class").dispatchEvent(new Event("change"));
    seen.filtered = pixels() !== seen.start;
    seen.start = seen.start.length;
  }
  seen.color = getComputedStyle(document.body).backgroundColor;
  byId("theme").click();
  byId("theme").click();
  seen.dark = getComputedStyle(document.body).backgroundColor;
  seen.wide = document.documentElement.scrollWidth <= window.innerWidth;
  seen.errors = window.errors;
  const result = document.createElement("pre");
  result.id = "seen";
  result.textContent = JSON.stringify(seen);
  document.body.append(result);
})();
</script>"""


def browser() -> str | None:
    """A Chromium that is installed: on the path, named by CHROMIUM, or Playwright's."""
    named = [os.environ.get("CHROMIUM"), *map(shutil.which, NAMES)]
    of_playwright = sorted(PLAYWRIGHT.glob("chromium*/chrome*/*")) if PLAYWRIGHT.is_dir() else []
    programs = [
        str(path) for path in of_playwright if path.name in ("chrome", "headless_shell", "chrome-headless-shell")
    ]
    return next((program for program in [*named, *programs] if program), None)


@pytest.fixture(scope="module")
def chromium() -> str:
    found = browser()
    if found is None:
        pytest.skip("no Chromium is installed (chromium, google-chrome or Playwright's): pages are not opened")
    return found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    case = digits_case(tmp_path_factory.mktemp("digits"))
    noisy = (case.vectors + np.random.default_rng(0).normal(0, 6, case.vectors.shape)).astype(np.float32)
    run = write_run(folder / "run")
    write_page(folder / "one.html", *case, run=run)
    other = EvaluatedSet(noisy, case.table, evaluate(noisy, case.table))
    write_comparison_page(folder / "two.html", {"plain": EvaluatedSet(*case), "noisy": other})
    return {name: folder / f"{name}.html" for name in ("one", "two")}


def opened(chromium: str, page: Path, folder: Path, width: int) -> tuple[dict[str, Any], str]:
    """What the script saw in a copy of the page, and what the browser wrote to its log."""
    copy = folder / "copy.html"
    source = page.read_text(encoding="utf-8").replace("<style>", LISTEN + "<style>", 1)
    copy.write_text(source.replace("</body>", LOOK + "</body>"), encoding="utf-8")
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    command += [f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900", "--virtual-time-budget=20000"]
    done = subprocess.run([*command, "--dump-dom", copy.as_uri()], capture_output=True, timeout=240, check=False)
    seen = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout.decode(errors="replace"), re.DOTALL)
    log = done.stderr.decode(errors="replace")
    assert seen, log[-2000:]
    return json.loads(unescape(seen[1])), log


@pytest.mark.slow
@pytest.mark.parametrize("width", [1400, 500])
@pytest.mark.parametrize("name", ["one", "two"])
def test_page_works_in_a_browser(chromium: str, pages: dict[str, Path], tmp_path, name: str, width: int) -> None:
    seen, log = opened(chromium, pages[name], tmp_path, width)
    assert seen["errors"] == []
    assert ":CONSOLE" not in log
    assert seen["decoded"] == seen["images"] > 50
    assert seen["viewer"]
    assert seen["next"]
    assert "neighbour 1" in seen["note"]
    assert seen["focusReturns"]
    assert seen["color"] != seen["dark"]
    assert seen["wide"]  # nothing hangs over the edge of the window
    if name == "one":
        assert seen["zoom"] == 1.5
        assert "digit" in seen["said"] or "classes" in seen["said"]
        for what in ("zoomed", "reset", "tip", "dragged", "filtered"):
            assert seen[what], what
