"""What each verb loads: only what it needs, in a new process."""

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.conftest import ROOT, SMALL
from tests.training.refiner_runs import TINY, save_clusters
from vicinal.cli.main import VERBS, WITH_RECIPE
from vicinal.data import Table, save_embeddings
from vicinal.retrieval import Index

HEAVY = (
    "torch", "timm", "torchvision", "lightning_fabric", "tensorboard", "matplotlib", "faiss", "sklearn", "scipy",
    "numba",
    "pandas", "numpy", "pyarrow", "PIL", "rich", "huggingface_hub", "jinja2",
    "vicinal.training", "vicinal.losses", "vicinal.report", "vicinal.analysis", "vicinal.evaluation",
    "vicinal.models.embedder", "vicinal.retrieval.index",
)  # fmt: skip
# Runs commands in one interpreter, and prints after each its exit status and the heavy modules that are loaded.
PROGRAM = """
import json, sys
heavy, commands = json.loads(sys.argv[1])
from vicinal.cli.main import main
for words in commands:
    try:
        status = main(words)
    except SystemExit as stopped:
        status = stopped.code or 0
    print("LOADED", json.dumps([status, [name for name in heavy if name in sys.modules]]))
"""
TABLES = {"numpy", "pandas", "pyarrow", "PIL"}
VECTORS = TABLES | {"torch", "rich"}
IMAGES = VECTORS | {"timm", "torchvision", "huggingface_hub", "vicinal.models.embedder"}
METRICS = VECTORS | {"scipy", "numba", "vicinal.evaluation"}
PAGE = METRICS | {"sklearn", "jinja2", "matplotlib", "vicinal.report", "vicinal.analysis"}
INDEX = VECTORS | {"faiss", "scipy", "vicinal.retrieval.index"}
PLOTS = {"matplotlib", "vicinal.report"}
RUNS = {"lightning_fabric", "tensorboard", "vicinal.training", "vicinal.losses"}
TRAINING = IMAGES | METRICS | PLOTS | RUNS | {"vicinal.analysis"}
if find_spec("transformers"):  # installed with peft; torchmetrics, which Fabric imports, imports it where it is
    TRAINING |= {"jinja2"}


def loaded_after(*commands: Sequence[object], status: int = 0) -> list[set[str]]:
    """The heavy modules that are loaded after each of these commands, run in turn in a new interpreter.

    Args:
        commands: their words.
        status: the exit status that each of them must have.
    """
    given = json.dumps([HEAVY, [[str(word) for word in words] for words in commands]])
    result = subprocess.run([sys.executable, "-c", PROGRAM, given], capture_output=True, text=True, cwd=ROOT)
    lines = [line.removeprefix("LOADED ") for line in result.stdout.splitlines() if line.startswith("LOADED ")]
    assert len(lines) == len(commands), result.stderr
    loaded = [json.loads(line) for line in lines]
    assert [found for found, _ in loaded] == [status] * len(commands), result.stderr
    return [{*modules} for _, modules in loaded]


def test_help_loads_nothing_heavy() -> None:
    verbs = [verb.__name__ for verb in VERBS]
    commands = [[], ["--help"], ["--version"], *([verb, "--help"] for verb in verbs)]
    for words, modules in zip(commands, loaded_after(*commands), strict=True):
        assert modules <= {"vicinal.training"}, words  # the settings of recipes, with their defaults


