"""`python -m benchmarks.gpu` on the CPU: results are kept and gone on with, whatever a measurement does."""

import sys
import textwrap
import time

import pytest
import torch

from benchmarks import centers, formulas
from benchmarks.gpu import correctness, kernels, losses, two_stage
from benchmarks.gpu.__main__ import PARTS
from benchmarks.gpu.report import TABLES, report
from benchmarks.gpu.rows import Key, Measurement, Rows
from benchmarks.gpu.supervisor import supervise
from benchmarks.gpu.timing import Settings
from benchmarks.gpu.worker import context, work
from benchmarks.steps import batch
from vicinal.losses import CenterContrastiveLoss, ContextualLoss, MultiSimilarityLoss, RecallAtKLoss, SmoothAPLoss

CONTEXT = {"device": "CPU"}
CPU = torch.device("cpu")


def never() -> float:
    return time.time() + 1000


def test_formulas_are_our_losses():
    x, labels = batch(64)
    x, centers = x.detach().double().requires_grad_(), formulas.CenterContrast(20, 512).double()
    of_centers = CenterContrastiveLoss(20, 512, margin=0.1).double()
    of_centers.load_state_dict(centers.state_dict())
    for formula, loss in (
        (formulas.recall_at_k, RecallAtKLoss()),
        (formulas.smooth_ap, SmoothAPLoss()),
        (formulas.multi_similarity, MultiSimilarityLoss()),
        (formulas.contextual, ContextualLoss()),
        (centers, of_centers),
    ):
        value, expected = formula(x, labels), loss(x, labels)
        torch.testing.assert_close(value, expected, msg=lambda text, loss=loss: f"{loss}: {text}")
        torch.testing.assert_close(torch.autograd.grad(value, x), torch.autograd.grad(expected, x))


def out_of_memory():
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 PiB")


def not_installed():
    import not_there  # noqa: F401


def test_each_end_of_a_measurement_is_a_result_and_a_later_run_goes_on(tmp_path):
    calls = []
    runs = {"good": lambda: {"ms": 1.0}, "large": out_of_memory, "wrong": lambda: 1 / 0, "missing": not_installed}

    def measurements(_settings):
        for n in (1, 2):
            for name, run in runs.items():
                key = Key("part", name, "Vicinal", f"n = {n}")
                smaller = key._replace(size="n = 1") if n == 2 else None
                yield Measurement(key, lambda name=name, run=run: calls.append(name) or run(), after=smaller)

    def go_on(until):
        return work(Settings(CPU, tmp_path), ["part"], Rows(tmp_path, CONTEXT), until, lambda part: measurements)

    assert len(go_on(time.time() - 1)) == 8
    assert not calls
    assert go_on(never()) == []
    assert calls == ["good", "large", "wrong", "missing", "good"]
    statuses = {(key.name, key.size): status for key, status in Rows(tmp_path, CONTEXT).statuses().items()}
    assert statuses["large", "n = 1"] == "out of memory"
    assert statuses["large", "n = 2"] == "left out, as at n = 1"
    assert statuses["wrong", "n = 1"] == "failed: ZeroDivisionError: division by zero"
    assert statuses["missing", "n = 1"] == "left out: not_there is not installed"
    written = (tmp_path / "rows.jsonl").read_text()
    assert go_on(never()) == []
    assert calls[5:] == ["missing"]  # it might have been installed
    assert (tmp_path / "rows.jsonl").read_text() == written
    assert Rows(tmp_path, {"device": "another"}).statuses() == {}


WORKER = """
    import os, sys, time
    from pathlib import Path
    from benchmarks.gpu.rows import Key, Measurement, Rows

    rows = Rows(Path(sys.argv[1]), {"device": "CPU"})
    for name in ("good", "crash", "hang", "device breaks", "last"):
        measurement = Measurement(Key("part", name, "", ""), None, limit=0.3 if name == "hang" else 60)
        if measurement.key in rows.statuses():
            continue
        rows.mark(measurement)
        if name == "crash":
            os.abort()
        if name == "hang":
            time.sleep(100)
        rows.append(measurement.key, "ok", {})
        rows.unmark()
        if name == "device breaks":
            sys.exit(75)
"""


def test_a_measurement_that_crashes_or_hangs_costs_nothing_but_itself(tmp_path):
    program, rows = tmp_path / "worker.py", Rows(tmp_path, CONTEXT)
    program.write_text(textwrap.dedent(WORKER))
    command = [sys.executable, str(program), str(tmp_path)]
    assert supervise(command, rows, never(), poll=0.02) == 0
    assert {key.name: status for key, status in rows.statuses().items()} == {
        "good": "ok",
        "crash": "ended its process with status -6",
        "hang": "took longer than 0 s",
        "device breaks": "ok",
        "last": "ok",
    }
    program.write_text("raise SystemExit(3)")
    assert supervise(command, rows, never(), poll=0.02) == 3
    program.write_text("import time; time.sleep(100)")
    assert supervise(command, rows, time.time(), grace=0.1, poll=0.02) == 0


@pytest.mark.slow
def test_every_part_runs_on_a_cpu_and_has_its_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "OPERATIONS", [kernels.OPERATIONS[0], kernels.OPERATIONS[-1]])
    monkeypatch.setattr(losses, "PAIRS", {name: losses.PAIRS[name] for name in ("RS@k", "contrastive")})
    monkeypatch.setattr(centers, "OURS", {"CCL": centers.OURS["CCL"]})
    monkeypatch.setattr(two_stage, "LOSSES", {"RS@k": RecallAtKLoss})
    monkeypatch.setattr(correctness, "SMALL_KERNEL_SIZES", correctness.KERNEL_SIZES[1:2])
    settings, rows = Settings(CPU, tmp_path, small=True), Rows(tmp_path, context(CPU))
    assert work(settings, PARTS, rows, never()) == []
    statuses = rows.statuses()
    assert {key.part for key in statuses} == set(PARTS) == set(TABLES)
    assert set(statuses.values()) == {"ok"}
    checks = [row for row in rows.read() if row["part"] == "correctness"]
    assert [row["name"] for row in checks if not row["numbers"]["passed"]] == []
    assert (tmp_path / "trace.json.gz").stat().st_size > 1000
    text, written = report(rows.read()), rows.file.read_text()
    for title in ("Correctness", "Kernels", "Losses, n = 64", "A step of ViT", "Where the time", "Evaluation"):
        assert f"\n### {title}" in text
    assert "\n| RS@k | " in text
    assert work(settings, PARTS, rows, never()) == []
    assert rows.file.read_text() == written
