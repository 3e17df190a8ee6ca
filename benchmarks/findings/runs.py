"""The runs of a question: each method is tuned by `vicinal tune` on validation classes, then trained with each seed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.findings.imagenet import ImageNet
from benchmarks.findings.processes import fork_process
from benchmarks.findings.question import Question, Settings
from benchmarks.glyphs import glyphs
from benchmarks.pretrained import DATASETS, Comparison
from vicinal.data.benchmarks.cache import TABLE
from vicinal.utils.files import write_bytes
from vicinal.utils.run_folder import RunFolder
from vicinal.workflows.settings import TuneSettings
from vicinal.workflows.tuning.runs import reason
from vicinal.workflows.tuning.study_recipe import override
from vicinal.workflows.tuning.tune import tune

SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Run:
    """One training run.

    Args:
        method: its name.
        condition: its name; empty if there is one only.
        seed: of the run.
    """

    method: str
    condition: str
    seed: int


class Runs:
    """The runs of one question in a folder.

    Args:
        question: the question to answer.
        root: folder of the files of the dataset.
        out: folder of all questions.
    """

    def __init__(self, question: Question, root: str, out: Path) -> None:
        self.question, self.out = question, out
        self.start = (Comparison if question.dataset in DATASETS else ImageNet)(question.dataset, root, out)
        self._fixed = [*self.start.words, "--accelerator=cpu"]

    def of(self, method: str, condition: str) -> list[RunFolder]:
        """The finished runs of a method."""
        folders = [self.folder(Run(method, condition, seed)) for seed in SEEDS]
        return [each for each in folders if each.model.exists()]

    def has(self, method: str) -> bool:
        """Whether a method has a finished run under each condition."""
        return all(self.of(method, condition) for condition in self.question.conditions)

    def folder(self, run: Run) -> RunFolder:
        """Where a run is."""
        name = _file_name(run.method, run.condition, str(run.seed))
        return RunFolder(self.out / self.question.folder / name)

    def make(self, jobs: int) -> None:
        """Train the missing models."""
        self.start.pretrain()
        for method in self.question.methods:
            tuner, name = self._tuner(method)
            tuner._tune(name, jobs)
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(self._train, self._missing()))

    def tuned(self, method: str) -> Settings:
        """The best settings found for a method; those found by another question where it says so."""
        tuner, name = self._tuner(method)
        path = tuner._tuned_file(name)
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def _tuner(self, method: str) -> tuple[Runs, str]:
        """The runs of the question that tunes a method, this one or another, and the name of the method there."""
        tuned_as = self.question.methods[method].tuned_as
        if tuned_as is None:
            return self, method
        question, _, name = tuned_as.partition("/")
        return Runs(Question.read(question, self.question.dataset), self.start.root, self.out), name or method

    def _tune(self, method: str, jobs: int) -> None:
        search, path = self.question.methods[method].search, self._tuned_file(method)
        if not search or path.exists():
            return
        words = [
            *self._words(self._settings(method)),
            *(override(f"search.{key}", each) for key, each in search.items()),
        ]
        options = TuneSettings(self.question.trials, "sobol", held_out="val", jobs=jobs)
        study = self.out / self.question.folder / _file_name(method, "tuning")
        result = tune(self.question.regime, study, options, words, start=fork_process)
        assert result.best_trial is not None
        found = {**result.best_trial.values}
        write_bytes(path, json.dumps(found).encode())
        print(f"{self.question.folder}, {method}: {found}, {result.best_trial.score}", file=sys.stderr, flush=True)

    def _tuned_file(self, method: str) -> Path:
        return self.out / self.question.folder / f"{_file_name(method)}.json"

    def _missing(self) -> Iterator[Run]:
        for seed in SEEDS:
            for condition in self.question.conditions:
                for method in self.question.methods:
                    run = Run(method, condition, seed)
                    if not self.folder(run).model.exists():
                        yield run

    def _train(self, run: Run) -> None:
        folder = self.folder(run)
        settings = {**self._settings(run.method), **self.tuned(run.method), **self.question.conditions[run.condition]}
        words = [
            "train",
            str(self.question.regime),
            "--out",
            str(folder.path),
            f"--seed={run.seed}",
            *self._words(settings),
        ]
        if folder.recipe.exists():
            words.append("--resume")
        messages = folder.path.with_name(f"{folder.path.name}.log")
        status = fork_process(words, messages, None, {}).wait()
        print(f"{folder.path}: {reason(messages, status) if status else 'done'}", file=sys.stderr, flush=True)
        for path in (folder.last, folder.best):
            path.unlink(missing_ok=True)

    def _settings(self, method: str) -> Settings:
        settings = {**self.question.settings, **self.question.methods[method].settings}
        return {**self.start.settings_of(settings.get("loss")), **settings}

    def _words(self, settings: Settings) -> list[str]:
        return [*self._fixed, *(override(key, _source(value)) for key, value in settings.items())]


def _source(value: Any) -> Any:
    """The value of a setting; rendered characters are drawn once and named by their table."""
    return str(Path(glyphs().paths[0]).parents[2] / TABLE) if value == "glyphs" else value


def _file_name(*parts: str) -> str:
    words = "-".join(part for part in parts if part)
    return "".join(each if each.isalnum() or each in "@.+" else "-" for each in words)