def test_typos_and_missing_files_load_nothing_heavy(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("data:\n  source: photos\nlearning_rate: 0.1\n")
    recipes = [
        ["train"],
        ["train", "--loss", "Triplett", "--out", "run"],
        ["train", tmp_path / "recipe.yaml", "--out", "run"],
        ["train", "none.yaml", "--out", "run"],
        ["train", "--out", "none", "--resume"],
        ["train", "--data.source", "nowhere", "--out", "run"],
        ["train", "--data.source", photos, "--data.root", "nowhere", "--out", "run"],
        ["train", "--data.source", photos, "--out", photos],
        ["refine", "--out", "none", "--resume"],
        ["refine", "--embeddings", "none.parquet", "--out", "run"],
        ["refine", "--run", "none", "--out", "run"],
        ["tune", "--out", "none"],
        ["tune", tmp_path / "recipe.yaml", "--search.epochs=[1]", "--out", "study"],
        ["tune", "--data.source", photos, "--out", "study"],
        ["tune", "--data.source", "nowhere", "--search.epochs=[1]", "--out", "study"],
        ["tune", "--data.source", photos, "--search.epochs=[1]", "--out", photos],
        ["sweep", "--data.source", photos, "--grid.epochs=[many]", "--out", "study"],
        ["sweep", "--data.source", photos, "--grid.optimizer.lr={log: [1, 2]}", "--out", "study"],
    ]
    models = [  # the nearest names are those of timm
        ["evaluate", photos, "--model", "none"],
        ["evaluate", "none", "--images", photos],
        ["report", photos, "--model", "none"],
        ["clean", photos, "--model", "none"],
        ["embed", photos, "--model", "none", "--out", "v.npy"],
        ["whiten", photos, "--model", "none", "--out", "w.safetensors"],
        ["index", "build", "i", photos, "--model", "none"],
        ["export", "none", "--out", "m.onnx"],
    ]
    commands = [
        ["serach"],
        *([verb.__name__, "--tpyo"] for verb in VERBS if verb not in WITH_RECIPE),
        ["data", "nowhere"],
        ["data", photos, "--root", "nowhere"],
        ["data", photos, "--apply", "none.csv"],
        ["clean", "none"],
        ["evaluate", "none.parquet"],
        ["evaluate", photos, "--refiner", "none"],
        ["evaluate", "none.parquet", "--pairs", "pairs.csv"],
        ["calibrate", "none.parquet"],
        ["calibrate", photos, "--index", "none"],
        ["report", "none.parquet"],
        ["embed", "none", "--out", "v.npy"],
        ["embed", photos, "--whitening", "none.safetensors", "--out", "v.npy"],
        ["whiten", "none", "--out", "w.safetensors"],
        ["index", "none"],
        ["index", "build", "i", "none"],
        ["search", "none", "picture.jpg"],
        ["search", photos, "none.jpg"],
        ["search", photos, photos, "--refiner", "none"],
        ["export", photos, "--out", "m.onnx", "--check", "none"],
        ["export", photos, "--out", "m.onnx", "--refiner", "none"],
        ["serve", "none"],
        ["serve", photos, "--port", "99999"],
        ["serve", photos, "--token_file", "none"],
        ["evaluate", photos, "--model", "runs/some/none"],
        *recipes,
    ]
    for words, modules in zip([*commands, *models], loaded_after(*commands, *models, status=2), strict=True):
        others = IMAGES - {"vicinal.models.embedder"} if words in models else set()
        assert modules <= ({"vicinal.training"} if words in [*recipes, *models] else set()) | others, words


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    values = np.random.default_rng(0).normal(size=(48, 16)).astype(np.float32)
    frame = pd.DataFrame({"label": [f"class{i // 6}" for i in range(48)], "path": [f"{i}.png" for i in range(48)]})
    save_embeddings(folder / "v.parquet", values, Table(frame))
    Index.build(values, Table(frame)).save(folder / "index")
    return folder


def check(*steps: tuple[Sequence[object], set[str]]) -> None:
    """Run commands in turn in a new interpreter; each may have loaded what is named beside it, and no more."""
    for (words, allowed), modules in zip(steps, loaded_after(*(words for words, _ in steps)), strict=True):
        assert modules <= allowed, f"{words[0]} loads {sorted(modules - allowed)}"
        assert "pandas" in modules


def test_data_whiten_evaluate_and_report_of_embeddings(vectors: Path, photos: Path, tmp_path: Path) -> None:
    check(
        (["data", photos], TABLES),
        (["whiten", vectors / "v.parquet", "--out", tmp_path / "w.safetensors"], VECTORS),
        (["evaluate", vectors / "v.parquet"], METRICS),
        (["clean", vectors / "v.parquet", "--num_neighbors", "5", "--out", tmp_path / "c.html"], PAGE),
        (["report", vectors / "v.parquet", "--out", tmp_path / "page.html"], PAGE),
    )


@pytest.mark.slow
def test_index_and_search(vectors: Path, run: Path, photos: Path, tmp_path: Path) -> None:
    queries, picture, model = vectors / "v.parquet", photos / "class0" / "0.png", ["--model", run]
    check(
        (["search", vectors / "index", queries, "-k", "3"], INDEX),
        (["index", "build", tmp_path / "i", queries], INDEX),
        (["index", "build", tmp_path / "of_images", photos / "class0", *model], INDEX | IMAGES),
        (["search", tmp_path / "of_images", picture, *model, "-k", "3"], INDEX | IMAGES),
        (
            ["search", tmp_path / "of_images", picture, *model, "-k", "3", "--grid", tmp_path / "grid.png"],
            INDEX | IMAGES | PLOTS,
        ),
    )


@pytest.mark.slow
def test_embed_whiten_and_evaluate_of_images(run: Path, photos: Path, tmp_path: Path) -> None:
    check(
        (["embed", photos / "class0" / "0.png", "--model", run, "--out", tmp_path / "v.npy"], IMAGES),
        (["whiten", run, "--out", tmp_path / "w.safetensors"], IMAGES),
        (["evaluate", run], IMAGES | METRICS),
    )


@pytest.mark.slow
def test_refine_and_train(photos: Path, tmp_path: Path) -> None:
    embeddings = save_clusters(tmp_path / "e.parquet")
    check(
        (["refine", "--embeddings", embeddings, *TINY, "--out", tmp_path / "refiner"], TRAINING),
        (["train", "--data.source", photos, *SMALL, "--epochs=1", "--out", tmp_path / "run"], TRAINING),
    )


READ = {"numpy", "pandas", "pyarrow"}
SEARCHED = READ | {"torch", "vicinal.evaluation", "scipy", "vicinal.retrieval.index"}
USES = {
    "import vicinal": set(),
    "import vicinal.data, vicinal.models, vicinal.retrieval, vicinal.workflows": set(),
    "from vicinal import Client": {"numpy"},
    "from vicinal import Table": READ,
    "from vicinal.retrieval import ContextualReranking, PCAWhitening, refine, rerank, top_k": READ | {"torch"},
    "from vicinal import evaluate": READ | {"torch", "vicinal.evaluation"},
    "from vicinal.retrieval import Index, ReciprocalReranking, RemoteIndex, search_images; RemoteIndex": SEARCHED,
    "import numpy, pandas; Index.build(numpy.eye(2), Table(pandas.DataFrame(index=[0, 1])))": SEARCHED | {"faiss"},
}


def test_uses_of_the_library() -> None:
    """One after the other, so that each names what was loaded by then."""
    report = f"print(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
    script = "\n".join(["import json, sys", *(f"{statement}\n{report}" for statement in USES)])
    output = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    for line, (statement, allowed) in zip(output.splitlines(), USES.items(), strict=True):
        assert {*json.loads(line)} <= allowed, statement
