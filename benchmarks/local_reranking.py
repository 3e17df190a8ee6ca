"""What re-ranking by local features adds on classes never seen, with a weight chosen on validation classes.

    python -m benchmarks.local_reranking --data DATA --runs RUNS --out RESULTS

DATA and RUNS are those of `benchmarks.default_settings`; RUNS holds the tables and the trained runs, such as
`grocery/defaults-0`. Each row starts from EfficientNet-Lite0: `pretrained` is the network with ImageNet's weights, the
others are runs of `vicinal train`. Finished rows are read from RESULTS. Sizes are multiples of that of the model.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from benchmarks.default_settings import SIZES, prepare
from benchmarks.table import markdown_table, percent_with_interval, print_machine
from vicinal import Embedder, evaluate, load_table
from vicinal.evaluation import Resampling, choose_weight, compare_reranking
from vicinal.retrieval import LocalEncoder, LocalReranking
from vicinal.utils.run_folder import RunFolder

COLUMNS = ("dataset", "model", "size", "patches", "weight", "recall@1", "after", "mAP@R", "after", "gain", "ms a query")


def embedder(name: str, runs: list[Path]) -> Embedder:
    """A trained model; or the pretrained network, with the transform of the first run."""
    if name != "pretrained":
        return Embedder.from_pretrained(RunFolder(runs[0].with_name(name)).model)
    transform = Embedder.from_pretrained(RunFolder(runs[0]).model).transform
    return Embedder("efficientnet_lite0", dim=None, norm="none", transform=transform)


def measured(model: Embedder, table: Path, size: int, geometric: bool) -> dict[str, Any]:
    """The row of a model: metrics of the test classes before and after."""
    images = load_table(str(table), root=str(table.parent))
    parts = {split: images.subset(split) for split in ("val", "test")}
    vectors = {split: model.embed(part, progress=False) for split, part in parts.items()}
    encoder = LocalEncoder.fit(model, parts["test"], size=size)
    method = LocalReranking(geometric=geometric)
    local = {split: method.with_features(encoder.features(part)) for split, part in parts.items()}
    choice = choose_weight(vectors["val"], parts["val"], local["val"])
    chosen = LocalReranking(weight=choice.weight, geometric=geometric).with_features(local["test"].features()[0])
    plain = evaluate(vectors["test"], parts["test"], recall_at=[1])
    after = evaluate(vectors["test"], parts["test"], recall_at=[1], rerank=chosen)
    frame = compare_reranking(plain, after, parts["test"], resampling=Resampling()).overall()
    cells = {}
    for metric in ("recall@1", "mAP@R"):
        rows = frame.loc[[metric]].set_index("stage")
        cells[metric] = [percent_with_interval(rows.loc[stage]) for stage in ("plain", "reranked")]
        cells[f"{metric} gain"] = [percent_with_interval(rows.loc["reranked"], "difference")]
    return {
        "patches": f"{encoder.shape[0]} x {encoder.shape[1]}",
        "validation": str(choice),
        "weight": choice.weight,
        "ms": 1000 * local["test"].seconds_per_query(),
        **cells,
    }


def main() -> None:
    """Measure what is missing and print a row per dataset, model and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, help="folder of the archives")
    parser.add_argument("--runs", required=True, type=Path, help="folder of the runs")
    parser.add_argument("--out", required=True, type=Path, help="folder of the results")
    parser.add_argument("--datasets", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--trained", nargs="+", metavar="RUN", default=["defaults-0", "defaults-1", "defaults-2"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--geometric", action="store_true", help="count only matches that fit a similarity transform")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print_machine()
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, multiple, dataset in itertools.product(
        ["pretrained", *arguments.trained], arguments.sizes, arguments.datasets
    ):
        table, check = prepare(dataset, arguments.data, arguments.runs / dataset), "-geometric" * arguments.geometric
        runs = [each for each in (table.parent / run for run in arguments.trained) if each.exists()]
        if not runs or (name != "pretrained" and table.parent / name not in runs):
            continue
        model = embedder(name, runs)
        size = multiple * model.transform.size
        place = arguments.out / f"{dataset}-{name}-{size}{check}.json"
        if not place.exists():
            started = time.perf_counter()
            result = measured(model, table, size, arguments.geometric)
            place.write_text(json.dumps({**result, "size": size, "minutes": (time.perf_counter() - started) / 60}))
            print(dataset, name, size, result, flush=True)
        row = json.loads(place.read_text())
        metrics = [*row["recall@1"], *row["mAP@R"], *row["mAP@R gain"]]
        chosen = [row["patches"], f"{row['weight']:g}"]
        rows.append([dataset, name, str(row["size"]), *chosen, *metrics, f"{row['ms']:.0f}"])
    print(markdown_table(COLUMNS, rows))


if __name__ == "__main__":
    main()
