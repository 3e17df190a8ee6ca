"""What the defaults of `vicinal train` reach on classes never seen, from ImageNet weights, beside other settings.

    python -m benchmarks.default_settings defaults "lr3=--optimizer.lr 0.0003" --data DATA --out RUNS

DATA holds emoji.zip, grocery.zip, nyala.zip and Omniglot's zips, also in folders of these names. Every run starts from
EfficientNet-Lite0 (the extra `weights`). A variant is a name, or a name and the flags of `vicinal train` after an
equals sign. Finished runs are not trained again. Scores are those of the validation classes; `--test` adds those of the
test classes, after all choices are made.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import subprocess
import sys
import time
import zipfile
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import pandas as pd

from benchmarks.table import print_machine
from vicinal import Embedder, evaluate, load_table
from vicinal.utils.run_folder import RunFolder

SIZES = {"emoji": 96, "grocery": 128, "nyala": 128, "omniglot": 64}
"""Side of the images, about that of the pictures; Omniglot's are drawn with thin lines and have 105 pixels."""

OMNIGLOT_VAL, OMNIGLOT_TEST = {"Early_Aramaic"}, {"Greek", "Balinese"}
NYALA_VAL = 0.4  # fraction of the training individuals


def prepare(name: str, data: Path, folder: Path) -> Path:
    """Extract a dataset into a folder, once, and write the table that is trained on."""
    table = folder / "study.csv"
    if not table.exists():
        archives = sorted((data / name).glob("*.zip")) or sorted(data.glob(f"{name}*.zip"))
        for archive in archives:
            zipfile.ZipFile(archive).extractall(folder)
        _table(name, folder).to_csv(table, index=False)
    return table


def _table(name: str, folder: Path) -> pd.DataFrame:
    if name == "omniglot":
        paths = sorted(path.relative_to(folder) for path in folder.glob("images_background*/**/*.png"))
        frame = pd.DataFrame({"path": map(str, paths), "label": ["/".join(path.parts[1:3]) for path in paths]})
        alphabet = frame["label"].str.partition("/")[0]
        frame["split"] = "train"
        frame.loc[alphabet.isin(OMNIGLOT_VAL), "split"] = "val"
        frame.loc[alphabet.isin(OMNIGLOT_TEST), "split"] = "test"
        return frame
    frame = pd.read_csv(folder / "table.csv").drop(columns="group", errors="ignore")  # all matches of emoji count
    if name == "grocery":  # photos of one series are matches neither right nor wrong
        frame["group"] = frame["path"].str.extract(r"/([a-z]+)_\d+\.", expand=False)
    if name == "nyala":
        training = frame.loc[frame["split"] == "train", "label"].drop_duplicates()
        held_out = training.sample(frac=NYALA_VAL, random_state=0)
        frame["final"] = frame["split"]  # with the individuals held out among those to train on
        frame.loc[frame["label"].isin(held_out), "split"] = "val"
        frame["flank"] = frame["label"] + "-" + frame["side"]  # the two sides of an animal carry different patterns
        frame["sighting"] = frame["path"].str.extract(r"/(\d+)_", expand=False)  # has a photo of each side
    return frame


def train(table: Path, size: int, out: Path, flags: list[str], seed: int) -> float:
    """Train a run unless it is there, and return its minutes."""
    folder, note = RunFolder(out), out.with_suffix(".minutes")
    if not note.exists():
        words = ["train", f"--data.source={table}", f"--data.root={table.parent}", f"--out={out}", f"--seed={seed}"]
        words += ["--model.backbone=efficientnet_lite0", f"--transform.size={size}", *flags]
        words += ["--resume"] if folder.recipe.exists() else []
        start = time.perf_counter()
        with out.with_suffix(".log").open("a") as log:
            subprocess.run([sys.executable, "-m", "vicinal", *words], check=True, stdout=log, stderr=log)
        note.write_text(f"{(time.perf_counter() - start) / 60:.2f}")
        for path in (folder.last, folder.best):
            path.unlink(missing_ok=True)
    return float(note.read_text())


