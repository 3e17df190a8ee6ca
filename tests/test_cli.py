"""The command as a user meets it: the whole way from a folder of images to search, and what its help says."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from tests.conftest import output
from tests.training.test_refiner import TINY, save_clusters
from vicinal.cli import VERBS, main
from vicinal.cli_arguments import RERANK_OPTIONS
from vicinal.data import Table, fingerprint_of, load_embeddings, open_set_labels, save_embeddings
from vicinal.data.open_set_noise import CLUSTER_SIZE
from vicinal.models import ContextRefiner, Embedder
from vicinal.retrieval import (
    ContextualReranking,
    DatabaseAugmentation,
    NeighborAverage,
    QueryExpansion,
    ReciprocalReranking,
    refine,
)
from vicinal.training import Recipe
from vicinal.training.refiner_settings import RefinerSettings
from vicinal.training.settings import Noise
from vicinal.training.setup import load_table


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    from tests.conftest import SMALL

    out = tmp_path_factory.mktemp("runs") / "run"
    assert main(["train", "--data.source", str(photos), *SMALL, "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def index(run: Path, photos: Path) -> Path:
    folder = run.parent / "index"
    assert main(["index", str(folder), "--source", str(photos), "--model", str(run)]) == 0
    return folder


def test_data_shows_statistics_and_saves_a_table(photos: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "table.csv"
    text = output(capsys, "data", photos, "--shares", "train=0.5", "test=0.5", "--out", out)
    assert text.split() == (
        [
            "images",
            "classes",
            "per",
            "class:",
            "min",
            "median",
            "max",
            "train",
            "24",
            "4",
            "6",
            "6",
            "6",
            "test",
            "24",
            "4",
            "6",
            "6",
            "6",
            "all",
            "48",
            "8",
            "6",
            "6",
            "6",
        ]
    )
    assert len(pd.read_csv(out)) == 48
    assert json.loads(output(capsys, "data", out, "--json"))["splits"]["test"]["classes"] == 4


def test_data_puts_noise_into_the_split_that_is_trained_on(photos: Path, tmp_path: Path, capsys) -> None:
    foreign, plain, out = tmp_path / "foreign", tmp_path / "plain.csv", tmp_path / "noisy.csv"
    foreign.mkdir()
    for number in range(5):
        Image.new("RGB", (20, 24)).save(foreign / f"{number}.png")
    shares = ["--shares", "train=0.75", "test=0.25", "--seed", "2"]
    noise = ["--first-classes", "0.5", "--random-labels", "0.5", "--foreign", foreign, "--foreign-share", "0.25"]
    output(capsys, "data", photos, *shares, "--out", plain)
    text = output(capsys, "data", photos, *shares, *noise, "--out", out)
    assert text.splitlines()[1].split()[:3] == ["train", "18", "3"]
    before, after = pd.read_csv(plain), pd.read_csv(out)
    test = ["path", "label", "split"]
    assert (after[after["split"] == "test"][test].to_numpy() == before[before["split"] == "test"][test]).all(axis=None)
    assert not after["noisy_label"][after["split"] == "test"].any()
    assert (after["noisy_label"].sum(), after["noisy_image"].sum()) == (9, 4)  # of 18; half of 9 rounds to the even 4
    assert (after["path"].str.startswith(str(foreign)) == after["noisy_image"]).all()
    assert text.splitlines()[0].split()[-4:] == ["wrong", "labels", "foreign", "images"]
    assert [line.split()[-2:] for line in text.splitlines()[1:3]] == [["50.0%", "22.2%"], ["0.0%", "0.0%"]]
    recipe = ["--data.shares={train: 0.75, test: 0.25}", "--seed=2", "--data.noise.classes=0.5"]
    recipe += ["--data.noise.random_labels=0.5", f"--data.noise.foreign={foreign}", "--data.noise.foreign_share=0.25"]
    trained_on = load_table(Recipe.load(overrides=[f"--data.source={photos}", *recipe]).settings)
    pd.testing.assert_frame_equal(trained_on.frame, after, check_dtype=False)


def test_data_and_a_recipe_put_in_the_same_label_noise(photos: Path, tmp_path: Path, capsys) -> None:
    pairs, out = tmp_path / "pairs.csv", tmp_path / "noisy.csv"
    pairs.write_text("label,confused_with\nclass0,class1\nclass0,class2\nclass3,class4\n")
    noise = ["--open-set-labels", "0.4", "--open-set-cluster-size", "3", "--confused-labels", "0.5"]
    noisy = json.loads(output(capsys, "data", photos, *noise, "--confusions", pairs, "--out", out, "--json"))
    frame = pd.read_csv(out)
    assert (frame["label"].nunique(), frame["label_clean"].nunique()) == (5, 8)
    assert noisy["noise"] == {"wrong_labels": (frame["label"] != frame["label_clean"]).mean()}
    plain = tmp_path / "plain.csv"
    Table.from_folder(photos).split_classes(classes={"train": [f"class{i}" for i in range(8)]}).save(plain)
    recipe = [f"--data.source={plain}", "--data.noise.open_set_labels=0.4", "--data.noise.open_set_cluster_size=3"]
    recipe += ["--data.noise.confused_labels=0.5", f"--data.noise.confusions={pairs}"]
    trained_on = load_table(Recipe.load(overrides=recipe).settings)
    pd.testing.assert_frame_equal(trained_on.frame[frame.columns], frame, check_dtype=False)


def test_without_a_size_of_clusters_it_is_that_of_the_function(photos: Path, tmp_path: Path, capsys) -> None:
    output(capsys, "data", photos, "--open-set-labels", "0.5", "--out", tmp_path / "noisy.csv")
    frame = open_set_labels(Table.from_folder(photos), 0.5).frame
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "noisy.csv"), frame, check_dtype=False)
    assert Noise().open_set_cluster_size == CLUSTER_SIZE


def test_train_prints_the_model_and_resumes(run: Path, capsys) -> None:
    assert output(capsys, "train", "--out", run, "--resume").strip() == str(run / "model")


@pytest.mark.parametrize("source", ["run", "embeddings.parquet", "embeddings.npy", "photos"])
def test_evaluate_takes_any_source(source: str, run: Path, photos: Path, tmp_path: Path, capsys) -> None:
    paths = {"run": run, "photos": photos}
    more = ["--model", run / "model"] if source == "photos" else []
    if source.startswith("embeddings"):
        assert output(capsys, "embed", run, "--out", tmp_path / source).strip() == str(tmp_path / source)
    path = paths.get(source, tmp_path / source)
    result = json.loads(output(capsys, "evaluate", path, *more, "--json", "--recall-at", "1", "3"))
    assert set(result["metrics"]) == {"recall@1", "recall@3", "mAP@R", "R-precision", "mAP"}
    assert result["queries"] == 48
    if source != "photos":
        test = json.loads(output(capsys, "evaluate", path, "--split", "test", "--json"))
        assert test["queries"] == 12
    assert "recall@1" in output(capsys, "evaluate", path, *more)


def test_evaluate_shows_metrics_before_and_after_reranking(run: Path, tmp_path: Path, capsys) -> None:
    plain = json.loads(output(capsys, "evaluate", run, "--json"))
    options = {
        "contextual": ("k=5, beta=0.2, epsilon=0.01", "--rerank.k", 5, "--rerank.beta", 0.2, "--rerank.epsilon", 0.01),
        "reciprocal": ("k1=7, k2=2, lam=0.5", "--rerank.k1", 7, "--rerank.k2", 2, "--rerank.lam", 0.5),
        "query-expansion": ("n=4, alpha=1.0", "--rerank.n", 4, "--rerank.alpha", 1),
        "database-augmentation": ("n=10, alpha=3.0",),
    }
    for name, (method, *more) in options.items():
        result = json.loads(output(capsys, "evaluate", run, "--rerank", name, *more, "--json"))
        assert result["metrics"] == plain["metrics"]
        assert result["reranked"]["method"].endswith(f"({method})")
        assert set(result["reranked"]["metrics"]) == set(plain["metrics"])
    text = output(capsys, "evaluate", run, "--rerank", "contextual")
    assert text.splitlines()[1] == "re-ranked: ContextualReranking(k=16, beta=0.1, epsilon=0.0)"
    assert text.splitlines()[2].split() == ["plain", "re-ranked"]


@pytest.fixture(scope="module")
def refiner(run: Path) -> Path:
    """A refiner for the run's model that moves embeddings far."""
    torch.manual_seed(0)
    made = ContextRefiner(16, depth=2, heads=2, neighbors=4)
    for block in made.blocks:
        torch.nn.init.normal_(block.output, std=0.3)
    made.model_fingerprint = Embedder.from_pretrained(run / "model").fingerprint()
    made.save_pretrained(run.parent / "refiner")
    return run.parent / "refiner"


