"""Lists of images as benchmarks publish them: what their readers refuse, with file and line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data.benchmarks.published import WRITERS, accept_small
from tests.data.benchmarks.published_more import MORE_WRITERS, accept_small_more, replace_text
from tests.refusals import refused_call
from vicinal.data import benchmarks
from vicinal.data.benchmarks.lists import check_distinct, class_number, parse_box, read_by_id, read_json, read_list


def distinct(path: Path) -> None:
    check_distinct(path, read_list(path, (2,)))


def test_bad_lists(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    refused_call(r"list\.txt: no such file", distinct, path)
    cases: tuple[tuple[Callable[[Path], object], bytes, str], ...] = (
        (distinct, b"1 a.jpg\n2\n", r"list\.txt, line 2: 1 fields where there must be 2"),
        (distinct, b"1 a.jpg\n\n1 b.jpg\n", r"list\.txt, line 3: 1 appears twice, first in line 1"),
        (distinct, b"\xff\xfe", r"list\.txt: not UTF-8 text"),
        (distinct, b"\n", r"list\.txt: names no image"),
        (lambda path: read_by_id(path, 2, ["1", "2", "3"]), b"1 a\n", r"list\.txt: no line for 2, nor for 1 others"),
        (lambda path: class_number("one", f"{path}, line 1"), b"", r"list\.txt, line 1: 'one' is not an integer of up"),
        (lambda path: class_number("9" * 5000, str(path)), b"", r"list\.txt: '9{40}' is not an integer"),
        (lambda path: parse_box(["2", "3", "wide", "12"], str(path)), b"", "the bounding box '2 3 wide 12' is not"),
        (read_json, b"{", r"list\.txt: not JSON"),
    )
    for read, content, message in cases:
        path.write_bytes(content)
        refused_call(message, read, path)


SHOP, SOP, FOOD = "In-shop Clothes Retrieval Benchmark", "Stanford_Online_Products", "Food-101N_release/meta"
SOLUTION = "google-landmark/retrieval_solution_v2.1.csv"
# Benchmark -> file, the first place of a text in it, what stands there instead, and what is said.
MISTAKES: dict[str, list[tuple[str, str, str, str]]] = {
    "cub": [
        ("CUB_200_2011/classes.txt", "104 ", "204 ", r"classes\.txt: no line for 104, nor for 4 others"),
        ("CUB_200_2011/bounding_boxes.txt", "11.0 12.0", "0.0 12.0", r"boxes\.txt, image 1: the bounding box from \("),
        ("CUB_200_2011/images.txt", "0000.jpg", "0009.jpg", r"1 of 50 images in its lists are missing: images/0"),
    ],
    "sop": [
        (f"{SOP}/Ebay_test.txt", "\n31 ", "\n1 ", "its lists have two images with the id 1"),
        (f"{SOP}/Ebay_train.txt", "\n2 1 1 ", "\n2 1 13 ", r"train\.txt, line 3: has the super-class 13; there are 1"),
        (f"{SOP}/Ebay_train.txt", "super_class_id", "super", r"line 1: 'image_id class_id super path'; the columns mu"),
    ],
    "in_shop": [
        (f"{SHOP}/Eval/list_eval_partition.txt", "50\n", "51\n", "names 51 images in its first line, but has 50; down"),
        (f"{SHOP}/Eval/list_eval_partition.txt", "   query\n", "   val\n", "line 33: 'val'; an image is for train, qu"),
        (f"{SHOP}/Eval/list_eval_partition.txt", "img/MEN/Denim/id_00000001/", "MEN/Denim/", "line 3: 'MEN/Denim/00_1"),
        (f"{SHOP}/Anno/list_bbox_inshop.txt", " 020 016\n", " 003 016\n", r"line 3: the bounding box from \(3, 2\) to"),
        (
            f"{SHOP}/Anno/list_bbox_inshop.txt",
            "1/00_1_f",
            "1/99_1_f",
            "no bounding box for 1 images, such as img/MEN/D",
        ),
    ],
    "inaturalist_2018": [
        ("Inat_dataset_splits/Inaturalist_train_set1.txt", "train_val2018/Aves/20/", "", "line 1: .*; a path ends in")
    ],
    "mini_inaturalist_2021": [("iNaturalist_test.txt", ",3,90", ",11,90", "line 1: has the supercategory 11; there")],
    "landmarks_v2": [
        ("google-landmark/train_clean.csv", "landmark_id", "landmark", r"train_clean\.csv: no column 'landmark_id'"),
        ("google-landmark/train_clean.csv", " ", " x", r"google-landmark: a list has the id 'x[0-9a-f]{16}'; ids are"),
        ("google-landmark/index.csv", "\n", "\n0123456789abcdef\n", r"image_to_landmark\.csv: no line for 01234567"),
        (SOLUTION, "Public", "Secret", r"2\.1\.csv, line 4: Usage is not Public, Private,"),
        (SOLUTION, ",None,Ignored", ",None,Public", r"index\.csv: no line for None"),
        (SOLUTION, ",None,Ignored", ",,Public", r"2\.1\.csv, line 2: no images; a query that is"),
    ],
    "met": [
        ("met/ground_truth/testset.json", 'MET_id": 10', 'MET_id": "ten"', r"entry 0: MET_id is 'ten'; it must be the"),
        ("met/ground_truth/testset.json", '"path"', '"file"', r"testset\.json, entry 0: has no path; an entry is like"),
        ("met/ground_truth/MET_database.json", '"id": 10', '"ID": 10', r"entry 0: id is None; it must be the number"),
        ("met/ground_truth/MET_database.json", "MET/10/0", "MET/10/9", r"met: 2 of 72 images in its lists are"),
    ],
    "cars98n": [
        ("cars98n/CARSN_train.csv", "/img_v3/", "/img_v2/", r"line 1: '/data/cars_noise/img_v2/0/.*'; a line is"),
        ("cars98n/CARSN_train.csv", ".jpg,1\n", ".jpg,2\n", r"line 2: the label 1 in the folder 0, whose label is 2"),
    ],
    "food_101n": [
        (f"{FOOD}/classes.txt", "dish_050", "soup", r"names other classes than that of"),
        (f"{FOOD}/imagelist.tsv", "dish_000/", "dish_000", r"imagelist\.tsv, line 2: 'dish_000.*'; a"),
        (f"{FOOD}/verified_val.tsv", "\t0", "\t2", r"val\.tsv, line 2: the verdict '2'; it can be 1"),
        (f"{FOOD}/verified_train.tsv", "dish_000/", "dish_9/", r"line 2: dish_9/.* is not in imagelist"),
        ("food-101/meta/train.txt", "dish_000/", "", r"train\.txt, line 1: '0'; a line is <class>/<image>"),
        ("food-101/meta/test.txt", "dish_099/", "dish_000/", r"test of food_101n has 19 images of 4 classes, but 20"),
    ],
}


@pytest.mark.filterwarnings("ignore:class '10' is in the splits train and test")
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_in_published_lists(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accept_small(monkeypatch, *WRITERS)
    accept_small_more(monkeypatch)
    (WRITERS | MORE_WRITERS)[name](tmp_path)
    for file, old, new, message in MISTAKES[name]:
        whole = (tmp_path / file).read_text()
        replace_text(tmp_path / file, old, new)
        refused_call(message, getattr(benchmarks, name), tmp_path)
        (tmp_path / file).write_text(whole)
