"""The recipes of published results: each can be read, says what it is, trains for two steps, and is evaluated."""

import importlib.util
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.conftest import ROOT, output
from tests.data.benchmarks.published import WRITERS, accept_small, write_image
from tests.data.benchmarks.published_more import MORE_WRITERS, accept_small_more
from tests.training.refiner_runs import save_clusters
from vicinal.cli.main import main
from vicinal.cli.recipes import read_header, recipe_files
from vicinal.data import Table
from vicinal.retrieval import PCAWhitening
from vicinal.training import Recipe, RefinerRecipe
from vicinal.training.recipes.recipe_check import RecipeCheck
from vicinal.training.recipes.recipe_file import RecipeFile
from vicinal.utils.plain_yaml import dump_yaml
from vicinal.workflows.tuning.study_recipe import StudyRecipe


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("update_readme", ROOT / "recipes" / "update_readme.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


SCRIPT = load_script()
RECIPES = {path.relative_to(SCRIPT.FOLDER).with_suffix("").as_posix(): path for path in recipe_files(SCRIPT.FOLDER)}
SECTIONS = {"tune": "search", "sweep": "grid"}
HEADERS = {name: read_header(path) for name, path in RECIPES.items()}
VERBS = {name: shlex.split(header["command"])[1] for name, header in HEADERS.items()}
FIRST = set({name.rpartition("/")[0]: name for name in reversed(RECIPES)}.values())
"""The first recipe of each folder."""
SCHEMAS = {"train": Recipe.schema(), "refine": RefinerRecipe.schema()}


def test_the_page_of_all_recipes_is_current() -> None:
    assert (SCRIPT.FOLDER / "README.md").read_text() == SCRIPT.readme(), "run: python recipes/update_readme.py"


def test_each_recipe_says_what_it_is_and_its_keys_are_known() -> None:
    for name, header in HEADERS.items():
        assert {"title", "command", "cost", "expected"} <= set(header), name
        assert "/" not in name or {"paper", "row", "evaluate"} <= set(header), name
        assert f"recipes/{name}.yaml" in shlex.split(header["command"]), name
        verb, file = VERBS[name], RecipeFile.read(RECIPES[name])
        if verb in SECTIONS:
            assert file.values.pop(SECTIONS[verb]), name
        RecipeCheck(SCHEMAS["refine" if verb == "refine" else "train"], verb, file, []).read()


def test_the_settings_of_each_study_are_known() -> None:
    for name, verb in VERBS.items():
        if verb in SECTIONS:
            StudyRecipe.read(SECTIONS[verb], RECIPES[name]).check(SCHEMAS["train"], verb)


PUBLISHED = [name for name in RECIPES if "/" in name]
ALSO_QUICK = {
    "recall_at_k/landmarks_resnet101_2048",  # whole images
    "center_contrastive/table3_co_teaching_plus",  # two models
}
QUICK = FIRST | ALSO_QUICK
TRANSFORMERS = ("vit", "deit", "eva")
NUM_NEIGHBORS = 10  # at most, which the tiny test sets have


def values_of(name: str) -> dict[str, Any]:
    """The settings of a recipe; of a grid or a search, those of its first cell."""
    if VERBS[name] not in SECTIONS:
        return RecipeFile.read(RECIPES[name]).values
    study = StudyRecipe.read(SECTIONS[VERBS[name]], RECIPES[name])
    return study.recipe({key: values.values()[0] for key, values in study.space.items()}).config


def overrides(values: dict[str, Any], folder: Path) -> list[str]:
    """What makes a recipe small enough, and leaves its loss, optimizer, schedule and sampling as they are."""
    model, transform = values.get("model", {}), values.get("transform", {})
    backbone = "test_vit" if str(model.get("backbone")).startswith(TRANSFORMERS) else "test_resnet"
    words = [f"--model.backbone={backbone}", "--model.pretrained=false", "--max_steps=2", "--accelerator=cpu"]
    words += ["--data.num_workers=0", "--precision=32", "--log_every=1", "--transform.channels=3"]
    whole = transform.get("longest") is not None
    words += ["--transform.longest=40"] if whole else ["--transform.size=32", "--transform.resize=32"]
    per_class = min(2, values.get("samples_per_class", 4))
    words += ["--batch_size=8", f"--samples_per_class={per_class}"]
    if values.get("micro_batch_size"):
        words += ["--micro_batch_size=1" if whole else "--micro_batch_size=4"]
    if values.get("coarse_classes_per_batch"):
        words += ["--coarse_classes_per_batch=2"]
    if model.get("head_whitening"):
        words += ["--model.dim=16", f"--model.head_whitening={whitening(folder, 96)}"]
    elif model.get("dim", 512) is not None:
        words += ["--model.dim=16"]
    if values["data"].get("noise", {}).get("foreign"):
        words += [f"--data.noise.foreign={foreign_images(folder / 'foreign')}"]
    return words


def foreign_images(folder: Path) -> Path:
    for number in range(4):
        write_image(folder / "birds" / f"{number}.jpg", number)
    return folder


def whitening(folder: Path, dim: int) -> Path:
    vectors = np.random.default_rng(0).standard_normal((200, dim))
    PCAWhitening.fit(vectors, dim=16).save(folder / "whitening.safetensors")
    return folder / "whitening.safetensors"


def evaluations(name: str, run: Path, root: Path) -> list[list[str]]:
    words = [{"run": str(run), "DATA": str(root)}.get(word, word) for word in shlex.split(HEADERS[name]["evaluate"])]
    words = [str(min(int(word), NUM_NEIGHBORS)) if word.isdecimal() else word for word in words]
    starts = [at for at, word in enumerate(words) if word == "vicinal"]
    return [words[start + 1 : end] for start, end in zip(starts, [*starts[1:], None], strict=False)]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in PUBLISHED]
)
def test_a_recipe_trains_and_is_evaluated(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    run = tmp_path / "run"
    if VERBS[name] == "refine":
        embeddings = save_clusters(tmp_path / "embeddings.parquet")
        words = ["refine", str(RECIPES[name]), f"--embeddings={embeddings}", "--epochs=1", "--batch_size=32"]
        words += ["--refiner.num_heads=2", "--guardrail_metrics=[]", "--accelerator=cpu", "--out", str(run)]
        assert main(words) in (0, 1), capsys.readouterr().err  # it need not be better than none
        return
    values = values_of(name)
    accept_small(monkeypatch, *WRITERS)
    accept_small_more(monkeypatch)
    writers = {**WRITERS, **MORE_WRITERS}
    source = values["data"]["source"]
    evaluated = {word for words in evaluations(name, run, tmp_path) for word in words if word in writers}
    for benchmark in {source, *evaluated}:
        writers[benchmark](tmp_path / "data")
    recipe = RECIPES[name] if VERBS[name] == "train" else tmp_path / "cell.yaml"
    if VERBS[name] != "train":
        recipe.write_text(dump_yaml(values))
    small = [*overrides(values, tmp_path), f"--data.root={tmp_path / 'data'}", "--out", str(run)]
    assert main(["train", str(recipe), *small]) == 0, capsys.readouterr().err
    assert len(Table.from_parquet(run / "table.parquet")) > 0
    for words in evaluations(name, run, tmp_path / "data"):
        if words[0] == "evaluate" and not any(word.startswith("timm/") for word in words):  # published weights
            assert output(capsys, *words, "--num_workers", "0", "--json")
