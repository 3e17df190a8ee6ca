"""`vicinal index`: building, syncing, listing, deleting, moving."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from tests.conftest import SMALL, output, refused
from vicinal.cli.main import main
from vicinal.data import Table, save_embeddings
from vicinal.retrieval import Index


@pytest.fixture
def shop(photos: Path, tmp_path: Path) -> Path:
    """A copy of twelve photos, and a table of them as a shop would have it."""
    for label in ("class0", "class1"):
        shutil.copytree(photos / label, tmp_path / "shop" / label)
    files = sorted(path.relative_to(tmp_path / "shop") for path in (tmp_path / "shop").rglob("*.png"))
    names = [str(file) for file in files]
    rows = {"file": names, "product": [file.parts[0] for file in files], "price": range(len(files))}
    pd.DataFrame(rows).to_csv(tmp_path / "shop" / "shop.csv", index=False)
    return tmp_path / "shop"


def listed(capsys, folder: Path, *flags: str) -> list[dict]:
    return json.loads(output(capsys, "index", "list", folder, "--json", *flags))


def test_an_index_from_vectors_is_listed_and_changed(tmp_path: Path, capsys) -> None:
    table = Table(pd.DataFrame({"path": ["a/1.png", "a/2.png", "b/1.png"], "price": [1, 20, 30]}), root="/shop")
    save_embeddings(tmp_path / "v.parquet", np.eye(3, dtype=np.float32), table)
    index = tmp_path / "index"
    output(capsys, "index", "build", index, tmp_path / "v.parquet")
    text = output(capsys, "index", "list", index, "--where", "price > 10")
    assert text.splitlines() == ["id,path,price", "1,/shop/a/2.png,20", "2,/shop/b/1.png,30"]
    output(capsys, "index", "add", index, tmp_path / "v.parquet")  # the same again
    assert [row["id"] for row in listed(capsys, index)] == [0, 1, 2]
    output(capsys, "index", "delete", index, "--where", "price == 20")
    assert [row["id"] for row in listed(capsys, index)] == [0, 2]
    output(capsys, "index", "add", index, tmp_path / "v.parquet")
    assert [row["path"] for row in listed(capsys, index)] == ["/shop/a/1.png", "/shop/b/1.png", "/shop/a/2.png"]
    output(capsys, "index", "delete", index, "/shop/a/", "2")
    assert refused(capsys, "index", "delete", index, "/shop/c.png").endswith("and no images in such a folder")
    assert output(capsys, "index", "list", index, "--where", "price > 30").splitlines() == ["id,path,price"]
    output(capsys, "index", "delete", index, "--where", "price > 0")
    assert output(capsys, "index", "list", index).splitlines() == ["id,path,price"]
    message = refused(capsys, "index", "build", index, tmp_path / "v.parquet")
    assert "is already an index; `vicinal index add` or `sync` adds images to it, --overwrite replaces it" in message
    output(capsys, "index", "build", index, tmp_path / "v.parquet", "--overwrite")
    assert len(listed(capsys, index)) == 3
    (tmp_path / "moved" / "a").mkdir(parents=True)
    (tmp_path / "moved" / "a" / "2.png").touch()
    output(capsys, "index", "sync", index, "--root", tmp_path / "moved")
    assert listed(capsys, index)[2]["path"] == str(tmp_path / "moved" / "b" / "1.png")


def test_a_table_as_shops_have_it(run: Path, shop: Path, tmp_path: Path, capsys) -> None:
    index, model = tmp_path / "index", ["--model", run]
    columns = ["--path_column", "file", "--label_column", "product"]
    output(capsys, "index", "sync", index, shop / "shop.csv", *columns, *model)
    assert listed(capsys, index)[3] == {
        "id": 3, "path": str(shop / "class0" / "3.png"), "label": "class0", "price": "3",
    }  # fmt: skip
    picture = shop / "class0" / "3.png"
    text = output(capsys, "search", index, picture, "-k", "2", "--where", "price < 3 and product in ['class0']")
    prices = [int(line.rpartition("(price ")[2].rstrip(")")) for line in text.splitlines()[1:]]
    assert len(prices) == 2
    assert max(prices) < 3
    found = json.loads(output(capsys, "search", index, picture, "--group_by", "product", "--json"))
    assert sorted(match["label"] for match in found[0]["matches"]) == ["class0", "class1"]
    rerank = ["--rerank", "neighbor-average", "--rerank.n", "2"]
    reranked = json.loads(output(capsys, "search", index, picture, "--json", *rerank))
    assert len(reranked[0]["matches"]) == 10
    # The columns are remembered: neither search, add nor sync needs them again.
    assert len(json.loads(output(capsys, "search", index, shop / "shop.csv", "-k", "1", "--json"))) == 12
    frame = pd.read_csv(shop / "shop.csv")
    frame.drop(index=0).assign(price=99).to_csv(shop / "shop.csv", index=False)
    output(capsys, "index", "sync", index, shop / "shop.csv")
    assert [row["id"] for row in listed(capsys, index, "--where", "price == 99")] == list(range(1, 12))
    assert len(listed(capsys, index)) == 11


def test_photos_may_move(run: Path, shop: Path, photos: Path, tmp_path: Path, capsys) -> None:
    def synced(folder: Path) -> str:
        assert main(["index", "sync", str(index), str(folder)]) == 0
        return capsys.readouterr().err

    index, moved = tmp_path / "index", tmp_path / "sold" / "pictures"
    output(capsys, "index", "sync", index, shop, "--model", run)
    output(capsys, "index", "add", index, photos / "class2")
    (tmp_path / "nothing").mkdir()
    assert "nothing is not an index; build one" in refused(capsys, "index", "add", tmp_path / "nothing", photos)
    moved.parent.mkdir()
    shop.rename(moved)
    (moved / "class0" / "0.png").unlink()
    output(capsys, "index", "sync", index, "--root", moved)
    paths = [row["path"] for row in listed(capsys, index)]
    assert paths[:2] == [str(moved / "class0" / "0.png"), str(moved / "class0" / "1.png")]
    assert paths[12:] == [str(photos / "class2" / f"{number}.png") for number in range(6)]
    assert "0 new, 0 changed, 1 vanished, 11 as before" in synced(moved)
    revision = Index.load(index).state.revision
    assert "0 new, 0 changed, 0 vanished, 11 as before" in synced(moved)
    assert Index.load(index).state.revision == revision
    moved.rename(tmp_path / "back")  # and not said so
    assert "0 new, 0 changed, 0 vanished, 0 as before, 11 moved" in synced(tmp_path / "back")
    assert json.loads(output(capsys, "index", "list", index, "--facts", "--json"))["root"] == str(tmp_path / "back")
    (tmp_path / "empty").mkdir()
    said = refused(capsys, "index", "sync", index, "--root", tmp_path / "empty")
    assert "none of the 17 images is in this folder" in said


def test_boxes_are_objects_in_every_verb(run: Path, tmp_path: Path, capsys, photos: Path) -> None:
    """Two photos side by side in one picture are found as the photos themselves."""
    picture, rows = Image.new("RGB", (64, 32)), []
    for number, label in enumerate(("class0", "class1")):
        photo = Image.open(photos / label / "0.png").convert("RGB")
        picture.paste(photo.resize((32, 32)), (32 * number, 0))
        photo.resize((32, 32)).save(tmp_path / f"{label}.png")
        rows.append(["pair.png", label, 32 * number, 0, 32 * number + 32, 32])
    picture.save(tmp_path / "pair.png")
    columns = ["path", "label", "x_1", "y_1", "x_2", "y_2"]
    pd.DataFrame(rows, columns=columns).to_csv(tmp_path / "boxes.csv", index=False)
    output(capsys, "index", "build", tmp_path / "index", tmp_path / "boxes.csv", "--model", run)
    for number, label in enumerate(("class0", "class1")):
        found = json.loads(output(capsys, "search", tmp_path / "index", tmp_path / f"{label}.png", "-k", "1", "--json"))
        (match,) = found[0]["matches"]
        assert (match["label"], match["box"]) == (label, [32 * number, 0, 32 * number + 32, 32])
        assert match["score"] == pytest.approx(1, abs=1e-4)


def test_a_run_whose_images_have_moved(run: Path, photos: Path, tmp_path: Path, capsys) -> None:
    shutil.copytree(photos, tmp_path / "elsewhere")
    output(capsys, "embed", run, "--root", tmp_path / "elsewhere", "--out", tmp_path / "v.parquet")
    assert pd.read_parquet(tmp_path / "v.parquet")["path"].str.startswith(str(tmp_path / "elsewhere")).all()
    (tmp_path / "empty").mkdir()
    message = refused(capsys, "embed", run, "--root", tmp_path / "empty", "--out", tmp_path / "w.parquet")
    assert "is in this folder" in message


def test_columns_are_named_once_for_training_too(shop: Path, tmp_path: Path, capsys) -> None:
    out, table = tmp_path / "trained", shop / "shop.csv"
    columns = ["--path_column=file", "--label_column", "product"]
    settings = [*SMALL, "--batch_size=4", "--data.fractions={train: 1.0}", "--epochs=1"]
    output(capsys, "train", "--data.source", table, *columns, *settings, "--out", out)
    assert output(capsys, "evaluate", out, "--images", table, "--where", "product == 'class1'", "--json")
    output(capsys, "embed", table, "--model", out, "--where", "price > 7", "--out", tmp_path / "v.parquet")
    assert pd.read_parquet(tmp_path / "v.parquet")["label"].tolist() == ["class1"] * 4
    output(capsys, "index", "build", tmp_path / "index", table, "--model", out)  # which remembers them too
    assert len(listed(capsys, tmp_path / "index", "--where", "product == 'class1'")) == 6
    counted = output(capsys, "data", table, *columns, "--where", "product == 'class1' and price < 8", "--json")
    assert json.loads(counted)["num_images"] == 2
    assert "no row matches price > 99" in refused(capsys, "data", table, *columns, "--where", "price > 99")


def test_shorter_vectors_in_a_smaller_index(run: Path, photos: Path, tmp_path: Path, capsys) -> None:
    folder, image = tmp_path / "i", next(photos.rglob("*.png"))
    flags = ("--model", run, "--dim", 4, "--kind", "sq8", "--rescore", 3)
    assert main([str(each) for each in ("index", "sync", folder, photos, *flags, "--json")]) == 0
    captured = capsys.readouterr()
    facts = json.loads(captured.out)
    assert [facts[name] for name in ("kind", "rescore", "dimensions", "dim")] == ["sq8", 3, 4, "4"]
    assert captured.err.count("warning: the model was trained without Matryoshka; its first 4 dimensions") == 1
    (found,) = json.loads(output(capsys, "search", folder, image, "-k", 2, "--json"))
    assert found["matches"][0]["path"] == str(image)
    assert "give --dim 4" in refused(capsys, "search", folder, image, "--model", run)
    assert "give --dim 4" in refused(capsys, "search", folder, image, "--dim", 3)
    said = refused(capsys, "embed", photos, "--model", run, "--dim", 99, "--out", tmp_path / "v.npy")
    assert "dim = 99 exceeds those of the embeddings" in said
    output(capsys, "embed", photos, "--model", run, "--dim", 4, "--out", tmp_path / "v.npy")
    vectors = np.load(tmp_path / "v.npy")
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(Index.load(folder).vectors(), vectors, atol=5e-4)
