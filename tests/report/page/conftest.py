"""A tab of a headless Chromium, for all tests of a module."""

from collections.abc import Iterator

import pytest

from tests.report.page.browser import Browser, browser, chromium


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = chromium()
    if program is None:
        pytest.skip("no Chromium is installed (chromium, google-chrome or Playwright's): pages are not opened")
    with browser(program, tmp_path_factory.mktemp("browser")) as opened:
        yield opened
