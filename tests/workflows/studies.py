"""Commands of a study without processes: made-up runs, or real ones in this process."""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from vicinal.cli.main import main
from vicinal.data import Table
from vicinal.utils.plain_yaml import load_yaml

Scores = Callable[[dict[str, Any]], list[float]]


def curve(config: dict[str, Any]) -> list[float]:
    """The scores after epochs 1, 2 and 3 of a recipe: best after epoch 2, and with the learning rate 0.01."""
    score = 0.9 - abs(config["optimizer"]["lr"] - 0.01)
    return [score - 0.3, score, score - 0.1]


class MadeUpRun:
    """A process that writes a line of `metrics.csv` whenever it is asked whether it runs."""

    def __init__(self, run: Path, metric: str, scores: list[float], status: int = 0) -> None:
        self.run, self.scores, self.status = run, scores, status
        self.ended: int | None = None
        self.asked: list[str] = []
        run.mkdir(parents=True, exist_ok=True)
        (run / "metrics.csv").write_text(f"step,epoch,{metric}\n0,0,0.95\n")  # the model before training counts not
        self.epoch = 0

    def poll(self) -> int | None:
        if self.ended is None and self.epoch < len(self.scores):
            self.epoch += 1
            with (self.run / "metrics.csv").open("a") as file:
                file.write(f"{self.epoch},{self.epoch},{self.scores[self.epoch - 1]}\n")
        elif self.ended is None:
            self.ended = self.status
            if not self.status:
                (self.run / "model").mkdir(exist_ok=True)
        return self.ended

    def terminate(self) -> None:
        self.asked.append("terminate")
        self.ended = 130

    def kill(self) -> None:
        self.asked.append("kill")
        self.ended = -9

    def wait(self) -> int:
        return self.ended


@dataclass
class MadeUp:
    """Starts made-up runs, which have the scores of their recipe; a ValueError is the message of one that fails."""

    scores: Scores = curve
    started: list[tuple[str, str, Mapping[str, str]]] = field(default_factory=list)  # verb, folder, environment
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    runs: list[MadeUpRun] = field(default_factory=list)
    running: int = 0

    def __call__(
        self, words: Sequence[str], messages: Path, output: Path | None, environment: Mapping[str, str]
    ) -> MadeUpRun:
        if words[0] == "evaluate":
            return self._evaluate(words, output, environment)
        config = load_yaml(Path(words[1]).read_text())
        run = Path(words[words.index("--out") + 1])
        name = "/".join(run.parts[run.parts.index("study") + 1 :])
        self.started.append(("train", name, environment))
        self.configs[name] = config
        try:
            made = MadeUpRun(run, config["validation"]["metric"], self.scores(config))
        except ValueError as error:
            messages.write_text(f"Traceback\nvicinal train: error: {error}\n")
            made = MadeUpRun(run, config["validation"]["metric"], [], status=1)
        self.runs.append(made)
        return made

    def _evaluate(self, words: Sequence[str], output: Path | None, environment: Mapping[str, str]) -> MadeUpRun:
        run = Path(words[1])
        self.started.append(("evaluate", run.name, environment))
        assert words[2:5] == ["--split", "test", "--json"]
        row = {"metric": "recall@1", "label_level": "label", "group": None, "value": self.scores(self._config(run))[1]}
        output.write_text(json.dumps({"results": [row]}))
        return MadeUpRun(run, "recall@1", [])

    def _config(self, run: Path) -> dict[str, Any]:
        return load_yaml(run.with_name(f"{run.name}.yaml").read_text())

    def names(self, verb: str = "train") -> list[str]:
        return [name for each, name, _ in self.started if each == verb]


class InThisProcess:
    """A real command of Vicinal that is over when it has been started."""

    def __init__(self, words: Sequence[str], messages: Path, output: Path | None, environment: Any) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stderr(stack.enter_context(messages.open("a"))))
            out = stack.enter_context((output or messages.with_suffix(".stdout")).open("w"))
            stack.enter_context(contextlib.redirect_stdout(out))
            self.status = main(list(words))

    def poll(self) -> int:
        return self.status

    terminate = kill = wait = poll


def write_table(path: Path, classes: int = 8) -> Path:
    """A table of images that are not there: a quarter of the classes in the split test."""
    rows = [(f"{label}/{number}.png", f"c{label}", "test" if label >= classes * 3 // 4 else "train")
            for label in range(classes) for number in range(4)]  # fmt: skip
    Table(pd.DataFrame(rows, columns=["path", "label", "split"])).save(path)
    return path
