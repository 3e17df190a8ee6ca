"""Outliers, label errors, clusters and facts about images, against other libraries and by hand."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import ExifTags, Image
from sklearn.neighbors import LocalOutlierFactor

from vicinal.analysis import (
    class_probabilities,
    clusters,
    confident_label_errors,
    find_problems,
    image_facts,
    outliers,
    query_neighbors,
)
from vicinal.data import Table, apply_decisions
from vicinal.utils.errors import InputError


def blobs(classes: int = 4, size: int = 25, spread: float = 0.35, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), size)
    return np.eye(8)[labels] + spread * rng.normal(size=(classes * size, 8)), labels


def test_outlier_factors_are_those_of_scikit_learn() -> None:
    vectors, labels = blobs()
    found = outliers(query_neighbors(vectors, Table(pd.DataFrame({"label": labels})), k=7), min_factor=0)
    factors = -LocalOutlierFactor(n_neighbors=7, metric="cosine").fit(vectors).negative_outlier_factor_
    np.testing.assert_allclose(found["outlier_factor"], factors[found["row"]], rtol=1e-4)
    assert len(found) == 100


@pytest.mark.parametrize("spread", [0.2, 0.5])
def test_label_errors_are_those_of_cleanlab(spread: float) -> None:
    cleanlab = pytest.importorskip("cleanlab.filter", reason="cleanlab is not installed")
    vectors, labels = blobs(6, 30, spread)
    rng = np.random.default_rng(1)
    given = labels.copy()
    given[rng.choice(180, 20, replace=False)] = rng.integers(0, 6, 20)
    neighbors = query_neighbors(vectors, Table(pd.DataFrame({"label": given})), k=10)
    votes = class_probabilities(neighbors).toarray()
    expected = cleanlab.find_label_issues(given, votes, filter_by="confident_learning", n_jobs=1)
    found = confident_label_errors(neighbors)
    assert sorted(found["row"]) == np.flatnonzero(expected).tolist()
    assert len(found) > 10
    np.testing.assert_allclose(found["self_confidence"], votes[found["row"], found["label"].astype(int)])
    if spread == 0.2:
        assert (found["suggested_label"] == labels[found["row"]]).all()


def test_clusters_are_dense_regions_with_representatives() -> None:
    vectors, labels = blobs(3, 20, 0.05)
    given = np.where(labels == 2, np.arange(60) % 3, labels)  # the third has no label of its own
    vectors[0] = -vectors[0]
    table = Table(pd.DataFrame({"label": given}))
    for number in (None, 4):
        found = clusters(vectors, table, number)
        of_third = found.assignments[40:]
        assert (of_third == of_third[0]).all()
        assert found.assignments[0] not in found.assignments[1:]
        summary = found.summary.set_index("cluster")
        assert summary["is_candidate"][of_third[0]]
        assert not summary["is_candidate"].drop(of_third[0]).any()
        assert all(found.assignments[row] == each for each, row in summary["representative"].items())
        assert summary["num_images"].is_monotonic_decreasing
    unlabeled = clusters(vectors, Table(pd.DataFrame({"path": [f"{n}.png" for n in range(60)]})))
    assert unlabeled.summary["is_candidate"].all()
    with pytest.raises(InputError, match="num_clusters is 61, but there are 60 images"):
        clusters(vectors, table, 61)


@pytest.fixture
def pictures(tmp_path: Path) -> Table:
    """Fourteen pictures, a blank and a broken one."""
    for number in range(14):
        sharp = np.random.default_rng(number).integers(0, 255, (60 + number, 80, 3)).astype(np.uint8)
        Image.fromarray(sharp).save(tmp_path / f"{number}.png")
    Image.new("RGB", (80, 64), "gray").save(tmp_path / "14.png")
    (tmp_path / "15.png").write_bytes(b"no image")
    return Table(pd.DataFrame({"path": [f"{number}.png" for number in range(16)]}), root=tmp_path)


def test_facts_tell_broken_and_blank_images(pictures: Table) -> None:
    facts = image_facts(pictures)
    assert facts.broken["row"].tolist() == [15]
    assert "not an image" in facts.broken["error"][0]
    assert facts.uninformative["row"].tolist() == [14]
    assert not np.signbit(facts.uninformative["entropy"]).any()  # shown as 0, not -0
    cropped = Table(pictures.frame.iloc[[0]].assign(x_1=0, y_1=0, x_2=1, y_2=2))
    assert image_facts(cropped).frame["entropy"].tolist() == [1.0]  # two pixels


def test_findings_refer_to_rows_of_the_whole_table(pictures: Table) -> None:
    Path(pictures.paths[3]).write_bytes(Path(pictures.paths[2]).read_bytes())
    frame = pictures.frame.assign(label=["a", "b"] * 8)
    table = Table(frame.iloc[[15, *range(15)]])  # the broken one first
    vectors = np.random.default_rng(0).normal(size=(15, 4))
    vectors[3] = vectors[2]
    found = find_problems(vectors, table, image_facts(table), embedded_rows=np.arange(1, 16), num_neighbors=3)
    assert found.broken["row"].tolist() == [0]
    assert found.exact_duplicates["row"].tolist() == [3, 4]
    assert found.exact_duplicates["is_contradiction"].all()
    assert found.near_duplicates.empty  # they are one file
    assert found.clusters.assignments[0] == -1
    lines = found.to_frame()
    assert lines["finding"].value_counts()[found.counts["broken"] * ["broken"]].tolist() == [1]
    assert (lines["path"] == np.array(table.paths)[lines["row"]]).all()
    assert lines.query("finding == 'exact_duplicate'")["message"].tolist() == ["with different labels"] * 2
    assert set(lines["suggestion"]) <= {"", "drop", "relabel"}
    assert (lines["decision"] == "").all()


def test_bursts_are_told_from_copies_by_their_times(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number, time in enumerate(("10:00:00", "10:00:01", "10:00:00", None, None, None)):
        picture = Image.fromarray(np.random.default_rng(number // 2).integers(0, 255, (6, 6, 3), dtype=np.uint8))
        exif = Image.Exif()
        if time:
            exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = f"2024:05:01 {time}"
        picture.resize((60, 48)).save(tmp_path / f"{number}.jpg", exif=exif, quality=70 + number)
    table = Table(pd.DataFrame({"path": [str(tmp_path / f"{number}.jpg") for number in range(6)]}))
    vectors = np.repeat(rng.normal(size=(3, 8)), 2, axis=0)
    found = find_problems(vectors, table, image_facts(table), num_neighbors=2)
    bursts = found.near_duplicates.set_index("row")["is_burst"]
    assert bursts.to_dict() == {0: True, 1: True, **dict.fromkeys(range(2, 6), False)}
    messages = found.to_frame().query("finding == 'near_duplicate' and row < 2")["message"]
    assert messages.tolist() == ["taken at different times"] * 2


def test_embeddings_without_labels_and_images_have_findings_too() -> None:
    vectors, _ = blobs(2, 12, 0.05)
    vectors[5] = vectors[3]
    found = find_problems(vectors, Table(pd.DataFrame({"id_": range(24)})))
    assert found.near_duplicates["row"].tolist()[:2] == [3, 5]
    assert found.counts["label_error"] == found.counts["broken"] == found.counts["small_class"] == 0
    assert "path" not in found.to_frame()
    columns = pd.DataFrame({"is_query": np.arange(24) < 9, "is_gallery": np.arange(24) >= 9})
    assert find_problems(vectors, Table(columns)).counts == found.counts


def test_findings_about_boxes_are_decided_one_by_one(tmp_path: Path) -> None:
    boxes = pd.DataFrame([[row, 0, row + 5, 5] for row in range(4)], columns=["x_1", "y_1", "x_2", "y_2"])
    table = Table(boxes.assign(path="/p/1.png", label=["cat", "cat", "dog", "emu"]))
    found = find_problems(np.eye(4)[[0, 1, 1, 2]], table).to_frame()
    found.loc[found["row"] == 2, "decision"] = "drop"
    found.drop(columns="row").to_csv(tmp_path / "d.csv", index=False)
    assert apply_decisions(table, tmp_path / "d.csv").frame["x_1"].tolist() == [0, 1, 3]
