from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from PIL import Image

from examples.figures import contextual_progress
from examples.figures.contextual_progress import Progress, loss_against_error, loss_and_error, train_against_test
from vicinal.utils.errors import InputError

LOG = pd.DataFrame({"step": [5, 10, 15, 20], "loss": [4.0, 3.0, 2.0, 1.0], "ContextualLoss": [0.4, 0.2, 0.2, 0.0]})
METRICS = pd.DataFrame({"step": [0, 10, 20, 22], "epoch": [0, 1, 2, 3], "mAP": [0.1, 0.5, 0.75, 0.8]})


def test_loss_and_error_of_a_run() -> None:
    """The loss since the last evaluation; those without one, such as that before training, are left out."""
    assert loss_and_error(LOG, METRICS) == Progress([3.5, 1.5], [0.5, 0.25])
    assert loss_and_error(LOG, METRICS, "ContextualLoss").x == pytest.approx([0.3, 0.1])


def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Axes]:
    """The panels that are drawn from now on, by the name beside each panel."""
    panels: dict[str, Axes] = {}
    monkeypatch.setattr(contextual_progress, "tidy", lambda axes, name: panels.update({name: axes}))
    return panels


def test_progress_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {"first": Progress([0.3, 0.2, 0.1], [0.9, 0.6, 0.5]), "second": Progress((0.5,), (0.25,))}
    for draw, name, factor in (
        (loss_against_error, "1 - mAP", 1),
        (train_against_test, "recall@1 of test images (%)", 100),
    ):
        panels = drawn(monkeypatch)
        draw(runs, tmp_path / "course.png")
        line, start, end, *others = panels[name].lines
        assert line.get_label() == "first"
        np.testing.assert_allclose(line.get_xdata(), factor * np.array([0.3, 0.2, 0.1]))
        np.testing.assert_allclose(line.get_ydata(), factor * np.array([0.9, 0.6, 0.5]))
        assert (start.get_marker(), end.get_marker()) == ("o", "*")
        assert end.get_xdata()[0] == pytest.approx(0.1 * factor)
        assert len(others) == 3
        assert Image.open(tmp_path / "course.png").size == (780, 570)


def test_run_folders_are_drawn(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        LOG.to_csv(tmp_path / name / "log.csv", index=False)
        METRICS.to_csv(tmp_path / name / "metrics.csv", index=False)
    contextual_progress.main([str(tmp_path / "a"), str(tmp_path / "b")], str(tmp_path / "loss.png"), "ContextualLoss")
    assert Image.open(tmp_path / "loss.png").size == (780, 570)
    (tmp_path / "a" / "metrics.csv").unlink()
    with pytest.raises(InputError, match="metrics has no column 'mAP'"):
        contextual_progress.main([str(tmp_path / "a")], str(tmp_path / "loss.png"))
