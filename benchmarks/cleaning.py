"""How well planted problems are found: duplicates, noisy labels and foreign pictures among photographs of groceries.

    python -m benchmarks.cleaning MODEL [--root DATA] [--seed 0]
    python -m benchmarks.cleaning --size 200000 --dim 256

The first command takes the classes of Grocery Store that are not for training, and adds: re-encoded (quality 40),
resized (60 %) and cropped (90 % of each side) copies of 5 % of the images, one third each; noisy labels, drawn at
random, for 5 %; 20 glyphs of Omniglot in random colors. Every finding of `vicinal clean` with its defaults is compared
with what was planted, beside perceptual hashes (ImageHash) and cleanlab. Intervals are Wilson's, of 95 %.

The second one only times the search for near duplicates among vectors, a tenth of which are near copies of others.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image, ImageOps
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from benchmarks.table import peak_extra_megabytes, print_machine
from vicinal import Embedder, Table, load_table
from vicinal.analysis import Findings, class_probabilities, duplicate_groups, find_problems, image_facts, label_errors
from vicinal.utils.arrays import Booleans, Floats, Integers

FRACTION, NUM_FOREIGN = 0.05, 20
HASH_DISTANCES = (4, 8, 12)  # bits of 64
Z = 1.96
COLUMNS = "| finding | method | found | precision | recall |\n|---|---|---|---|---|"


def copied(image: Image.Image, kind: int, rng: np.random.Generator) -> tuple[Image.Image, int]:
    """A copy of a kind, and the quality of its JPEG."""
    width, height = image.size
    if kind == 0:
        return image, 40
    if kind == 1:
        return image.resize((width * 3 // 5, height * 3 // 5)), 90
    left, top = rng.uniform(0, 0.1, 2) * (width, height)
    return image.crop((int(left), int(top), int(left + 0.9 * width), int(top + 0.9 * height))), 90


def plant(table: Table, glyphs: Table, folder: Path, seed: int) -> pd.DataFrame:
    """Add problems; `original` numbers photographs, and `is_copy`, `is_wrong`, `is_foreign` say what was planted."""
    rng = np.random.default_rng(seed)
    size, number = len(table), round(FRACTION * len(table))
    frame = table.frame[["path", "label"]].assign(original=np.arange(size), is_copy=False, is_foreign=False)
    added = []
    for position, row in enumerate(rng.choice(size, number, replace=False)):
        with Image.open(table.paths[row]) as photograph:
            image, quality = copied(photograph.convert("RGB"), position % 3, rng)
        path = folder / f"copy{position}.jpg"
        image.save(path, quality=quality)
        added.append((str(path), frame["label"][row], row, True, False))
    for position, row in enumerate(rng.choice(len(glyphs), NUM_FOREIGN, replace=False)):
        with Image.open(glyphs.paths[row]) as glyph:
            black, white = (tuple(map(int, rng.integers(0, 256, 3))) for _ in range(2))
            image = ImageOps.colorize(glyph.convert("L"), black, white).resize((348, 348))
        path = folder / f"glyph{position}.jpg"
        image.save(path, quality=90)
        added.append((str(path), rng.choice(table.classes), size + position, False, True))
    frame = pd.concat([frame, pd.DataFrame(added, columns=frame.columns)], ignore_index=True)
    wrong = rng.choice(size, number, replace=False)
    right = frame["label"].copy()
    frame.loc[wrong, "label"] = [rng.choice([name for name in table.classes if name != right[row]]) for row in wrong]
    return frame.assign(is_wrong=frame["label"] != right)


def fraction(found: int, total: int) -> str:
    """A fraction in percent with Wilson's interval."""
    if not total:
        return "–"
    rate, scale = found / total, 1 + Z**2 / total
    middle = (rate + Z**2 / (2 * total)) / scale
    half = Z * np.sqrt(rate * (1 - rate) / total + Z**2 / (4 * total**2)) / scale
    return f"{100 * rate:.0f} [{abs(100 * (middle - half)):.0f}, {100 * (middle + half):.0f}]"


def print_found(finding: str, method: str, rows: Iterable[int], is_planted: Booleans, ignored: Booleans) -> None:
    """A line of the table: rows that were found against those that were planted."""
    found = np.array([row for row in rows if not ignored[row]], dtype=np.int64)
    hits = int(is_planted[found].sum())
    print(f"| {finding} | {method} | {len(found)} | {fraction(hits, len(found))} | "
          f"{fraction(hits, int((is_planted & ~ignored).sum()))} |", flush=True)  # fmt: skip


def print_groups(method: str, group: Integers, frame: pd.DataFrame) -> None:
    """A line about groups of duplicates; -1 is not a group.

    Precision is the fraction of grouped images whose group has another image of the same photograph, recall that of the
    copies that are in one group with another image of their photograph.
    """
    rows = np.flatnonzero(group >= 0)
    pairs = pd.Series(frame["original"].to_numpy()[rows]).groupby([group[rows], frame["original"].to_numpy()[rows]])
    is_right = np.zeros(len(frame), dtype=bool)
    is_right[rows] = (pairs.transform("size") > 1).to_numpy()
    copies = frame["is_copy"].to_numpy()
    print(f"| near duplicates | {method} | {len(rows)} | {fraction(int(is_right.sum()), len(rows))} | "
          f"{fraction(int((is_right & copies).sum()), int(copies.sum()))} |", flush=True)  # fmt: skip


def groups_of(frame: pd.DataFrame, size: int) -> Integers:
    """The group of each row, -1 for none."""
    group = np.full(size, -1)
    group[frame["row"]] = frame["group"]
    return group


