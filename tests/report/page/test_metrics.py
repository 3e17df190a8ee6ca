import re

import numpy as np
import pytest

from tests.report.page.cases import case_of, with_interval
from vicinal.report.page.metrics import bar, metrics_section


@pytest.mark.parametrize(("intervals", "classes", "said"), [(True, 19, 1), (True, 20, 0), (False, 19, 0)])
def test_intervals_of_few_classes_are_said_to_be_too_narrow(intervals: bool, classes: int, said: int) -> None:
    found = case_of(np.eye(2)[[0, 0]], list("aa")).evaluation
    results = with_interval(found) if intervals else found.to_results()
    content = metrics_section(results, classes).content
    assert content.count("The queries are of 19 classes; with fewer than 20 the intervals are too narrow.") == said


def test_bar_is_as_long_as_the_value() -> None:
    drawn = bar(0.25, (0.2, 0.5))
    assert 'class="part" style="width:25.0%"' in drawn
    assert 'class="interval" style="left:20.0%;width:30.0%"' in drawn
    assert "nan" not in bar(float("nan"))


def test_cards_are_the_first_that_is_read() -> None:
    found = case_of(np.eye(2)[[0, 0, 1, 1]], list("aabb")).evaluation
    section = metrics_section(with_interval(found, "mAP", 0.1, 0.3), 20)
    assert [re.search(r"<strong>([^<]+)", card)[1] for card in section.content.split('class="card"')[1:]] == [
        "100.00\N{NO-BREAK SPACE}%"
    ] * 4
    assert section.content.count("10.00 to 30.00\N{NO-BREAK SPACE}%") == 2
    assert "95\N{NO-BREAK SPACE}% intervals" in section.content
    assert "too narrow" not in section.content
    bare = case_of(np.eye(2)[[0, 0]], list("aa")).evaluation.to_results()
    assert "No confidence" in metrics_section(bare, 1).content
