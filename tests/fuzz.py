"""Fuzzing of everything that Vicinal reads: recipes, runs, models, tables, embeddings, pickles, images, ...

    python -m tests.fuzz                                    # ten minutes
    python -m tests.fuzz --minutes 60 --seed 7 --kind model --kind recipe

Each case is a sound file or folder with random mutations, read in a process of its own with a limit of memory and time.
It is either read, or refused in one line (InputError). Everything else is a finding: another exception, a crash, too
much memory or time, a program that is started, a connection, a class of a pickle that is imported, or a file written
outside of the folder of the case. Findings are printed with the seed that repeats them; the exit status is 1.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import pickle
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import pandas as pd
import torch
from PIL import Image

from vicinal import Embedder, Recipe, Table, evaluate, load_table, train
from vicinal.cli.main import main as run_command
from vicinal.data import ImageTransform, load_embeddings, load_labels, read_image
from vicinal.data import save_embeddings as write_embeddings
from vicinal.data.benchmarks import revisited_ground_truth
from vicinal.models import ContextRefiner
from vicinal.retrieval import PCAWhitening, refine
from vicinal.training.checkpoint import load_checkpoint
from vicinal.training.recipes.recipe_file import RecipeFile
from vicinal.utils.errors import InputError
from vicinal.utils.run_folder import RunFolder, read_log

MEMORY, SECONDS = 2 * 2**30, 20
"""What a case may take beyond what its process holds at the start."""
FORBIDDEN_EVENTS = ("os.exec", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn", "socket.connect", "subprocess.")
"""Audit events of Python that no reading may raise."""
DANGEROUS_MODULES = ("os", "posix", "subprocess", "sys", "runpy", "importlib", "pty")
"""Modules from which no pickle may import."""
NUMBERS = (0, 1, -1, 127, 255, 2**15, 2**31 - 1, -(2**31), 2**32, 2**40, 2**62, -(2**62))
TOKENS = (
    "-1", "0", "1e400", "-1e400", "nan", ".inf", "null", "true", "''", "[]", "{}", "9" * 30, "1.5", "[[[[1]]]]", "*a",
    "&a [*a]", "!!python/object/apply:os.system ['touch executed']", "os.system", "subprocess.Popen", "/dev/zero",
    "{class_path: os.system, init_args: {command: touch executed}}", "../../../etc/passwd", "http://127.0.0.1:9/x",
    "\x1b[2J", "\u202e", "\ud800", "a" * 5000,
)  # fmt: skip
RECIPE = """\
data: {source: photos, fractions: {train: 0.5, val: 0.5}}
model: {backbone: test_resnet, pretrained: false, dim: 16}
transform: {size: 32, flip: 0.5}
batch_size: 8
samples_per_class: 2
optimizer:
  name: sgd
  lr: 0.1
loss:
  class_path: MultiSimilarityLoss
  init_args:
    alpha: 2
    miner:
      class_path: MultiSimilarityMiner
      init_args: {epsilon: 0.1}
