"""The page about a search: what it shows of trials of every kind, and that nothing in them becomes markup."""

import re
from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution

from tests.report.page.browser import Browser
from vicinal.report import StudyTrial, write_study_page

EVIL = "<script>alert(1)</script>"
TRIALS = [
    StudyTrial(0, "complete", {"optimizer.lr": 1e-4, "loss": "MarginLoss"}, 0.5, 3),
    StudyTrial(1, "ended early", {"optimizer.lr": 1e-3, "loss": "TripletLoss"}, 0.25, 1),
    StudyTrial(2, "failed", {"optimizer.lr": 1e-2, "loss": "MarginLoss"}, reason=f"CUDA out of memory {EVIL}"),
    StudyTrial(3, "complete", {"optimizer.lr": 3e-4, "loss": "MarginLoss"}, 0.75, 2, (0.75, 0.7)),
    StudyTrial(4, "running", {"optimizer.lr": 3e-4}),
]


@pytest.fixture(scope="module")
def study() -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize")
    space = {"optimizer.lr": FloatDistribution(1e-5, 1, log=True), "loss": CategoricalDistribution(["$a", EVIL])}
    for score, rate, loss in ((0.5, 1e-4, "$a"), (0.75, 3e-4, EVIL)):
        params = {"optimizer.lr": rate, "loss": loss}
        study.add_trial(optuna.create_trial(params=params, distributions=space, value=score))
    return study


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, study: optuna.Study) -> Path:
    path = tmp_path_factory.mktemp("study") / "report.html"
    write_study_page(
        path, TRIALS, metric="recall@1", best=3, recipe=f"data: {{source: {EVIL}}}\n",
        importances={"optimizer.lr": 0.75, "loss": 0.25}, test={"recall@1": 0.6}, study=study, title=EVIL,
    )  # fmt: skip
    return path


def test_a_page_has_all_trials_the_best_one_first(page: Path) -> None:
    text = page.read_text()
    assert "5 trials: 2 complete, 1 ended early, 1 failed, 1 running" in text
    rows = re.findall(r'<tr><th scope="row">(\d)</th>', text.partition('id="trials"')[2])
    assert rows == ["3", "0", "1", "2", "4"]
    assert "failed: CUDA out of memory &lt;script" in text
    assert "72.50 ± 3.54 %" in text
    assert text.count(EVIL) == 0
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text


def test_the_plots_of_optuna_have_the_colors_of_the_page(page: Path) -> None:
    plots = re.findall(r'<svg [^>]*class="chart".*?</svg>', page.read_text(), re.DOTALL)
    assert len(plots) == 2
    for text in re.findall(r"<text style=\"([^\"]*)", "".join(plots)):
        assert "fill: var(--ink)" in text
    assert all(f">{name}<" in plots[0] for name in ("optimizer.lr", "loss", "recall@1"))


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1400, 400])
def test_a_browser_shows_it_without_an_error_or_a_request(page: Path, tab: Browser, width: int, dark: bool) -> None:
    tab.open(page, width=width, dark=dark)
    assert not tab.errors
    assert tab.requests == [page.as_uri()]
    assert tab.ask("document.documentElement.scrollWidth <= window.innerWidth")