def test_evaluate_shows_metrics_before_and_after_refinement(run: Path, refiner: Path, tmp_path: Path, capsys) -> None:
    plain = json.loads(output(capsys, "evaluate", run, "--json"))
    result = json.loads(output(capsys, "evaluate", run, "--refiner", refiner, "--json"))
    assert result["metrics"] == plain["metrics"] != result["refined"]["metrics"]
    assert result["refined"]["method"] == "Refinement(depth=2, neighbors=4, context='everything')"
    text = output(capsys, "evaluate", run, "--refiner", refiner).splitlines()
    assert text[1] == "refined: Refinement(depth=2, neighbors=4, context='everything')"
    assert (text[2].split(), len(text[2])) == (["plain", "refined"], len(text[3]))
    both = json.loads(output(capsys, "evaluate", run, "--refiner", refiner, "--rerank", "query-expansion", "--json"))
    assert both["reranked"]["method"].endswith("context='everything'), then QueryExpansion(n=10, alpha=3.0)")
    assert both["reranked"]["metrics"] != result["refined"]["metrics"]
    frame, sides = pd.DataFrame({"label": np.arange(48) % 8}), np.arange(48) % 3 == 0
    vectors = np.random.default_rng(0).normal(size=(48, 16)).astype(np.float32)
    save_embeddings(tmp_path / "v.parquet", vectors, Table(frame.assign(is_query=sides, is_gallery=~sides)))
    everything, gallery = (
        json.loads(
            output(capsys, "evaluate", tmp_path / "v.parquet", "--refiner", refiner, "--context", each, "--json")
        )
        for each in ("everything", "gallery")
    )
    assert everything["metrics"] == gallery["metrics"]
    assert everything["refined"]["metrics"] != gallery["refined"]["metrics"]