schedule: {name: step, every: 2}
validation: {metric: mAP@R, patience: 3}
"""


RUN = (
    "--data.source=digits", "--model.backbone=test_resnet", "--model.dim=8",
    "--model.pretrained=false", "--transform.size=16", "--epochs=1", "--batch_size=16", "--accelerator=cpu",
    "--data.num_workers=0",
)  # fmt: skip


class Kind(NamedTuple):
    """Something that Vicinal reads.

    Attributes:
        make: writes a sound one into a folder.
        read: reads it from the folder, and uses what it has read.
    """

    make: Callable[[Path], None]
    read: Callable[[Path], object]


class Finding(NamedTuple):
    """A case that was neither read nor refused in one line."""

    kind: str
    seed: int
    what: str


def table() -> Table:
    return Table(
        pd.DataFrame({"path": [f"{row}.png" for row in range(12)], "label": [f"c{row // 3}" for row in range(12)]})
    )


def vectors() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((12, 8)).astype(np.float32)


def make_recipe(folder: Path) -> None:
    (folder / "recipe.yaml").write_text(RECIPE)


def make_model(folder: Path) -> None:
    transform = ImageTransform(size=32)
    Embedder("test_resnet", dim=8, pretrained=False, transform=transform).save_pretrained(folder / "model")


def make_tables(folder: Path) -> None:
    frame = table().frame.assign(split="test", is_query=True, is_gallery=True, group=1, coarse="x")
    frame.to_csv(folder / "table.csv", index=False)
    frame.to_parquet(folder / "table.parquet")


def make_embeddings(folder: Path) -> None:
    write_embeddings(folder / "vectors.parquet", vectors(), table())
    np.save(folder / "vectors.npy", vectors())
    table().frame.to_csv(folder / "vectors.table.csv", index=False)
    np.save(folder / "labels.npy", np.arange(12) // 3)


def make_ground_truth(folder: Path) -> None:
    lists = {"bbx": [1.0, 2.0, 3.0, 4.0], "easy": [0, 1], "hard": [2], "junk": [3]}
    content = {"imlist": [f"i{row}" for row in range(6)], "qimlist": ["q0", "q1"], "gnd": [lists, lists]}
    (folder / "roxford5k").mkdir()
    (folder / "roxford5k" / "gnd_roxford5k.pkl").write_bytes(pickle.dumps(content, protocol=2))


def make_images(folder: Path) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 30, 3), dtype=np.uint8))
    for ending, options in {
        "jpg": {},
        "png": {},
        "gif": {},
        "bmp": {},
        "webp": {},
        "tif": {"compression": "tiff_lzw"},
    }.items():
        image.save(folder / f"image.{ending}", **options)


def make_whitening(folder: Path) -> None:
    PCAWhitening.fit(vectors(), dim=4).save(folder / "whitening.safetensors")


def make_refiner(folder: Path) -> None:
    ContextRefiner(dim=8, depth=2, num_heads=2).save_pretrained(folder / "refiner")


def make_run(folder: Path) -> None:
    with redirect_stderr(io.StringIO()):
        train(Recipe.load(overrides=RUN), folder / "run")


def read_recipe(folder: Path) -> None:
    RecipeFile.read(folder / "recipe.yaml")
    recipe = Recipe.load(folder / "recipe.yaml")
    recipe.create_loss()
    recipe.save(folder / "copy.yaml")


def read_model(folder: Path) -> None:
    model = Embedder.from_pretrained(folder / "model")
    model.embed([Image.new("RGB", (40, 40))])


def read_tables(folder: Path) -> None:
    for name in ("table.csv", "table.parquet"):
        str(load_table(folder / name).statistics())


def read_embeddings(folder: Path) -> None:
    for name in ("vectors.parquet", "vectors.npy"):
        found, rows = load_embeddings(folder / name)
        evaluate(found, rows)
    load_labels(folder / "labels.npy")


def read_images(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        read_image(path)


def read_whitening(folder: Path) -> None:
    PCAWhitening.load(folder / "whitening.safetensors").apply(vectors())


def read_refiner(folder: Path) -> None:
    refine(ContextRefiner.from_pretrained(folder / "refiner"), vectors())


def read_run(folder: Path) -> None:
    run = RunFolder(folder / "run")
    Recipe.load(run.recipe)
    for log in (run.log, run.metrics):
        read_log(log)
    load_checkpoint(run.last, "module")
    use_command(["evaluate", str(run.path), "--split", "test", "--device", "cpu"])


KINDS: dict[str, Kind] = {
    "recipe": Kind(make_recipe, read_recipe),
    "model": Kind(make_model, read_model),
    "refiner": Kind(make_refiner, read_refiner),
    "whitening": Kind(make_whitening, read_whitening),
    "run": Kind(make_run, read_run),
    "table": Kind(make_tables, read_tables),
    "embeddings": Kind(make_embeddings, read_embeddings),
    "ground truth": Kind(make_ground_truth, lambda folder: revisited_ground_truth("roxford", folder)),
    "image": Kind(make_images, read_images),
    "command": Kind(make_embeddings, lambda folder: use_command(["evaluate", str(folder / "vectors.parquet")])),
}


def use_command(arguments: list[str]) -> None:
    """Run the command with its output discarded; its errors are one line."""
    with open(os.devnull, "w") as nowhere, tempfile.TemporaryFile("w+") as errors:
        output, sys.stdout, before, sys.stderr = sys.stdout, nowhere, sys.stderr, errors
        try:
            status = run_command(arguments)
        finally:
            sys.stdout, sys.stderr = output, before
        errors.seek(0)
        lines = errors.read().splitlines()
    if status not in (0, 1, 2) or (status and not lines[-1].startswith("vicinal ")):
        raise AssertionError(f"exit status {status}: {lines[-1:]}")


def mutate(folder: Path, rng: random.Random) -> None:
    """Change the bytes or the words of one of the folder's files."""
    path = rng.choice([each for each in sorted(folder.rglob("*")) if each.is_file()])
    data = bytearray(path.read_bytes())
    is_text = path.suffix in (".yaml", ".json", ".csv", ".md")
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        data = _with_token(data, rng) if is_text and rng.random() < 0.7 else with_other_bytes(data, rng)
    path.write_bytes(data)


def _with_token(data: bytearray, rng: random.Random) -> bytearray:
    """Replace a word of a text by a hostile one."""
    text = data.decode("utf-8", "surrogateescape")
    starts = [at for at in range(1, len(text)) if text[at].isalnum() and not text[at - 1].isalnum()] or [0]
    start = rng.choice(starts)
    end = next((at for at in range(start, len(text)) if not text[at].isalnum() and text[at] not in "._-"), len(text))
    return bytearray((text[:start] + rng.choice(TOKENS) + text[end:]).encode("utf-8", "surrogatepass"))