def test_scores(out: Path) -> dict[str, float]:
    """recall@1 and mAP@R of the test classes."""
    path = out.with_suffix(".test.json")
    if not path.exists():
        words = [sys.executable, "-m", "vicinal", "evaluate", str(out), "--split", "test", "--json"]
        path.write_bytes(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)
    return {row["metric"]: row["value"] for row in json.loads(path.read_text())["results"]}


def few_classes(dataset: str, table: Path, number: int, seed: int, folder: Path) -> None:
    """Print how a run on few classes, all of a user's images, finds the test classes, beside zero-shot."""
    frame, name = pd.read_csv(table), f"{number}-classes-{seed}"
    labels = frame.loc[frame["split"] == "train", "label"].drop_duplicates().sample(number, random_state=seed)
    few = table.with_name(f"{name}.csv")
    frame[frame["label"].isin(labels)].drop(columns="split").to_csv(few, index=False)
    minutes = train(few, SIZES[dataset], folder / name, [], seed)
    test = load_table(str(table), root=str(table.parent)).subset("test")
    trained, cached = Embedder.from_pretrained(RunFolder(folder / name).model), folder / "zero-shot.npy"
    if not cached.exists():
        network = Embedder("efficientnet_lite0", dim=None, norm="none", transform=trained.transform)
        np.save(cached, network.embed(test, progress=False))
    vectors = (np.load(cached), trained.embed(test, progress=False))
    shown = ", ".join(f"{100 * evaluate(each, test).metrics['mAP@R']:.1f}" for each in vectors)
    print(f"| {dataset} | {number} classes | {seed} | {minutes:.1f} | {shown} |", flush=True)


def main() -> None:
    """Train the missing models and print a row per dataset, variant and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="*", help="name, or name=FLAGS")
    parser.add_argument("--data", required=True, type=Path, help="folder of the archives")
    parser.add_argument("--out", required=True, type=Path, help="folder of the runs")
    parser.add_argument("--datasets", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--test", action="store_true", help="evaluate on the test classes too")
    parser.add_argument("--classes", nargs="+", type=int, default=[], help="numbers of classes to train on, by default")
    arguments = parser.parse_args()
    print_machine()
    if arguments.classes:
        columns = "| dataset | trained on | seed | minutes | test mAP@R: zero-shot, trained |"
        print(f"\n{columns}\n|---|---|---|---|---|", flush=True)
    for dataset in arguments.datasets if arguments.classes else ():
        table = prepare(dataset, arguments.data, arguments.out / dataset)
        for number, seed in itertools.product(arguments.classes, arguments.seeds):
            few_classes(dataset, table, number, seed, arguments.out / dataset)
    if not arguments.variants:
        return
    test = " test recall@1, mAP@R |" if arguments.test else ""
    print(f"\n| dataset | variant | seed | minutes | val mAP@R: zero-shot, start, epochs |{test}")
    print(f"|---|---|---|---|---|{'---|' if test else ''}", flush=True)
    for variant in arguments.variants:
        name, _, flags = variant.partition("=")
        for dataset in arguments.datasets:
            table = prepare(dataset, arguments.data, arguments.out / dataset)
            for seed in arguments.seeds:
                out = arguments.out / dataset / f"{name}-{seed}"
                minutes = train(table, SIZES[dataset], out, shlex.split(flags), seed)
                scores = pd.read_csv(RunFolder(out).metrics)["mAP@R"].dropna()
                row = f"| {dataset} | {name} | {seed} | {minutes:.1f} | {', '.join(f'{100 * x:.1f}' for x in scores)} |"
                if test:
                    found = test_scores(out)
                    row += f" {100 * found['recall@1']:.1f} / {100 * found['mAP@R']:.1f} |"
                print(row, flush=True)


if __name__ == "__main__":
    main()
