"""What a parity report says, and when an export is refused."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tests.refusals import refused_call
from vicinal.data import Table
from vicinal.export import Differences, ExportSettings, ParityReport
from vicinal.export.parity import compare
from vicinal.workflows.export import some_classes

RNG = np.random.default_rng(0)
TABLE = Table(pd.DataFrame({"label": np.repeat(np.arange(30), 4)}))
BEFORE = RNG.normal(size=(120, 16)).astype(np.float32) + np.repeat(RNG.normal(size=(30, 16)), 4, axis=0)
BEFORE = (BEFORE / np.linalg.norm(BEFORE, axis=1, keepdims=True)).astype(np.float32)
WORSE = (BEFORE + RNG.normal(scale=0.2, size=BEFORE.shape)).astype(np.float32)
WORSE /= np.linalg.norm(WORSE, axis=1, keepdims=True)


def report(after: np.ndarray, settings: ExportSettings, is_refined: bool = False) -> ParityReport:
    found = Differences.of(BEFORE, after), compare(BEFORE, after, TABLE, seed=0)
    sizes, speeds = {"before": 2_000_000, "after": 500_000}, {"before": 50.0, "after": 100.0}
    machine = {"processor": "cpu", "threads": 1, "versions": "torch 2"}
    return ParityReport(settings, "fingerprint", "resnet50", "images", *found, sizes, speeds, machine, is_refined)


def test_differences_are_those_of_the_vectors() -> None:
    found = Differences.of(BEFORE, WORSE)
    assert found.largest == pytest.approx(np.abs(BEFORE - WORSE).max(), rel=1e-6)
    assert found.mean == pytest.approx(np.abs(BEFORE - WORSE).mean(), rel=1e-5)
    assert found.smallest_cosine == pytest.approx((BEFORE * WORSE).sum(axis=1).min(), rel=1e-5)
    assert found.mean < found.percentile_99 < found.largest


def test_a_loss_of_metrics_beyond_the_tolerance_is_refused() -> None:
    settings = ExportSettings(precision="int8", tolerance=0.01)
    worse = report(WORSE, settings)
    loss = worse.losses["mAP@R"]
    assert loss > 0.02
    refused_call(r"the export in int8 loses [\d.]+ points of .*tolerance 1; nothing was", worse.check)
    replace(worse, settings=replace(settings, tolerance=max(worse.losses.values()))).check()
    report(BEFORE, settings).check()


def test_vectors_that_differ_are_refused_in_float32() -> None:
    one_off = BEFORE.copy()
    one_off[0, 0] += 0.001
    refused_call(r"differ by up to 0\.001 .*more than the tolerance 0\.0001", report(one_off, ExportSettings()).check)
    report(one_off, ExportSettings(), is_refined=True).check()  # rounding may exchange two neighbors of an image
    one_off[0, 0] = np.nan
    refused_call("not finite", report(one_off, ExportSettings(precision="fp16")).check)


def test_only_whole_classes_are_checked() -> None:
    few = some_classes(TABLE, 50, seed=1)
    assert len(few) == 48
    assert set(few.class_counts) == {4}
    assert few.classes != some_classes(TABLE, 50, seed=2).classes
    assert some_classes(TABLE, 120, seed=1) is TABLE
    assert len(some_classes(TABLE, 3, seed=1)) == 3  # no class fits
