"""`vicinal index` and `vicinal search`."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from tests.conftest import output, refused


def test_search_for_an_image_a_folder_and_vectors(index: Path, run: Path, photos: Path, tmp_path: Path, capsys) -> None:
    picture = photos / "class3" / "2.png"
    text = output(capsys, "search", index, picture, "--model", run, "-k", "3")
    assert text.splitlines()[0] == str(picture)
    assert text.splitlines()[1].split() == ["1", "1.0000", "class3", str(picture)]
    found = json.loads(output(capsys, "search", index, picture, "--model", run, "--json", "--exclude-self"))
    assert len(found[0]["matches"]) == 10
    assert str(picture) not in [match["path"] for match in found[0]["matches"]]
    assert set(found[0]["matches"][0]) == {"id", "path", "label", "score"}
    words = ["search", index, photos / "class0", picture, "--model", run, "-k", "4"]
    assert len(json.loads(output(capsys, *words, "--json", "--grid", tmp_path / "found.png"))) == 7
    with Image.open(tmp_path / "found.png") as grid:
        assert min(grid.size) > 300
    output(capsys, "embed", photos, "--model", run, "--out", tmp_path / "v.parquet")
    by_vector = json.loads(output(capsys, "search", index, tmp_path / "v.parquet", "--json"))
    assert [each["matches"][0]["path"] for each in by_vector] == [each["query"]["path"] for each in by_vector]


def test_a_small_index_gives_all(run: Path, photos: Path, tmp_path: Path, capsys) -> None:
    output(capsys, "index", "build", tmp_path / "index", photos / "class0", "--model", run)
    found = json.loads(output(capsys, "search", tmp_path / "index", photos / "class0" / "0.png", "--json"))
    assert len(found[0]["matches"]) == 6


def test_matching_patches_of_the_query_and_its_matches(index: Path, photos: Path, tmp_path: Path, capsys) -> None:
    picture = photos / "class3" / "2.png"
    flags = ["search", index, picture, "-k", "3", "--rerank", "local", "--local.size", "64", "--local.dim", "8"]
    text = output(capsys, *flags)
    assert text.splitlines()[1].split() == ["1", "1.5000", "class3", str(picture), "(matching_patches", "16)"]
    found = json.loads(output(capsys, *flags, "--json", "--exclude_self", "--where", "label == 'class3'"))
    scores = [match["score"] for match in found[0]["matches"]]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= match["matching_patches"] < 16 for match in found[0]["matches"])
    text = output(capsys, *flags, "--exclude_self", "--rerank.min_similarity", "1")
    assert text.splitlines()[0] == f"{picture}  -> no match has a patch in common with it"


def test_matching_patches_are_drawn(index: Path, photos: Path, tmp_path: Path, capsys) -> None:
    picture, drawing = photos / "class3" / "2.png", tmp_path / "patches.png"
    flags = ["search", index, picture, "-k", "3", "--rerank", "local", "--local.size", "64", "--local.dim", "8"]
    output(capsys, *flags, "--patches", drawing)
    pixels = np.asarray(Image.open(drawing).convert("RGB")).astype(int)
    between = pixels[20 : pixels.shape[0] // 3 - 100, int(0.495 * pixels.shape[1]) : int(0.505 * pixels.shape[1])]
    assert pixels.shape[0] > pixels.shape[1]  # three pairs, one below the other
    assert ((between[..., 0] - between[..., 2]) > 60).any()  # lines cross the space between the first two
    said = refused(capsys, "search", index, picture, "--patches", drawing)
    assert "--patches draws what --rerank local finds; give that too" in said


def test_stored_embeddings_have_no_local_features(index: Path, run: Path, tmp_path: Path, capsys) -> None:
    output(capsys, "embed", run, "--split", "test", "--out", tmp_path / "v.npy")
    for words in (["search", index, tmp_path / "v.npy", "--rerank", "local"],
                  ["index", "build", tmp_path / "index", tmp_path / "v.npy", "--local"]):  # fmt: skip
        error = refused(capsys, *words)
        assert "local features need images and a model with a timm backbone, not stored embeddings" in error
    assert not (tmp_path / "index").exists()
