import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.data.benchmarks.published_more import MORE_WRITERS, accept_small_more, write_roxford_1m
from tests.refusals import refused_call
from vicinal.data import load_table
from vicinal.data.benchmarks import GroundTruth, revisited_ground_truth, roxford, roxford_1m, rparis
from vicinal.utils.errors import InputError

BOXES = [[2, 3, 12, 18], [0.6, 1.4, 20.0, 10.0]]


def content() -> dict[str, Any]:
    """As published: arrays where there are images, empty ones where there are none."""
    return {
        "imlist": ["christ_church_000179", "oxford_002904", "worcester_000194"],
        "qimlist": ["all_souls_000013", "oxford_002416"],
        "gnd": [
            {"bbx": BOXES[0], "easy": np.array([2]), "hard": np.array([], dtype=np.uint16), "junk": np.array([0, 1])},
            {"bbx": np.array(BOXES[1]), "easy": [], "hard": [1.0], "junk": []},
        ],
    }


def pixels(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (20, 24, 3), dtype=np.uint8)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "roxford5k"
    (folder / "jpg").mkdir(parents=True)
    for number, name in enumerate([*content()["imlist"], *content()["qimlist"]]):
        Image.fromarray(pixels(number)).save(folder / "jpg" / f"{name}.jpg", "png")  # whatever the name says
    (folder / "gnd_roxford5k.pkl").write_bytes(pickle.dumps(content(), 2))
    return tmp_path / "data"


def test_the_published_file(root: Path) -> None:
    truth = revisited_ground_truth("roxford", root)
    assert truth != revisited_ground_truth("roxford", root)  # by identity, for arrays have no one truth
    assert truth.images[0] == "christ_church_000179"
    assert truth.queries == ["all_souls_000013", "oxford_002416"]
    assert truth.boxes == [(2.0, 3.0, 12.0, 18.0), (0.6, 1.4, 20.0, 10.0)]
    assert [rows.tolist() for rows in truth.easy] == [[2], []]
    assert [rows.tolist() for rows in truth.hard] == [[], [1]]
    assert [rows.tolist() for rows in truth.junk] == [[0, 1], []]
    assert all(rows.dtype == np.int64 for rows in [*truth.easy, *truth.hard, *truth.junk])


def test_json_says_the_same_and_comes_first(root: Path) -> None:
    truth = revisited_ground_truth("roxford", root)
    path = root / "roxford5k" / "gnd_roxford5k.json"
    path.write_text(json.dumps(truth.to_dict()))
    again = revisited_ground_truth("roxford", root)
    assert again.to_dict() == truth.to_dict()
    path.write_text(json.dumps({**truth.to_dict(), "imlist": ["a", "b", "c"]}))
    assert revisited_ground_truth("roxford", root).images == ["a", "b", "c"]


def test_the_table_has_the_gallery_and_then_cropped_queries(root: Path) -> None:
    table = roxford(root)
    assert table.frame["is_gallery"].tolist() == [True, True, True, False, False]
    assert table.frame["is_query"].tolist() == [False, False, False, True, True]
    assert [Path(path).stem for path in table.paths[:3]] == content()["imlist"]
    for path, seed, (left, top, right, bottom) in zip(
        table.paths[3:], (3, 4), ([2, 3, 12, 18], [1, 1, 20, 10]), strict=True
    ):
        with Image.open(path) as image:
            np.testing.assert_array_equal(np.asarray(image), pixels(seed)[top:bottom, left:right])
    assert load_table("roxford", root=root).paths == table.paths


def test_queries_are_cropped_once_and_anew_when_boxes_change(root: Path) -> None:
    before = roxford(root).paths[3]
    written = Path(before).stat().st_mtime_ns
    assert Path(roxford(root).paths[3]).stat().st_mtime_ns == written
    (root / "roxford5k" / "gnd_roxford5k.pkl").write_bytes(pickle.dumps(changed("gnd.0.bbx", [0, 0, 5, 5])))
    after = roxford(root).paths[3]
    assert after != before
    with Image.open(after) as image:
        assert image.size == (5, 5)


def test_boxes_are_cut_at_the_edges_of_the_image(root: Path) -> None:
    truth = root / "roxford5k" / "gnd_roxford5k.pkl"
    for box, size in (([0, 0, 1e6, 1e6], (24, 20)), ([-1, 2, 1e300, 9], (24, 7)), ([-1e300, -2.0, 5, 25], (5, 20))):
        truth.write_bytes(pickle.dumps(changed("gnd.1.bbx", box)))
        with Image.open(roxford(root).paths[4]) as image:
            assert image.size == size
    for box in ([0.1, 0.1, 0.3, 0.3], [30, 5, 40, 10], [0, 20.4, 5, 1e300], [-9, -9, -1, -1]):
        truth.write_bytes(pickle.dumps(changed("gnd.1.bbx", box)))
        refused_call(r"query 'oxford_002416': bbx \[.+\] lies outside its image of 24 x 20", roxford, root)


