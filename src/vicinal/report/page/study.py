"""The page about a search for settings: the best recipe, the importance of the settings, and all trials."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vicinal.report.page.charts import INK, PALE, style, svg
from vicinal.report.page.markup import (
    Markup,
    Section,
    document,
    element,
    facts,
    note,
    percent,
    section,
    table,
    tall,
    without_home,
)
from vicinal.report.page.metrics import bar, named
from vicinal.utils.files import write_bytes

if TYPE_CHECKING:
    from optuna import Study

State = Literal["complete", "ended early", "failed", "running"]
STATES = ("complete", "ended early", "failed", "running")


@dataclass(frozen=True)
class StudyTrial:
    """A trial of a search for settings.

    Args:
        number: of the trial, from 0.
        state: how it ended.
        values: its settings, by their keys in the recipe.
        score: the best validation score; None without one.
        epoch: number of epochs after which it was reached.
        seed_scores: the best score with each seed, if it was trained with several.
        reason: why it failed.
    """

    number: int
    state: State
    values: Mapping[str, Any] = field(default_factory=dict)
    score: float | None = None
    epoch: int | None = None
    seed_scores: tuple[float, ...] = ()
    reason: str = ""


def shown_value(value: Any) -> str:
    """A value of a setting, with four digits at most of a number."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)


def write_study_page(
    path: str | Path,
    trials: Sequence[StudyTrial],
    *,
    metric: str,
    best: int | None = None,
    recipe: str | None = None,
    importances: Mapping[str, float] | None = None,
    test: Mapping[str, float] | None = None,
    study: Any = None,
    title: str = "Search",
) -> None:
    """Write a page about a search for settings.

    It has the best trial with its recipe, the metrics on the test split if it was evaluated, parallel coordinates, the
    importance of each setting, the best score over the trials, and a table of all trials. It loads nothing.

    Args:
        path: the file; it is replaced as a whole.
        trials: all trials.
        metric: the name of their scores.
        best: the number of the best trial; None: none has a score.
        recipe: the best recipe, as YAML.
        importances: the importance of each setting for the score; the sum is 1.
        test: the metrics on the test split, by name.
        study: the `optuna.Study` of the trials, two of them with a score, of which it draws the plots; None: without.
        title: of the page.

    Raises:
        OSError: the file cannot be written.

    Example:
        >>> import tempfile
        >>> trials = [StudyTrial(0, "complete", {"optimizer.lr": 0.1}, 0.5, 3)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_study_page(f"{folder}/report.html", trials, metric="recall@1", best=0)
        ...     Path(f"{folder}/report.html").read_text(encoding="utf-8")[:15]
        '<!doctype html>'
    """
    by_number = {trial.number: trial for trial in trials}
    groups: dict[str, list[Section | None]] = {
        "Result": [_best_section(by_number.get(-1 if best is None else best), metric), _test_section(test)],
        "Search": [
            None if study is None else _settings_section(study, metric),
            _importances_section(importances),
            None if study is None else _history_section(study, metric),
        ],
        "Details": [_trials_section(trials, metric, best), _recipe_section(recipe)],
    }
    write_bytes(path, document(without_home(title), states_text(trials), groups, {"map": None, "images": []}))


def states_text(trials: Sequence[StudyTrial]) -> str:
    """The number of trials, and of those in each state."""
    counts = [f"{number} {state}" for state in STATES if (number := sum(each.state == state for each in trials))]
    return f"{len(trials)} trials: {', '.join(counts)}"


def _best_section(best: StudyTrial | None, metric: str) -> Section | None:
    if best is None or best.score is None:
        return None
    scores = [("trial", best.number), (metric, percent(best.score)), ("after epoch", best.epoch)]
    if len(best.seed_scores) > 1:
        scores.append((f"of {len(best.seed_scores)} seeds", _spread(best.seed_scores)))
    values = [(key, shown_value(value)) for key, value in best.values.items()]
    lead = "The settings with the best score on training classes that were held out."
    return section("best", "Best trial", lead, facts(scores), facts(values))


