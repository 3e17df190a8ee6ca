"""Parallel coordinates: an axis per setting and one for the score, a line per trial."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from vicinal.report.page.charts import ticks
from vicinal.report.page.markup import Markup, element, joined
from vicinal.report.study_trial import StudyTrial, shown_value

SPACING, HEIGHT, TOP, BOTTOM, MARGIN = 150, 320, 46, 300, 70  # of the axes; MARGIN is left and right of them
MAX_NAME = 22  # characters
MAX_CHOICES = 4  # numbers that are shown at equal distances


class Axis(NamedTuple):
    """An axis of the chart.

    Attributes:
        name: what it shows.
        ends: the lowest and the highest place, in numbers or logarithms; of choices, in their order.
        choices: as texts, of an axis without numbers.
        is_log: whether places are logarithms.
    """

    name: str
    ends: tuple[float, float]
    choices: tuple[str, ...] = ()
    is_log: bool = False

    @classmethod
    def of(cls, name: str, values: Sequence[Any], is_log: bool = False, max_choices: int = 0) -> Axis:
        """The axis of some values: numbers, or their logarithms; or choices, as which a few numbers are shown too.

        Example:
            >>> Axis.of("lr", [1e-5, 1e-2], is_log=True).ends, Axis.of("loss", ["A", "B", "A"]).choices
            ((-5.0, -2.0), ('"A"', '"B"'))
        """
        are_numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        texts = {_text(value): value for value in values}
        if not are_numbers or len(texts) <= max_choices:
            choices = tuple(sorted(texts, key=texts.__getitem__ if are_numbers else None))
            return cls(name, (0, max(len(choices) - 1, 1)), choices)
        low, high = min(values), max(values)
        if is_log:
            low, high = math.log10(low), math.log10(high)
        return cls(name, (low, high) if low < high else (low - 0.5, high + 0.5), is_log=is_log)

    def height(self, value: Any) -> float:
        """The coordinate of a value."""
        number = self.choices.index(_text(value)) if self.choices else math.log10(value) if self.is_log else value
        low, high = self.ends
        return BOTTOM - (number - low) / (high - low) * (BOTTOM - TOP)

    def labels(self) -> list[tuple[str, float]]:
        """The text and the coordinate of each tick."""
        if self.choices:
            return [(_short(shown_value(value)), self.height(value)) for value in map(json.loads, self.choices)]
        low, high = self.ends
        if not self.is_log:
            return [(f"{value:g}", self.height(value)) for value in ticks(low, high)]
        steps = [factor * 10.0**power for power in range(math.floor(low), math.ceil(high)) for factor in (1, 2, 5)]
        marked = [
            value for value in (*steps, 10.0 ** math.ceil(high)) if low - 1e-9 <= math.log10(value) <= high + 1e-9
        ]
        return [(f"{value:g}", self.height(value)) for value in marked]


def parallel_coordinates(
    trials: Sequence[StudyTrial], metric: str, best: int, log_keys: Collection[str] = ()
) -> Markup | None:
    """A line per trial that has a score, the better the stronger; that of the best one is thick.

    Args:
        trials: those with other settings or without a score are left out.
        metric: the name of the score.
        best: the number of the best trial.
        log_keys: the settings whose axes are logarithmic.

    Returns:
        The chart; None if fewer than two trials have a score.
    """
    drawn = [trial for trial in trials if trial.score is not None and trial.values]
    drawn = [trial for trial in drawn if set(trial.values) == set(drawn[0].values)]
    if len(drawn) < 2:
        return None
    keys = list(drawn[0].values)
    axes = [Axis.of(key, [trial.values[key] for trial in drawn], key in log_keys, MAX_CHOICES) for key in keys]
    axes.append(Axis.of(metric, [float(trial.score or 0.0) for trial in drawn]))
    drawn.sort(key=lambda trial: (trial.number == best, trial.state == "complete", trial.score))
    lines = [_line(trial, [*(trial.values[key] for key in keys), trial.score], axes, best) for trial in drawn]
    width = 2 * MARGIN + SPACING * (len(axes) - 1)
    shapes = [*lines, *(_axis(axis, MARGIN + SPACING * at, at == len(keys)) for at, axis in enumerate(axes))]
    text = f"Settings and {metric} of {len(drawn)} trials; the table below has the numbers."
    chart = element(
        "svg",
        *shapes,
        viewBox=f"0 0 {width} {HEIGHT}",
        width=width,
        role="img",
        aria_label=text,
        class_="chart parallel",
    )
    return element("div", chart, class_="scroll", tabindex="0", role="group", aria_label="Parallel coordinates")


def _line(trial: StudyTrial, values: Sequence[Any], axes: Sequence[Axis], best: int) -> Markup:
    heights = [axis.height(value) for axis, value in zip(axes, values, strict=True)]
    score = (heights[-1] - BOTTOM) / (TOP - BOTTOM)
    settings = ", ".join(f"{key} {_text(value)}" for key, value in trial.values.items())
    title = element("title", f"trial {trial.number}, {trial.state}: {axes[-1].name} {trial.score:.4f}; {settings}")
    kind = "trial best" if trial.number == best else "trial" if trial.state == "complete" else "trial pruned"
    points = " ".join(f"{MARGIN + SPACING * at},{height:.1f}" for at, height in enumerate(heights))
    return element("path", title, d=f"M{points}", class_=kind, style=f"--score: {score:.3f}")


def _axis(axis: Axis, x: int, is_last: bool) -> Markup:
    """An axis at a coordinate; the ticks of the last one are on its right."""
    side, kind = (1, "tick y end") if is_last else (-1, "tick y")
    parts = [
        element("line", x1=x, x2=x, y1=TOP, y2=BOTTOM, class_="axis"),
        element("text", _short(axis.name), element("title", axis.name), x=x, y=TOP - 18, class_="name"),
    ]
    for text, y in axis.labels():
        parts.append(element("line", x1=x, x2=x + 4 * side, y1=f"{y:.1f}", y2=f"{y:.1f}", class_="axis"))
        parts.append(element("text", text, x=x + 8 * side, y=f"{y:.1f}", class_=kind))
    return element("g", joined(parts), aria_hidden="true")


def _text(value: Any) -> str:
    return json.dumps(value)


def _short(text: str) -> str:
    text = text.strip('"')
    return text if len(text) <= MAX_NAME else "…" + text[1 - MAX_NAME :]
