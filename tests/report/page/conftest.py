"""A tab of a headless Chromium; an evaluated set, and the page of it with a run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.report.page.browser import Browser, browser, chromium
from tests.report.page.cases import Case, digits_case, with_interval, write_run
from vicinal.report import write_page


@pytest.fixture(scope="session")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = chromium()
    if program is None:
        pytest.skip("no Chromium is installed (chromium, google-chrome or Playwright's): pages are not opened")
    with browser(program, tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return digits_case(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="session")
def written(digits: Case, run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(path, *digits, run=run, results=with_interval(digits.evaluation), map_images=60)
    return path