def test_embeddings_are_refined_and_say_so(run: Path, refiner: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "refined.parquet"
    output(capsys, "embed", run, "--split", "test", "--refiner", refiner, "--out", out)
    output(capsys, "embed", run, "--split", "test", "--out", tmp_path / "plain.parquet")
    refined, plain = load_embeddings(out)[0], load_embeddings(tmp_path / "plain.parquet")[0]
    np.testing.assert_allclose(refined, refine(ContextRefiner.from_pretrained(refiner), plain), atol=1e-6)
    model = fingerprint_of(tmp_path / "plain.parquet")
    assert fingerprint_of(out) == f"{model}+{ContextRefiner.from_pretrained(refiner).fingerprint()}"
    assert main(["evaluate", str(out), "--refiner", str(refiner)]) == 2  # twice is once too often
    assert "was trained for embeddings of the model" in capsys.readouterr().err


def test_a_refiner_for_embeddings_of_an_unknown_model(run: Path, refiner: Path, tmp_path: Path, capsys) -> None:
    output(capsys, "embed", run, "--split", "test", "--out", tmp_path / "v.npy")
    assert main(["evaluate", str(tmp_path / "v.npy"), "--refiner", str(refiner)]) == 0
    assert "v.npy does not say what model made its embeddings; the refiner is for those of" in capsys.readouterr().err


def test_an_index_with_a_refiner(run: Path, refiner: Path, photos: Path, tmp_path: Path, capsys) -> None:
    folder, how = tmp_path / "index", ["--model", run, "--refiner", refiner]
    output(capsys, "index", folder, "--source", photos, *how)
    output(capsys, "index", folder, "--add", photos / "class1" / "0.png", *how)
    facts = json.loads(output(capsys, "index", folder, "--delete", "48", "--json"))
    fingerprint = ContextRefiner.from_pretrained(refiner).fingerprint()
    assert (facts["images"], facts["refiner_fingerprint"]) == (48, fingerprint)
    assert f"refiner_fingerprint  {fingerprint}" in output(capsys, "index", folder)
    picture = photos / "class3" / "2.png"
    text = output(capsys, "search", folder, picture, *how, "-k", "3")
    assert text.splitlines()[1].split() == ["1", "1.0000", "class3", str(picture)]
    found = json.loads(output(capsys, "search", folder, picture, *how, "--json", "--leave-out-itself"))
    assert str(picture) not in [match["path"] for match in found[0]["matches"]]
    plain = tmp_path / "plain"
    output(capsys, "index", plain, "--source", photos, "--model", run)
    unrefined = json.loads(output(capsys, "search", plain, picture, "--model", run, "--json", "--leave-out-itself"))
    assert [match["id"] for match in found[0]["matches"]] != [match["id"] for match in unrefined[0]["matches"]]


def test_refine_prints_the_model_and_evaluate_finds_what_the_log_says(tmp_path: Path, capsys) -> None:
    embeddings, out = save_clusters(tmp_path / "e.parquet"), tmp_path / "out"
    assert main(["refine", "--embeddings", str(embeddings), *TINY, "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert said.out.strip() == str(out / "model")
    assert said.err.splitlines()[-1].endswith(f"vicinal evaluate RUN --refiner {out}")
    result = json.loads(output(capsys, "evaluate", embeddings, "--split", "val", "--refiner", out, "--json"))
    plain, refined = result["metrics"], result["refined"]["metrics"]
    changes = [f"{name} {plain[name]:.2%} -> {refined[name]:.2%}" for name in ("mAP@R", "recall@1")]
    assert f"on 8 classes not trained on: {', '.join(changes)}" in said.err.splitlines()
    log = pd.read_csv(out / "metrics.csv")
    best = log.iloc[log["mAP@R"].idxmax()]
    for metrics, line in ((plain, log.iloc[0]), (refined, best)):
        assert metrics == pytest.approx({name: line[name] for name in metrics}, rel=1e-5)
    assert output(capsys, "refine", "--out", out, "--resume").strip() == str(out / "model")


def test_a_refiner_that_does_not_help_is_one_line_and_no_model(tmp_path: Path, capsys) -> None:
    embeddings, out = save_clusters(tmp_path / "e.parquet", val_noise=0), tmp_path / "out"
    for more in ([], ["--resume"]):
        assert main(["refine", "--embeddings", str(embeddings), *TINY, "--out", str(out), *more]) == 1
        said = capsys.readouterr()
        message = said.err.splitlines()[-1]
        assert message.startswith("vicinal refine: error: refining does not help on classes not trained on: no epoch")
        assert "had a higher mAP@R than the 100.00% of the embeddings as they come" in message
        assert (said.err.count("error"), said.out) == (1, "")
    assert not (out / "model").exists()
    assert {"log.csv", "metrics.csv", "curves.png", "recipe.yaml"} < {path.name for path in out.iterdir()}
    assert main(["evaluate", str(embeddings), "--refiner", str(out)]) == 2
    assert "out has no finished refiner" in capsys.readouterr().err


def test_help_of_reranking_names_the_defaults() -> None:
    methods = (
        ContextualReranking(),
        ReciprocalReranking(),
        QueryExpansion(),
        DatabaseAugmentation(),
        NeighborAverage(),
    )
    for method in methods:
        for option, default in dataclasses.asdict(method).items():
            defaults = RERANK_OPTIONS[option][1].rpartition("(default: ")[2]
            assert f"{default:g}" in re.findall(r"[\d.]+", defaults), option
    assert set(RERANK_OPTIONS) == {field.name for method in methods for field in dataclasses.fields(method)}


def test_evaluate_says_how_many_labels_were_made_wrong(tmp_path: Path, capsys) -> None:
    frame = pd.DataFrame({"label": list("aabbccddeeff"), "split": ["train"] * 6 + ["test"] * 6})
    frame["noisy_label"] = np.arange(12) == 5
    save_embeddings(tmp_path / "v.npy", np.eye(12, dtype=np.float32), Table(frame))  # the table is a CSV file
    said = []
    for more in ([], ["--split", "test"]):
        assert main(["evaluate", str(tmp_path / "v.npy"), *more]) == 0
        said.append(capsys.readouterr().err)
    place = tmp_path / "v.npy"
    all_splits, *wrong = said[0].splitlines()
    assert "--split test measures the test's" in all_splits
    assert wrong == [f"{place}: 1 of the 12 labels evaluated were made wrong on purpose (noisy_label)"]
    assert said[1] == ""


def test_embed_writes_vectors_with_paths_and_labels(run: Path, photos: Path, tmp_path: Path, capsys) -> None:
    output(capsys, "embed", photos, "--model", run, "--out", tmp_path / "v.npy", "--precision", "bf16", "--batch", "5")
    vectors, table = np.load(tmp_path / "v.npy"), pd.read_csv(tmp_path / "v.table.csv")
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    assert table["label"][0] == "class0"
    assert Path(table["path"][0]).is_file()


def test_search_for_an_image_a_folder_and_vectors(index: Path, run: Path, photos: Path, tmp_path: Path, capsys) -> None:
    picture = photos / "class3" / "2.png"
    text = output(capsys, "search", index, picture, "--model", run, "-k", "3")
    assert text.splitlines()[0] == str(picture)
    assert text.splitlines()[1].split() == ["1", "1.0000", "class3", str(picture)]
    found = json.loads(output(capsys, "search", index, picture, "--model", run, "--json", "--leave-out-itself"))
    assert len(found[0]["matches"]) == 10
    assert str(picture) not in [match["path"] for match in found[0]["matches"]]
    assert set(found[0]["matches"][0]) == {"id", "path", "label", "score"}
    folder = json.loads(output(capsys, "search", index, photos, picture, "--model", run, "--json"))
    assert len(folder) == 49
    output(capsys, "embed", photos, "--model", run, "--out", tmp_path / "v.parquet")
    by_vector = json.loads(output(capsys, "search", index, tmp_path / "v.parquet", "--json"))
    assert [each["matches"][0]["path"] for each in by_vector] == [each["query"]["path"] for each in by_vector]


def test_search_draws_a_grid(index: Path, run: Path, photos: Path, tmp_path: Path, capsys) -> None:
    output(capsys, "search", index, photos / "class0", "--model", run, "-k", "4", "--grid", tmp_path / "found.png")
    with Image.open(tmp_path / "found.png") as picture:
        assert min(picture.size) > 300


def test_index_tells_adds_and_deletes(run: Path, photos: Path, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "index"
    output(capsys, "index", folder, "--source", photos / "class0", "--model", run)
    output(capsys, "index", folder, "--add", photos / "class1", "--model", run, "--delete", "0", "2")
    facts = json.loads(output(capsys, "index", folder, "--json"))
    assert (facts["kind"], facts["images"], facts["deleted"], facts["dimensions"]) == ("exact", 10, 2, 16)
    assert "images               10" in output(capsys, "index", folder)
    found = json.loads(output(capsys, "search", folder, photos / "class0" / "0.png", "--model", run, "--json"))
    assert {match["id"] for match in found[0]["matches"]} == {1, *range(3, 12)}


@pytest.mark.parametrize("verb", [verb.__name__ for verb in VERBS])
def test_help_explains_every_verb_and_option(verb: str, capsys) -> None:
    with contextlib.suppress(SystemExit):
        main([verb, "--help"])
    text = capsys.readouterr().out
    assert f"usage: vicinal {verb}" in text
    assert len(text.splitlines()) > 8


def test_help_of_train_lists_all_settings(capsys) -> None:
    text = output(capsys, "train", "--help")
    for setting in (
        "--data.source",
        "--transform.size",
        "--model.backbone",
        "--optimizer.factors.head",
        "--schedule.warmup",
    ):
        assert setting in text
    assert "MultiSimilarityLoss" in text


def test_help_of_refine_lists_all_settings(capsys) -> None:
    text = output(capsys, "refine", "--help")
    settings = [f"--{name}" for name in _names(RefinerSettings(embeddings="e.parquet"))]
    refiner = [f"--refiner.{name}" for name in ("depth", "heads", "neighbors", "dropout", "context")]
    listed = {word.rstrip(",") for word in text.split() if word.startswith("--")}
    assert {*settings, *refiner, "--loss", "--out", "--resume"} <= listed
    assert not any(word.startswith(("--refiner.dim", "--data", "--model")) for word in listed)
    assert "MultiSimilarityLoss" in text


def _names(settings: object) -> list[str]:
    """Of all settings, dotted where they stand in a group."""
    names: list[str] = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        group = dataclasses.is_dataclass(value)
        names += [f"{field.name}.{name}" for name in _names(value)] if group else [field.name]
    return names


def test_help_and_version_are_quick_to_come(capsys) -> None:
    code = "import sys; from vicinal.cli import main; main([]); main(['--version']); print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.endswith("0.1.0\nFalse\n")
    assert "vicinal search gallery picture.jpg" in result.stdout
