"""The page about a search: what it shows of trials of every kind, and that nothing in them becomes markup."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.report.page.browser import Browser, browser, chromium
from vicinal.report.page.parallel import Axis, parallel_coordinates
from vicinal.report.page.study import write_study_page
from vicinal.report.study_trial import StudyTrial

EVIL = "<script>alert(1)</script>"
TRIALS = [
    StudyTrial(0, "complete", {"optimizer.lr": 1e-4, "loss": "MarginLoss"}, 0.5, 3),
    StudyTrial(1, "ended early", {"optimizer.lr": 1e-3, "loss": "TripletLoss"}, 0.25, 1),
    StudyTrial(2, "failed", {"optimizer.lr": 1e-2, "loss": "MarginLoss"}, reason=f"CUDA out of memory {EVIL}"),
    StudyTrial(3, "complete", {"optimizer.lr": 3e-4, "loss": "MarginLoss"}, 0.75, 2, (0.75, 0.7)),
    StudyTrial(4, "running", {"optimizer.lr": 3e-4}),
]


@pytest.fixture
def page(tmp_path: Path) -> Path:
    write_study_page(
        tmp_path / "report.html", TRIALS, metric="recall@1", best=3, recipe=f"data: {{source: {EVIL}}}\n",
        importances={"optimizer.lr": 0.75, "loss": 0.25}, test={"recall@1": 0.6}, log_keys=["optimizer.lr"], title=EVIL,
    )  # fmt: skip
    return tmp_path / "report.html"


def test_a_page_has_all_trials_the_best_one_first(page: Path) -> None:
    text = page.read_text()
    assert "5 trials: 2 complete, 1 ended early, 1 failed, 1 running" in text
    rows = re.findall(r'<tr><th scope="row">(\d)</th>', text.partition('id="trials"')[2])
    assert rows == ["3", "0", "1", "2", "4"]
    assert "failed: CUDA out of memory &lt;script" in text
    assert "72.50 ± 3.54 %" in text
    assert text.count(EVIL) == 0
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text


def test_a_page_without_scores(tmp_path: Path) -> None:
    write_study_page(tmp_path / "report.html", TRIALS[2:3], metric="recall@1")
    text = (tmp_path / "report.html").read_text()
    assert 'id="trials"' in text
    for name in ("best", "test", "settings", "importance", "course", "recipe"):
        assert f'<section id="{name}"' not in text


def test_parallel_coordinates_place_the_values() -> None:
    chart = parallel_coordinates(TRIALS, "recall@1", best=3, log_keys=["optimizer.lr"])
    assert chart is not None
    lines = re.findall(r'<path d="M([^"]*)" class="([^"]*)"', chart)
    assert [kind for _, kind in lines] == ["trial pruned", "trial", "trial best"]  # the best one is on top
    first, second, best = ([float(point.split(",")[1]) for point in points.split()] for points, _ in lines)
    assert second[0] > best[0] > first[0]  # lower learning rates are lower on the page
    assert (second[1], best[1]) == (second[1], second[1]) != (first[1], first[1])
    assert first[2] > second[2] > best[2]
    assert parallel_coordinates(TRIALS[2:4], "recall@1", best=3) is None


def test_axes() -> None:
    axis = Axis.of("lr", [1e-4, 1e-3, 1e-2], is_log=True)
    assert axis.height(1e-3) == pytest.approx((axis.height(1e-4) + axis.height(1e-2)) / 2)
    assert [text for text, _ in axis.labels()][::3] == ["0.0001", "0.001", "0.01"]
    assert Axis.of("batch_size", [256, 64, 128, 64], max_choices=4).choices == ("64", "128", "256")
    assert Axis.of("steps", [[1, 2], None, True]).labels()[0][0] == "[1, 2]"
    assert Axis.of("same", [3.0, 3.0]).ends == (2.5, 3.5)


def check_shown(tab: Browser, page: Path, width: int, dark: bool) -> None:
    tab.open(page, width=width, dark=dark)
    assert not tab.errors
    assert tab.requests == [page.as_uri()]
    assert tab.ask("document.documentElement.scrollWidth <= window.innerWidth")
    colors = tab.ask("[...document.querySelectorAll('.trial')].map((line) => getComputedStyle(line).stroke)")
    assert len(set(colors)) == 3


@pytest.mark.skipif(chromium() is None, reason="no Chromium is installed")
def test_a_browser_shows_it_without_an_error_or_a_request(page: Path, tmp_path: Path) -> None:
    program = chromium()
    assert program is not None
    with browser(program, tmp_path) as tab:
        for width in (1400, 400):
            for dark in (False, True):
                check_shown(tab, page, width, dark)
