"""The whole way once: train on some emoji from ImageNet weights, then find others, which the model never saw.

Run by `make demo`, or by `python examples/demo.py FOLDER`.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

from vicinal import Embedder, Index, Recipe, Table, train
from vicinal.evaluation import Resampling, compare_models, evaluate, tabulate
from vicinal.report import neighbor_grid
from vicinal.report.page import write_page
from vicinal.retrieval import search_images

IMAGES = Path(__file__).parent / "emoji" / "images"
SETTINGS = [
    f"--data.source={IMAGES}",
    "--data.fractions={train: 0.5, val: 0.1, test: 0.4}",
    "--model.backbone=efficientnet_lite0",
    "--transform.size=96",
    "--max_steps=45",
    "--steps_per_epoch=15",
]
SHOWN = 6
NEXT = """
The same with a folder of your own, one sub-folder of images per class:

    {vicinal} train --data.source photos/ --model.backbone efficientnet_lite0 --out run
    {vicinal} evaluate run --split test
    {vicinal} report run --split test
    {vicinal} index build gallery photos/ --model run
    {vicinal} search gallery photos/owl/1.jpg --grid found.png
"""


def main(folder: Path) -> None:
    """Train, evaluate, index, search, show; everything is left in the folder."""
    started = time.monotonic()
    shutil.rmtree(folder / "run", ignore_errors=True)  # of a former demo; nothing else is deleted
    recipe = Recipe.load(overrides=SETTINGS)
    run = train(recipe, folder / "run")
    test = Table.from_parquet(run.table).subset("test")

    models = {"zero-shot": recipe.create_zero_shot_embedder(), "trained": Embedder.from_pretrained(run.model)}
    vectors = {name: model.embed(test) for name, model in models.items()}
    evaluations = {name: evaluate(each, test) for name, each in vectors.items()}
    results = compare_models(evaluations, test, Resampling())

    index = Index.build(vectors["trained"], test, model_fingerprint=models["trained"].fingerprint())
    index.save(folder / "index")
    labels = test.labels.tolist()
    queries = [labels.index(label) for label in range(0, len(test.classes), len(test.classes) // SHOWN)][:SHOWN]
    found = search_images(index, vectors["trained"][queries], test.take(queries), k=8, exclude_self=True)
    picture = folder / "neighbors.png"
    neighbor_grid([each.query for each in found], [each.matches for each in found], picture)

    page, trained = folder / "report.html", evaluations["trained"]
    intervals = tabulate(trained, test, resampling=Resampling())
    write_page(page, vectors["trained"], test, trained, title="Emoji never seen", run=run.path, results=intervals)

    print(f"\nOn {len(test.classes)} emoji never seen, after {time.monotonic() - started:.0f} s:\n\n{results}\n")
    for name, path in (("model", run.model), ("index", folder / "index"), ("pictures", picture), ("page", page)):
        print(f"{name:9s} {path}")
    print(NEXT.format(vicinal=Path(sys.executable).with_name("vicinal")))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
