import re
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.containers.pictures import contents, encoded
from tests.refusals import refused_call
from vicinal.data import load_table
from vicinal.data.containers.hugging_face import relevance_classes
from vicinal.evaluation import evaluate
from vicinal.utils.errors import InputError

datasets = pytest.importorskip("datasets", reason="the extra datasets is not installed")
IMAGES = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["owl", "kiwi"])})


def birds(start: int, number: int = 4, **columns: Any) -> Any:
    """A dataset of PNG and JPEG pictures with the labels 0, 1, 0, 1, ... and further columns."""
    pictures = [encoded(start + row, ".jpg" if row % 2 else ".png") for row in range(number)]
    images = [{"bytes": picture, "path": f"{row}.bird"} for row, picture in enumerate(pictures)]
    features = datasets.Features({**IMAGES, **{name: datasets.Value(kind) for name, (kind, _) in columns.items()}})
    values = {name: values for name, (_, values) in columns.items()}
    return datasets.Dataset.from_dict({"image": images, "label": [0, 1] * (number // 2), **values}, features)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    splits = {"train": birds(0, size=("int32", [3, 1, 4, 1])), "validation": birds(10, size=("int32", [2, 7, 1, 8]))}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "saved"))
    return tmp_path / "saved"


def test_saved_datasets_are_written_once_byte_for_byte(saved: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    with pytest.warns(UserWarning, match="class 'kiwi' is in the splits train and val"):
        table = load_table(f"hf:{saved}", root=tmp_path / "kept")
    assert contents(table) == [encoded(row, ".jpg" if row % 2 else ".png") for row in (0, 1, 2, 3, 10, 11, 12, 13)]
    frame = table.frame.drop(columns="path")
    assert frame["label"].tolist() == ["owl", "kiwi"] * 4
    assert frame["split"].tolist() == ["train"] * 4 + ["val"] * 4
    assert frame["size"].tolist() == [3, 1, 4, 1, 2, 7, 1, 8]
    monkeypatch.setitem(sys.modules, "datasets", None)  # the second time, the library is not needed
    with pytest.warns(UserWarning, match="class 'kiwi'"):
        assert load_table(f"hf:{saved}", root=tmp_path / "kept", label_column=None).frame.equals(table.frame)
    assert capsys.readouterr().err.count("preparing") == 1


def test_samples_without_label_and_unknown_splits_are_left_out(tmp_path: Path, capsys) -> None:
    unlabeled = birds(0).map(lambda row, number: {"label": -1 if number == 1 else row["label"]}, with_indices=True)
    splits = {"train": unlabeled, "unsupervised": birds(20)}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "saved"))
    assert len(load_table(f"hf:{tmp_path / 'saved'}", root=tmp_path)) == 3
    errors = capsys.readouterr().err
    assert "left out 1 images without a label" in errors
    assert "left out the splits unsupervised; the known ones are train," in errors


def test_a_folder_of_images_stays_where_it_is(tmp_path: Path) -> None:
    for number, name in enumerate(["owl", "kiwi"]):
        (tmp_path / "photos" / "train" / name).mkdir(parents=True)
        (tmp_path / "photos" / "train" / name / "1.png").write_bytes(encoded(number))
    table = load_table(f"hf:{tmp_path / 'photos'}", root=tmp_path / "kept")
    assert sorted(table.paths) == sorted(map(str, tmp_path.glob("photos/train/*/1.png")))
    assert table.classes == ["kiwi", "owl"]
    assert not list(tmp_path.glob("kept/**/.scratch"))


def save_parts(folder: Path, relevant: list[tuple[str, str, int]]) -> None:
    """A dataset of queries 0, 1, 2 and a corpus 0, ..., 5 of the pictures 100, ..., 105; query 0 is picture 100."""
    parts = {
        "corpus": {"id": [f"c{row}" for row in range(6)], "image": [encoded(100 + row) for row in range(6)]},
        "query": {"id": ["q0", "q1", "q2"], "image": [encoded(100), encoded(1), encoded(2)]},
    }
    for name, columns in parts.items():
        images = [{"bytes": picture, "path": None} for picture in columns["image"]]
        features = datasets.Features({"id": datasets.Value("string"), "image": datasets.Image()})
        part = datasets.Dataset.from_dict({"id": columns["id"], "image": images}, features)
        (folder / name).mkdir(parents=True)
        part.to_parquet(str(folder / name / "test.parquet"))
    (folder / "qrels").mkdir()
    pd.DataFrame(relevant, columns=["query-id", "corpus-id", "score"]).to_parquet(folder / "qrels" / "test.parquet")
    entries = "".join(
        f"- config_name: {name}\n  data_files:\n  - split: test\n    path: {name}/*.parquet\n"
        for name in ("corpus", "query", "qrels")
    )
    (folder / "README.md").write_text(f"---\nconfigs:\n{entries}---\n")


RELEVANT = [("q0", "c1", 1), ("q0", "c3", 1), ("q1", "c2", 1), ("q2", "c2", 1), ("q2", "c4", 0)]


def test_queries_corpus_and_relevance_become_classes(tmp_path: Path) -> None:
    save_parts(tmp_path / "parts", RELEVANT)
    table = load_table(f"hf:{tmp_path / 'parts'}", root=tmp_path / "kept")
    assert table.frame["id"].tolist() == ["c0", "c1", "c2", "c3", "c4", "c5", "q0", "q1", "q2"]
    assert table.frame["label"].tolist() == [0, 0, 2, 0, 4, 5, 0, 2, 2]
    assert table.frame["is_query"].tolist() == [False] * 6 + [True] * 3
    assert (table.frame["is_gallery"] == ~table.frame["is_query"]).all()
    assert table.splits == ["test"]
    assert table.paths[0] == table.paths[6]  # one picture, which is excluded from its own ranking
    evaluation = evaluate(pd.get_dummies(table.frame["label"]).to_numpy(float), table)
    assert evaluation.metrics["recall@1"] == 1.0


def test_relevance_that_is_not_of_classes(tmp_path: Path) -> None:
    for name, pair, message in (
        ("some", ("q1", "c1", 1), "query 1 (counted from 0) shares some, but not all of its relevant images"),
        ("query", ("q7", "c1", 1), "qrels: query-id 'q7' is not the id of an image in query"),
        ("corpus", ("q1", "c8", 1), "qrels: corpus-id 'c8' is not the id of an image in corpus"),
    ):
        save_parts(tmp_path / name, [*RELEVANT, pair])
        refused_call(re.escape(message), load_table, f"hf:{tmp_path / name}", root=tmp_path / "kept")
    assert not [path for path in tmp_path.glob("kept/hugging_face/*") if path.suffix != ".lock"]


def test_classes_are_disjoint() -> None:
    for relevant in ([{0, 1}, {1, 2}], [{0, 1}, {0}], [{0}, {0, 1}], [{0, 1, 2}, {0, 1, 3}], [{0, 2}, {1, 2}, {1, 3}]):
        refused_call("only relevance by class", relevance_classes, relevant, 4, "birds")


def test_datasets_that_cannot_be_read(saved: Path, tmp_path: Path) -> None:
    for name, arguments, message in (
        ("{saved}", {"label_column": "kind"}, "no column 'kind' that could hold labels; there are label, size"),
        ("{saved}/nowhere", {}, "neither a folder nor a name on the Hugging Face Hub, such as owner/name"),
        ("{saved}/dataset_dict.json", {}, "is a file; give a folder, or a .parquet file without hf:"),
        ("", {}, "hf: names no container; give hf:NAME or wds:NAME"),
        ("nobody/nothing", {}, "hf:nobody/nothing: "),
    ):
        source = f"hf:{name.format(saved=saved)}"
        refused_call(re.escape(message), load_table, source, root=tmp_path / "kept", **arguments)
        assert not [path for path in tmp_path.glob("kept/*/*") if path.suffix != ".lock"]


def test_ambiguous_and_missing_columns_are_named(tmp_path: Path) -> None:
    both = datasets.Features({name: datasets.ClassLabel(names=["a"]) for name in ("fine", "coarse")})
    features = datasets.Features({"image": datasets.Image(), **both})
    columns = {"image": [{"bytes": encoded(0), "path": None}], "fine": [0], "coarse": [0]}
    dataset = datasets.Dataset.from_dict(columns, features)
    dataset.save_to_disk(str(tmp_path / "both"))
    with pytest.raises(InputError, match=r"several columns could hold labels \(fine, coarse\); name one by label_colu"):
        load_table(f"hf:{tmp_path / 'both'}", root=tmp_path)
    assert load_table(f"hf:{tmp_path / 'both'}", root=tmp_path, label_column="fine").frame["coarse"].tolist() == ["a"]
    dataset.remove_columns(["fine", "coarse"]).save_to_disk(str(tmp_path / "none"))
    with pytest.raises(InputError, match="no labels; name the column that holds them by label_column"):
        load_table(f"hf:{tmp_path / 'none'}", root=tmp_path)
    assert not load_table(f"hf:{tmp_path / 'none'}", root=tmp_path, label_column=None).has("label")
    dataset.remove_columns(["image"]).save_to_disk(str(tmp_path / "blind"))
    with pytest.raises(InputError, match="no column of images; the columns are fine, coarse"):
        load_table(f"hf:{tmp_path / 'blind'}", root=tmp_path)


def test_images_elsewhere_are_not_fetched(tmp_path: Path) -> None:
    image = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    columns = {"image": pa.array([{"bytes": None, "path": "https://example.org/owl.jpg"}], image), "label": [0]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"row 0: the dataset has only the path 'https://example.org/owl.jpg'"):
        load_table(tmp_path / "t.parquet", root=tmp_path)


def test_without_the_library_the_extra_is_named(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"saved: needs the package datasets; pip install 'vicinal\[datasets\]'$"):
        load_table(f"hf:{saved}", root=tmp_path)


def test_a_parquet_file_of_images_needs_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    birds(0, size=("int32", [3, 1, 4, 1])).to_parquet(str(tmp_path / "birds.parquet"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    table = load_table(tmp_path / "birds.parquet", root=tmp_path / "kept")
    assert contents(table) == [encoded(row, ".jpg" if row % 2 else ".png") for row in range(4)]
    assert table.frame["label"].tolist() == ["owl", "kiwi"] * 2
    assert table.frame["size"].tolist() == [3, 1, 4, 1]
    table.save(tmp_path / "table.parquet")  # a table with paths is read as ever
    assert load_table(tmp_path / "table.parquet").paths == table.paths
