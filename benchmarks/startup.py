"""CPU time and memory of starts: what the command and the library cost before they do any work.

    python -m benchmarks.startup --rounds 7

Every start is a fresh process. CPU time is that of the process, user and system together, as the operating system
counts it, so that waiting for a disk or for another process does not count. Memory is the largest resident set. This
program imports nothing heavy: the resident set of a parent counts as that of its children.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

BASE = "import torch"
COMMAND = "import sys; from vicinal.cli.main import main; sys.exit(main())"
PREPARE = """
import sys
from pathlib import Path
import numpy as np, pandas as pd
from PIL import Image
from vicinal import Index, Table
from vicinal.data import save_embeddings
folder, rng = Path(sys.argv[1]), np.random.default_rng(0)
for number in range(60):
    image = folder / "photos" / f"class{number // 6}" / f"{number}.png"
    image.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(image)
vectors = rng.normal(size=(1000, 128)).astype(np.float32)
table = Table(pd.DataFrame({"label": np.arange(1000) // 4, "path": [f"{i}.png" for i in range(1000)]}))
Index.build(vectors, table).save(folder / "index")
save_embeddings(folder / "queries.parquet", vectors[:5], table.take(range(5)))
(folder / "recipe.yaml").write_text("data:\\n  source: photos\\nlearning_rate: 0.1\\n")
"""
"""Writes a folder of images, an index of 1,000 embeddings, five queries, and a recipe with an unknown key."""

PEERS = (
    "import torch",
    "import timm",
    "import faiss",
    "from pytorch_metric_learning import losses",
    "import lightning_fabric",
)
LIBRARY = (
    "import vicinal",
    "from vicinal import Table",
    "from vicinal.losses import MultiSimilarityLoss",
    "from vicinal import evaluate",
    "from vicinal import Index",
    "from vicinal import Embedder",
    "from vicinal import train",
)


class Start(NamedTuple):
    """One process: its exit status, CPU seconds and largest resident set in megabytes."""

    status: int
    seconds: float
    megabytes: float


def main() -> None:
    """Measure all starts in turn, round after round, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="processes per start (default: 7)")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", PREPARE, folder], check=True)
        starts = {**_imports(PEERS), **_imports(LIBRARY), **_commands(Path(folder))}
        measured: dict[str, list[Start]] = {name: [] for name in starts}
        for number in range(rounds + 1):
            for name, arguments in starts.items():
                start = measure([sys.executable, *arguments])
                if start.status != _expected_status(name):
                    raise SystemExit(f"{name} exited with status {start.status}")
                if number:  # the first round reads files from the disk
                    measured[name].append(start)
    print(
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores, torch {version('torch')}, ", end=""
    )
    print(f"Python {platform.python_version()}, {rounds} processes per start\n")
    print_starts(measured)


def measure(command: Sequence[str]) -> Start:
    """Run a process to its end, without its output."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return Start(process.returncode, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def print_starts(measured: dict[str, list[Start]]) -> None:
    """A Markdown table: CPU time, its spread, its ratio to that of the base, and memory."""
    base = statistics.median(start.seconds for start in measured[BASE])
    print(f"| start | CPU s, median | lowest - highest | CPU / {BASE} | memory, MB |\n|---|---|---|---|---|")
    for name, starts in measured.items():
        seconds = sorted(start.seconds for start in starts)
        median, megabytes = statistics.median(seconds), statistics.median(start.megabytes for start in starts)
        spread = f"{seconds[0]:.2f} - {seconds[-1]:.2f}"
        print(f"| `{name}` | {median:.2f} | {spread} | {median / base:.2f} | {megabytes:.0f} |")


def _imports(statements: Sequence[str]) -> dict[str, list[str]]:
    return {statement: ["-c", statement] for statement in statements}


def _commands(folder: Path) -> dict[str, list[str]]:
    """Commands by what they are called in the table."""
    index, queries, out = str(folder / "index"), str(folder / "queries.parquet"), str(folder / "run")
    commands = {
        "vicinal --help": ["--help"],
        "vicinal train --help": ["train", "--help"],
        "vicinal serch (a typo)": ["serch"],
        "vicinal train --bogus 1": ["train", "--bogus", "1", "--out", out],
        "vicinal train RECIPE (unknown key)": ["train", str(folder / "recipe.yaml"), "--out", out],
        "vicinal train --data.source NOWHERE": ["train", "--data.source", "nowhere", "--out", out],
        "vicinal evaluate NOWHERE": ["evaluate", "nowhere"],
        "vicinal search NOWHERE": ["search", "nowhere", queries],
        "vicinal data FOLDER": ["data", str(folder / "photos")],
        "vicinal search INDEX QUERIES": ["search", index, queries, "-k", "3"],
        "vicinal evaluate QUERIES": ["evaluate", queries],
    }
    return {name: ["-c", COMMAND, *words] for name, words in commands.items()}


def _expected_status(name: str) -> int:
    """2 for what the command refuses."""
    return 2 if any(word in name for word in ("typo", "bogus", "unknown", "NOWHERE")) else 0


if __name__ == "__main__":
    main()