@pytest.mark.parametrize("kept", ["", "roxford5k"])
def test_a_root_that_is_not_to_be_written(root: Path, tmp_path: Path, monkeypatch, kept: str) -> None:
    monkeypatch.setenv("VICINAL_DATA", str(tmp_path / "cache"))
    (root / kept).chmod(0o555)
    try:
        table = roxford(root)
    finally:
        (root / kept).chmod(0o755)
    assert all(path.startswith(str(tmp_path / "cache" / "roxford5k")) for path in table.paths[3:])
    assert all(path.startswith(str(root)) for path in table.paths[:3])


def test_a_query_that_cannot_be_read_leaves_nothing_half_done(root: Path) -> None:
    (root / "roxford5k" / "jpg" / "oxford_002416.jpg").unlink()
    refused_call(r"oxford_002416\.jpg: no such file", roxford, root)
    assert not list((root / "roxford5k").glob("queries-*"))


def test_missing_files_are_named_with_what_to_do(tmp_path: Path) -> None:
    refused_call(r"rparis6k: no gnd_rparis6k\.json or gnd_rparis6k\.pkl; download it ", rparis, tmp_path)
    with pytest.raises(InputError, match="oxford5k: no revisited benchmark; there are roxford and rparis"):
        revisited_ground_truth("oxford5k", tmp_path)


def changed(place: str, value: object) -> dict[str, Any]:
    """The published content with another value at a place such as `gnd.0.easy`; DELETE takes it out."""
    whole = content()
    *path, last = place.split(".")
    inner: Any = whole
    for key in path:
        inner = inner[int(key) if key.isdigit() else key]
    if value == "DELETE":
        del inner[last]
    else:
        inner[last] = value
    return whole


def test_bad_content_is_named(tmp_path: Path) -> None:
    for place, value, message in (
        ("imlist", "DELETE", "the ground truth has no 'imlist'"),
        ("imlist", [], "imlist is not a list of images' names"),
        ("gnd", [], r"gnd has no entry for each of the 2 queries of qimlist"),
        ("gnd.0.junk", "DELETE", r"gnd\[0\] has no 'junk'"),
        ("gnd.1.bbx", [5, 5, 5, 9], r"gnd\[1\]: bbx is \[5\.0, 5\.0, 5\.0, 9\.0\]; it must be left, top, right,"),
        ("gnd.0.easy", [3], r"gnd\[0\]: easy names image 3; imlist has 3, counted from 0"),
        ("gnd.0.easy", [True, 0], r"gnd\[0\]: easy is not a list of numbers"),
        ("gnd.0.easy", [2, 2], r"gnd\[0\] names image 2 twice"),
        ("gnd.0.hard", [0], r"gnd\[0\] names image 0 twice; list it once, as easy, hard or junk"),
    ):
        path = tmp_path / "gnd.pkl"
        path.write_bytes(pickle.dumps(changed(place, value)))
        refused_call(rf"gnd\.pkl: {message}", GroundTruth.load, path)


def test_a_list_that_holds_itself_many_times_is_refused(tmp_path: Path) -> None:
    bomb: list[Any] = [1]
    for _ in range(40):  # as an array it would have 2**40 numbers
        bomb = [bomb, bomb]
    path = tmp_path / "gnd.pkl"
    path.write_bytes(pickle.dumps(changed("gnd.0.easy", bomb)))
    refused_call(r"gnd\[0\]: easy is not a list of numbers", GroundTruth.load, path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    for name, data, message in (
        ("gnd.json", b"{", r"gnd\.json: not JSON"),
        ("gnd.json", b"[1]", r"gnd\.json: the ground truth has no 'imlist'"),
        ("gnd.mat", b"", r"gnd\.mat: a ground truth is read from a file ending in \.pkl or \.json"),
    ):
        (tmp_path / name).write_bytes(data)
        refused_call(message, GroundTruth.load, tmp_path / name)
    refused_call(r"lost\.json: no such file", GroundTruth.load, tmp_path / "lost.json")


@pytest.mark.parametrize("name", ["roxford_1m", "rparis_1m"])
def test_distractors_come_last_in_the_gallery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    accept_small_more(monkeypatch)
    MORE_WRITERS[name](tmp_path)
    table, without = load_table(name, root=tmp_path), load_table(name.removesuffix("_1m"), root=tmp_path)
    assert table.paths[: len(without)] == without.paths
    assert [Path(path).name for path in table.paths[len(without) :]] == [f"distractor_{i}.jpg" for i in range(3)]
    assert table.frame["is_gallery"].tolist() == [True] * 4 + [False] * 2 + [True] * 3
    assert table.frame["is_query"].tolist() == [False] * 4 + [True] * 2 + [False] * 3


def test_distractors_must_be_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accept_small_more(monkeypatch)
    write_roxford_1m(tmp_path)
    path = tmp_path / "revisitop1m/revisitop1m.txt"
    whole = path.read_text()
    for text, message in (
        (whole + "lost.jpg\n", r"revisitop1m\.txt: names 4 images, but 3 are published"),
        (whole.replace("distractor_2", "distractor_1"), r"line 3: distractor_1\.jpg appears twice, first in line 2"),
        (whole.replace("distractor_2", "lost"), r"revisitop1m: 1 of 3 images in its lists are missing: jpg/lost"),
    ):
        path.write_text(text)
        refused_call(message, roxford_1m, tmp_path)
    path.unlink()
    refused_call(r"no revisitop1m\.txt in revisitop1m/ or the folder itself; .* download it", roxford_1m, tmp_path)