def print_hashes(frame: pd.DataFrame) -> None:
    """Near duplicates by perceptual hashes."""
    import imagehash

    for name in ("phash", "dhash"):
        hashes = [getattr(imagehash, name)(Image.open(path)).hash.ravel() for path in frame["path"]]
        bits = np.array(hashes).astype(np.float32)
        distances = bits @ (1 - bits).T + (1 - bits) @ bits.T
        for limit in HASH_DISTANCES:
            ends = np.nonzero(np.triu(distances <= limit, 1))
            graph = coo_array((np.ones(len(ends[0])), ends), shape=distances.shape)
            _, component = connected_components(graph, directed=False)
            is_alone = np.bincount(component)[component] == 1
            print_groups(f"ImageHash {name}, {limit} bits", np.where(is_alone, -1, component), frame)


def print_label_errors(findings: Findings, vectors: Floats, frame: pd.DataFrame) -> None:
    """Label errors by Vicinal and by cleanlab; foreign pictures count neither way."""
    from cleanlab.filter import find_label_issues
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    neighbors, given = findings.neighbors, findings.table.labels
    is_true, ignored = frame["is_wrong"].to_numpy(), frame["is_foreign"].to_numpy()
    votes = class_probabilities(neighbors).toarray()
    print_found("label errors", "confident learning", findings.label_errors["row"], is_true, ignored)
    print_found("label errors", "five unanimous neighbors", label_errors(neighbors)["row"], is_true, ignored)
    model = LogisticRegression(max_iter=1000, C=10.0)
    classified = cross_val_predict(model, vectors, given, cv=5, method="predict_proba")
    for name, probabilities in (("neighbors' votes", votes), ("logistic regression, 5 folds", classified)):
        for kind in ("prune_by_noise_rate", "confident_learning"):
            issues = find_label_issues(given, probabilities, filter_by=kind, n_jobs=1)
            print_found("label errors", f"cleanlab {kind}, {name}", np.flatnonzero(issues), is_true, ignored)


def print_foreign(findings: Findings, vectors: Floats, frame: pd.DataFrame) -> None:
    """Foreign pictures by Vicinal and by cleanlab's mean distance to neighbors."""
    from cleanlab.outlier import OutOfDistribution

    is_true, ignored = frame["is_foreign"].to_numpy(), np.zeros(len(frame), dtype=bool)
    print_found("foreign pictures", "outliers", findings.outliers["row"], is_true, ignored)
    print_found("foreign pictures", "little information", findings.uninformative["row"], is_true, ignored)
    both = set(findings.outliers["row"]) | set(findings.uninformative["row"])
    print_found("foreign pictures", "either", sorted(both), is_true, ignored)
    scores = OutOfDistribution().fit_score(features=vectors, verbose=False)
    first = np.argsort(scores)[: len(findings.outliers)]
    print_found("foreign pictures", "cleanlab OutOfDistribution, as many as outliers", first, is_true, ignored)


def run_planted(model: str, root: str | None, seed: int) -> None:
    """Plant, find, compare."""
    table = load_table("grocery", root and f"{root}/grocery")
    table = table.take(~table.frame["split"].eq("train").to_numpy())
    glyphs = load_table("omniglot", root and f"{root}/omniglot")
    with tempfile.TemporaryDirectory() as folder:
        frame = plant(table, glyphs, Path(folder), seed)
        planted = Table(frame[["path", "label"]])
        vectors = Embedder.from_pretrained(model).embed(planted, progress=False)
        facts = image_facts(planted)
        findings = find_problems(vectors, planted, facts)
        size = len(planted)
        print(f"\n{size:,} images, {len(planted.classes)} classes, seed {seed}\n\n{COLUMNS}")
        print_groups("embeddings 0.95 and pixels 0.85", groups_of(findings.near_duplicates, size), frame)
        for limit in (0.98, 0.99, 0.995):
            alone = duplicate_groups(vectors, planted, limit)
            print_groups(f"embeddings {limit} alone", groups_of(alone, size), frame)
        print_hashes(frame)
        print_label_errors(findings, vectors, frame)
        print_foreign(findings, vectors, frame)


def run_large(size: int, dim: int) -> None:
    """Time the search for near duplicates."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(size, dim)).astype(np.float32)
    copies = size // 10
    vectors[:copies] = vectors[copies : 2 * copies] + 0.1 * rng.normal(size=(copies, dim)).astype(np.float32)
    table = Table(pd.DataFrame({"label": np.zeros(size, dtype=np.int64)}))
    groups: list[pd.DataFrame] = []
    started = time.perf_counter()
    megabytes = peak_extra_megabytes(lambda: groups.append(duplicate_groups(vectors, table)))
    seconds = time.perf_counter() - started
    found = groups[0]["group"].nunique()
    print(f"\n{size:,} x {dim}: {seconds:.0f} s, {megabytes:.0f} MB more than the vectors "
          f"({vectors.nbytes / 1e6:.0f} MB); {found:,} groups of {copies:,} planted")  # fmt: skip


def main() -> None:
    """Print the machine and one of the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a model folder or the model of a run")
    parser.add_argument("--root", help="the folder that holds grocery/ and omniglot/ (default: that of benchmarks)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", type=int, help="only time the search for near duplicates among so many vectors")
    parser.add_argument("--dim", type=int, default=256)
    arguments = parser.parse_args()
    if arguments.size is None and arguments.model is None:
        parser.error("name a model, or give --size")
    warnings.simplefilter("ignore")
    print_machine()
    if arguments.size is not None:
        run_large(arguments.size, arguments.dim)
    else:
        run_planted(arguments.model, arguments.root, arguments.seed)


if __name__ == "__main__":
    main()
