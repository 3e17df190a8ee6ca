"""What kind of embedding source a path is, and the models that the command is given."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tests.refusals import refused_call
from vicinal.cli.main import main
from vicinal.data import Table, save_embeddings
from vicinal.models import ContextRefiner, Embedder
from vicinal.retrieval import Index
from vicinal.training.checkpoint import save_checkpoint
from vicinal.training.recipes.recipe import Recipe
from vicinal.utils.errors import InputError
from vicinal.utils.run_folder import RunFolder
from vicinal.workflows import Source
from vicinal.workflows.embedding_reader import EmbeddingReader
from vicinal.workflows.models import check_backbone, load_model, load_refiner


def test_kinds(photos: Path, tmp_path: Path) -> None:
    table, vectors = Table.from_folder(photos), np.eye(48, dtype=np.float32)
    table.save(tmp_path / "table.parquet")
    save_embeddings(tmp_path / "vectors.parquet", vectors, table)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    Index.build(vectors, table).save(tmp_path / "index")
    Embedder("test_resnet", dim=8, pretrained=False).save_pretrained(tmp_path / "model")
    for run in ("run", "refiner"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "recipe.yaml").write_text("seed: 0\n")
    (tmp_path / "refiner" / "embeddings.parquet").write_bytes(b"")
    for path, kind in (
        (tmp_path / "run", "run"),
        (tmp_path / "refiner", "refiner run"),
        (tmp_path / "vectors.parquet", "embeddings"),
        ("missing.npy", "embeddings"),
        (tmp_path / "index", "index"),
        (tmp_path / "model", "embedder"),
        (photos / "class0" / "0.png", "image"),
        (photos, "images"),
        (tmp_path / "table.parquet", "images"),
        (tmp_path / "broken.parquet", "images"),
        ("missing.png", "images"),
    ):
        assert Source(str(path)).kind == kind


@pytest.mark.parametrize("config", ["", "[]", "{", "{}", '{"format": ["vicinal-index"]}', '{"format": "another"}'])
def test_other_folders_hold_images(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    assert Source(str(tmp_path)).kind == "images"


def test_remembered_names_are_taken_where_there_are_no_usual(tmp_path: Path) -> None:
    cells, file = {"file": "a.png", "kind": "cat", "path": "b.png", "label": "dog"}, tmp_path / "t.csv"
    remembered = {"path_column": "file", "label_column": "kind"}
    for names, path, label in ((("file", "kind"), "a.png", "cat"), (("file", "path", "kind", "label"), "b.png", "dog")):
        file.write_text(f"{','.join(names)}\n{','.join(cells[name] for name in names)}\n")
        table = Source(str(file), remembered=remembered).table
        assert (table.paths, table.classes) == ([str(tmp_path / path)], [label])  # the usual names come first
        given = Source(str(file), path_column="kind", label_column="file", remembered=remembered).table
        assert given.classes == ["a.png"]


def test_several_sources_keep_labels_and_order(model: str, photos: Path) -> None:
    one, two = photos / "class1" / "0.png", photos / "class2" / "0.png"
    parts = list(EmbeddingReader(model=model).embed_sources([str(one), str(two), str(photos), str(one)]))
    assert [len(part.vectors) for part in parts] == [2, 48, 1]
    assert [part.table.has("label") for part in parts] == [False, True, False]
    np.testing.assert_allclose(parts[0].vectors[0], parts[2].vectors[0], rtol=1e-5, atol=1e-6)
    assert len({part.fingerprint for part in parts}) == 1


@pytest.mark.parametrize("max_size", [None, 20])
def test_what_cannot_be_read_in_a_folder_is_left_out_at_any_scale(
    model: str, photos: Path, tmp_path: Path, max_size: int | None
) -> None:
    shutil.copytree(photos / "class1", tmp_path / "photos")
    (tmp_path / "photos" / "1.png").write_bytes(b"")
    reader = EmbeddingReader(model=model, scales=(1.0,), max_size=max_size)
    embedded = reader.embed(str(tmp_path / "photos"))
    paths = [path for path in Source(str(tmp_path / "photos")).table.paths if Path(path).name != "1.png"]
    assert embedded.table.paths == paths
    assert embedded.num_left_out == 1
    alone = reader.embed(paths[-1])
    np.testing.assert_allclose(embedded.vectors[-1], alone.vectors[0], rtol=1e-5, atol=1e-6)


def test_embeddings_in_a_file_keep_the_fingerprint_of_their_model(model: str, photos: Path, tmp_path: Path) -> None:
    fingerprint = load_model(model).fingerprint()
    for file, known in (("v.parquet", fingerprint), ("v.npy", None)):
        assert main(["embed", str(photos), "--model", model, "--out", str(tmp_path / file)]) == 0
        assert EmbeddingReader().embed(str(tmp_path / file)).fingerprint == known
    again = tmp_path / "again.parquet"
    assert main(["embed", str(tmp_path / "v.parquet"), "--out", str(again)]) == 0
    assert EmbeddingReader().embed(str(again)).fingerprint == fingerprint


def test_conditions_know_the_columns_that_an_index_was_made_with(tmp_path: Path) -> None:
    made_with = {"path_column": "file", "label_column": "kind"}
    table = Table(pd.DataFrame({"path": ["a.png", "b.png"], "label": ["cup", "bowl"]}))
    Index.build(np.eye(2), table, made_with=made_with).save(tmp_path / "i")
    found = EmbeddingReader(where="kind == 'bowl' and 'b.png' in file").embed(str(tmp_path / "i"))
    assert found.table.frame["label"].tolist() == ["bowl"]


def test_other_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text("seed: 0\n")
    ContextRefiner(8, num_heads=2).save_pretrained(tmp_path / "refiner" / "model")
    (tmp_path / "refiner" / "recipe.yaml").write_text("seed: 0\n")
    Embedder("test_resnet", dim=8, pretrained=False).save_pretrained(tmp_path / "model")
    for path, message in (
        (tmp_path / "none", "no such folder"),
        (tmp_path / "empty", r"has no config\.json"),
        (tmp_path / "run", "run has no finished refiner"),
        (tmp_path / "model", "is an embedder, not a context refiner; give it with --model"),
        ("someone/refiner-that-is-nowhere", "none from the hub"),
    ):
        refused_call(message, load_refiner, str(path))
    refused_call("run has no finished model; continue the run with: vicinal train", load_model, str(tmp_path / "run"))
    refused_call("is a context refiner, not an embedder; give it with --refiner", load_model, str(tmp_path / "refiner"))


def test_a_run_that_is_not_finished_has_the_weights_of_its_best_evaluation(tmp_path: Path, capsys) -> None:
    settings = ["--model.backbone=test_resnet", "--model.pretrained=false", "--model.dim=8", "--transform.size=32"]
    recipe = Recipe.load(overrides=settings)
    run = RunFolder(tmp_path)
    recipe.save(run.recipe)
    trained = recipe.create_embedder()
    state = {f"embedder.{name}": value for name, value in trained.state_dict().items()}
    save_checkpoint(run.best, {"module": state, "metrics": {}, "epoch": 3})
    assert load_model(str(tmp_path)).fingerprint() == trained.fingerprint()
    assert "is not finished: using the weights of its best evaluation so far, after epoch 3" in capsys.readouterr().err
    save_checkpoint(run.best, {"module": {"embedder.adapter": torch.zeros(1)}, "metrics": {}, "epoch": 3})
    refused_call(r"best\.pt does not fit its recipe without adapters; finish the run with", load_model, str(tmp_path))


def test_untrained_backbones(offline: None) -> None:
    model = load_model("timm/test_resnet.r160_in1k")
    assert not model.training
    config = [model.config[name] for name in ("pooling", "norm", "dim")]
    assert (model.dim, config) == (96, ["backbone", "none", None])
    assert load_model("timm/test_resnet", "gem").config["pooling"] == "gem"
    assert load_model("test_resnet").config["backbone"] == "test_resnet"
    assert load_model("timm/deit_s16_in1k").config["pooling"] == "token"


def test_a_folder_wins_over_a_backbone_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Embedder("test_resnet", dim=8, pretrained=False).save_pretrained("resnet50")
    assert load_model("resnet50").dim == 8


def test_untrained_backbones_that_do_not_exist(offline: None, tmp_path: Path) -> None:
    refused_call("model timm/resnet5O: backbone: timm has no model 'resnet5O'; nearest:", load_model, "timm/resnet5O")
    refused_call("model resnet5O: no such folder; backbone: timm has no", load_model, "resnet5O")
    with pytest.raises(InputError, match="model timm/test_resnet: pooling 'token': test_resnet has no class token"):
        load_model("timm/test_resnet", "token")
    refused_call("model timm/: backbone: 'timm/' is not the name of a timm model", check_backbone, "timm/")
    refused_call("run has its own pooling; pooling is for backbones", load_model, str(tmp_path / "run"), "gem")
