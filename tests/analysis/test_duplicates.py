"""Duplicates: groups of all similar pairs, with leaks and contradictions, against brute force."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from vicinal.analysis import duplicate_groups, duplicates, exact_duplicates, image_facts, pixel_similarities
from vicinal.data import Table
from vicinal.utils.errors import InputError


def textured(size: tuple[int, int] = (200, 160), seed: int = 0) -> Image.Image:
    """A smooth picture that no other seed gives."""
    pixels = np.random.default_rng(seed).integers(0, 255, (8, 8, 3)).astype(np.uint8)
    return Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)


def saved(folder: Path, images: list[Image.Image], **options: int) -> Table:
    """The table of these images."""
    paths = [folder / f"{number}.{'jpg' if options else 'png'}" for number in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        image.save(path, **options)
    return Table(pd.DataFrame({"path": [str(path) for path in paths]}))


@pytest.mark.parametrize("merged", [1, 2**20])
def test_groups_are_the_components_of_all_pairs(monkeypatch: pytest.MonkeyPatch, merged: int) -> None:
    monkeypatch.setattr("vicinal.retrieval.neighbors.RANGE_ROWS", 16)
    monkeypatch.setattr(duplicates, "MERGED_PAIRS", merged)
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(100, 4))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    scores = unit @ unit.T
    np.fill_diagonal(scores, -1)
    pairs = scores >= 0.95
    _, components = connected_components(csr_array(pairs))
    groups = duplicate_groups(vectors, Table(pd.DataFrame({"label": np.zeros(100, dtype=int)})), 0.95)
    expected = {frozenset(np.flatnonzero(components == each)) for each in np.unique(components[pairs.any(axis=1)])}
    assert {frozenset(rows) for _, rows in groups.groupby("group")["row"]} == expected
    assert len(expected) > 5
    assert (groups["nearest"] == scores.argmax(axis=1)[groups["row"]]).all()
    np.testing.assert_allclose(groups["similarity"], scores.max(axis=1)[groups["row"]], atol=1e-6)
    best = groups.groupby("group")["similarity"].max()
    assert best.is_monotonic_decreasing


def test_leaks_and_contradictions_are_told(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="splits"):
        table = Table(pd.DataFrame({"label": list("aabbc"), "split": ["train", "test", "val", "val", "val"]}))
    vectors = np.array([[1, 0, 0], [1, 0.01, 0], [0, 1, 0], [0, 0, 1], [0, 0.01, 1]])
    groups = duplicate_groups(vectors, table).set_index("row")
    assert groups.index.tolist() == [0, 1, 3, 4]
    assert groups["is_leak"].tolist() == [True, True, False, False]
    assert groups["is_contradiction"].tolist() == [False, False, True, True]
    assert duplicate_groups(vectors[:0], table.take([])).empty
    with pytest.raises(InputError, match="4 embeddings, but"):
        duplicate_groups(vectors[1:], table)


def test_files_of_one_content_are_exact_duplicates_but_not_other_boxes_of_a_file(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1), ("c", 0)):
        textured((20, 20), seed).save(tmp_path / f"{name}.png")
    names = ["a.png", "b.png", "c.png", "lost.png"]
    found = exact_duplicates(Table(pd.DataFrame({"path": names}), root=tmp_path))
    assert found[["row", "nearest"]].to_numpy().tolist() == [[0, 2], [2, 0]]
    boxes = pd.DataFrame([[0, 0, 5, 5], [5, 5, 9, 9], [0, 0, 5, 5]], columns=["x_1", "y_1", "x_2", "y_2"])
    boxed = Table(boxes.assign(path=["a.png", "a.png", "c.png"]), root=tmp_path)
    assert exact_duplicates(boxed)["row"].tolist() == [0, 2]


def test_pixels_tell_copies_from_images_that_are_only_similar(tmp_path: Path) -> None:
    original = textured()
    copies = [original.resize((90, 72)), original.crop((15, 10, 190, 155)), original.point(lambda v: v * 0.7 + 20)]
    table = saved(tmp_path, [original, *copies, textured(seed=1)], quality=50)
    thumbnails = image_facts(table).thumbnails
    alike = pixel_similarities(thumbnails, np.zeros(4, dtype=int), np.arange(1, 5))
    assert (alike[:3] > 0.9).all()
    assert alike[3] < 0.5
    assert duplicate_groups(np.ones((5, 2)), table, thumbnails=thumbnails)["row"].tolist() == [0, 1, 2, 3]


def test_copies_whose_embeddings_differ_are_found_by_their_pixels(tmp_path: Path) -> None:
    picture = textured((320, 240))
    copies = [picture.resize((160, 120)), picture.crop((12, 9, 308, 231))]
    table = saved(tmp_path, [picture, *copies, textured((320, 240), seed=1)])
    thumbnails, angles = image_facts(table).thumbnails, np.arccos([1.0, 0.84, 0.83, 0.9])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    groups = duplicate_groups(vectors, table, thumbnails=thumbnails)
    assert groups["row"].tolist() == [0, 1, 2]
    assert duplicate_groups(vectors, table, 0.99, thumbnails=thumbnails)["row"].tolist() == [1, 2]
    unlike = vectors * [1, -1] * np.array([1, -1, 1, 1])[:, None]
    assert 1 not in duplicate_groups(unlike, table, thumbnails=thumbnails)["row"].tolist()


def test_turned_and_mirrored_copies_are_found_where_embeddings_are_near(tmp_path: Path) -> None:
    turned = [textured().transpose(each) for each in Image.Transpose]
    table = saved(tmp_path, [textured(), *turned, textured(seed=1)])
    thumbnails, vectors = image_facts(table).thumbnails, np.ones((len(table), 2))
    assert duplicate_groups(vectors, table, thumbnails=thumbnails)["row"].tolist() == list(range(8))