def _test_section(test: Mapping[str, float] | None) -> Section | None:
    if test is None:
        return None
    lines = [[named(name), percent(value), bar(value)] for name, value in test.items()]
    lead = "The model that was trained on all training classes, evaluated on the test split once."
    metrics = table("Metrics on the test split", ["metric", "value", "from 0 to 100 %"], lines, (1,))
    return section("test", "Test", lead, metrics)


def _settings_section(study: Study, metric: str) -> Section:
    lead = "One line per completed trial, through its score and its settings."
    chart = _plot("plot_parallel_coordinate", study, metric, f"{lead} The table below has the numbers.")
    return section("settings", "Settings and scores", lead, chart)


def _history_section(study: Study, metric: str) -> Section:
    lead = "The score of each trial and the best score so far; where that still rises, more trials may help."
    return section("history", "History", lead, _plot("plot_optimization_history", study, metric, lead))


def _plot(name: str, study: Study, metric: str, description: str) -> Markup:
    import optuna.visualization.matplotlib as plots
    from matplotlib import pyplot
    from matplotlib.text import Text

    with style(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls its plots experimental
        drawn = getattr(plots, name)(study, target_name=metric).figure
        drawn.set_size_inches(8.5, 4.2)
        for axes in drawn.axes:
            if axes.get_label() == "<colorbar>":
                axes.remove()
                continue
            axes.set(facecolor="none", title="")
            if axes.get_legend() is not None:
                axes.get_legend().set_frame_on(False)
            axes.grid(False)
            axes.tick_params(color=PALE)
            if axes.get_yscale() == "log":
                axes.yaxis.set_major_formatter("{x:g}")
        for text in drawn.findobj(Text):
            text.set_color(INK)
        chart = svg(drawn, description)
        pyplot.close(drawn)
    return element("div", chart, class_="scroll", tabindex="0", role="group", aria_label=description)


def _importances_section(importances: Mapping[str, float] | None) -> Section | None:
    if not importances:
        return None
    lines = [[key, percent(value), bar(value)] for key, value in importances.items()]
    lead = "The fraction of the variance of scores that each setting explains, by fANOVA (Hutter et al., ICML 2014)."
    caption = table("Importance of the settings", ["setting", "importance", "from 0 to 100 %"], lines, (1,))
    return section("importance", "Importance", lead, caption, note("It says little with few trials."))


def _trials_section(trials: Sequence[StudyTrial], metric: str, best: int | None) -> Section:
    keys = list(dict.fromkeys(key for trial in trials for key in trial.values))
    has_seeds = any(len(trial.seed_scores) > 1 for trial in trials)
    columns = ["trial", "", metric, "epoch", *(["seeds"] if has_seeds else []), *keys]
    lines = []
    for trial in sorted(trials, key=lambda each: (each.number != best, -(each.score or 0.0), each.number)):
        score = "–" if trial.score is None else percent(trial.score)
        state = f"failed: {trial.reason}" if trial.state == "failed" else _unbroken(trial.state)
        seeds = [_spread(trial.seed_scores)] if has_seeds else []
        values = [_unbroken(shown_value(trial.values[key])) if key in trial.values else "–" for key in keys]
        lines.append([trial.number, state, score, trial.epoch or "–", *seeds, *values])
    numbers = range(2, len(columns) - len(keys))
    return section("trials", "All trials", "Best first.", tall(table("Settings and scores", columns, lines, numbers)))


def _unbroken(text: str) -> Markup:
    return element("span", text, class_="unbroken")


def _recipe_section(recipe: str | None) -> Section | None:
    if recipe is None:
        return None
    text = element("pre", element("code", without_home(recipe)), tabindex="0", role="group", aria_label="The recipe")
    lead = "Every setting of the best trial, as vicinal train takes it: best.yaml. It ends after the best epoch."
    return section("recipe", "Best recipe", lead, text)


def _spread(scores: Sequence[float]) -> str:
    if len(scores) < 2:
        return "–"
    return f"{100 * np.mean(scores):.2f} ± {100 * np.std(scores, ddof=1):.2f} %"
