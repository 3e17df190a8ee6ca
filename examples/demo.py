"""The whole way once, on real data: train on the handwritten digits 0-4, then find 5-9, which the model never saw.

Run by `make demo`, or by `python examples/demo.py FOLDER`.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import torch

from vicinal import Embedder, Index, Recipe, Table, evaluate, train
from vicinal.evaluation import Resampling, tabulate
from vicinal.report import neighbor_grid
from vicinal.report.page import write_page
from vicinal.retrieval import search_images

RECIPE = Path(__file__).parent.parent / "recipes" / "digits.yaml"
NEXT = """
The same with a folder of your own, one sub-folder of images per class:

    {vicinal} train --data.source photos/ --out run
    {vicinal} evaluate run --split test
    {vicinal} report run --split test
    {vicinal} index gallery --source photos/ --model run
    {vicinal} search gallery photos/owl/1.jpg --grid found.png
"""


def main(folder: Path) -> None:
    """Train, evaluate, index, search, show; everything is left in the folder."""
    started = time.monotonic()
    shutil.rmtree(folder / "run", ignore_errors=True)  # of a former demo; nothing else is deleted
    recipe = Recipe.load(RECIPE, [f"--data.root={folder / 'data'}"])
    run = train(recipe, folder / "run")
    test = Table.from_parquet(run.table).subset("test")

    torch.manual_seed(recipe.settings.seed)
    untrained = recipe.create_embedder()  # the very weights that training started from
    trained = Embedder.from_pretrained(run.model)
    before = evaluate(untrained.embed(test), test)
    vectors = trained.embed(test)
    after = evaluate(vectors, test)

    index = Index.build(vectors, test, model_fingerprint=trained.fingerprint())
    index.save(folder / "index")
    queries = [test.labels.tolist().index(label) for label in range(len(test.classes))]
    found = search_images(index, vectors[queries], test.take(queries), k=8, exclude_self=True)
    picture = folder / "neighbors.png"
    neighbor_grid([each.query for each in found], [each.matches for each in found], picture)

    report, results = folder / "report.html", tabulate(after, test, resampling=Resampling())
    write_page(report, vectors, test, after, title="Digits 5-9, never seen", run=run.path, results=results)

    print(f"\nrecall@1 on the digits 5-9, never seen in training, after {time.monotonic() - started:.0f} s:")
    print(f"  before training   {100 * before.metrics['recall@1']:.1f} %")
    print(f"  after training    {100 * after.metrics['recall@1']:.1f} %")
    for name, path in (("model", run.model), ("index", folder / "index"), ("pictures", picture), ("page", report)):
        print(f"{name:9s} {path}")
    print(NEXT.format(vicinal=Path(sys.executable).with_name("vicinal")))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