def with_other_bytes(data: bytearray, rng: random.Random) -> bytearray:
    """Cut, flip, overwrite or repeat bytes, mostly at the beginning, where sizes are."""
    at = int(len(data) * rng.random() ** rng.choice([1, 6]))
    action = rng.choice(["cut", "flip", "number", "number", "repeat"])
    if action == "cut":
        del data[at : at + rng.choice([1, 8, 10**9])]
    elif action == "flip" and data:
        data[at % len(data)] ^= 1 << rng.randrange(8)
    elif action == "number":
        size = rng.choice([1, 4, 8])
        data[at : at + size] = struct.pack("<q", rng.choice(NUMBERS))[:size]
    elif action == "repeat":
        data[at:at] = data[at : at + 64]
    return data


def outcome(kind: str, folder: Path) -> str:
    """What happens when a folder is read in a process of its own: "read", "refused", or what went wrong."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.write(writer, _outcome_here(kind, folder).encode("utf-8", "backslashreplace")[-4000:])
        os._exit(0)
    os.close(writer)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with open(reader, "rb") as pipe:
            said = pipe.read().decode()
        _, status = os.waitpid(child, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if os.WIFSIGNALED(status):
        number = signal.Signals(os.WTERMSIG(status))
        return f"more than {SECONDS} s" if number == signal.SIGKILL else f"the process ended by {number.name}"
    return said


def _outcome_here(kind: str, folder: Path) -> str:
    torch.set_num_threads(1)  # the threads of the parent are not in a forked process
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    broken: list[str] = []
    sys.addaudithook(lambda event, arguments: broken.extend(_forbidden(event, arguments, folder)))
    os.chdir(folder)
    try:
        with warnings.catch_warnings(action="ignore"):
            KINDS[kind].read(folder)
        said = "read"
    except InputError as error:
        said = "refused" if len(str(error).splitlines()) <= 1 else f"an error of several lines: {error}"
    except BaseException:
        said = traceback.format_exc()
    return "; ".join(broken) or said


def _forbidden(event: str, arguments: tuple[Any, ...], folder: Path) -> Iterator[str]:
    if event.startswith(FORBIDDEN_EVENTS) or (
        event == "pickle.find_class" and arguments[0].split(".")[0] in DANGEROUS_MODULES
    ):
        yield f"{event} {arguments!r}"
    if event == "open" and isinstance(arguments[0], (str, bytes)) and isinstance(arguments[2], int):
        path = os.path.realpath(os.fsdecode(arguments[0]))
        allowed = (os.path.realpath(folder), os.path.realpath(tempfile.gettempdir()), "/dev/null", "/proc/")
        if arguments[2] & (os.O_WRONLY | os.O_RDWR) and not path.startswith(allowed) and "__pycache__" not in path:
            yield f"wrote {path}"


def fuzz(kinds: list[str], seconds: float, seed: int, parent: Path) -> tuple[Counter[str], list[Finding]]:
    """Read mutated files of each kind in turn.

    Args:
        kinds: names of :data:`KINDS`.
        seconds: for how long, at least one case of each kind.
        seed: of the first case; the next ones count up.
        parent: a folder for the files.

    Returns:
        The number of cases for each kind and outcome, such as `model: refused`, and the findings.
    """
    for kind in kinds:
        (parent / kind).mkdir()
        KINDS[kind].make(parent / kind)
        if (said := outcome(kind, parent / kind)) != "read":
            raise AssertionError(f"{kind}: the sound files are not read: {said}")
    counts: Counter[str] = Counter()
    findings: list[Finding] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or not counts:
        for kind in kinds:
            case = parent / f"case {seed}"
            shutil.copytree(parent / kind, case)
            mutate(case, random.Random(f"{kind} {seed}"))
            said = outcome(kind, case)
            shutil.rmtree(case)
            counts[f"{kind}: {said if said in ('read', 'refused') else 'finding'}"] += 1
            if said not in ("read", "refused"):
                findings.append(Finding(kind, seed, said))
        seed += 1
    return counts, findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="how long (default: 10)")
    parser.add_argument("--seed", type=int, default=0, help="of the first case (default: 0)")
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="what is read; all kinds by default")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as parent:
        counts, findings = fuzz(arguments.kind or list(KINDS), 60 * arguments.minutes, arguments.seed, Path(parent))
    print(json.dumps(dict(sorted(counts.items())), indent=2))
    for finding in findings:
        print(f"--- {finding.kind}, --seed {finding.seed}\n{finding.what.rstrip()}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
