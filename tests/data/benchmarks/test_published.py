"""Benchmarks in the layout of their published files: what their tables hold, and where the files may be."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from tests.data.benchmarks import published
from tests.data.benchmarks.published import IMAGES, WRITERS, accept_small
from tests.refusals import refused_call
from vicinal.data import benchmarks, load_table

BOX = ["box_x_1", "box_y_1", "box_x_2", "box_y_2"]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    accept_small(monkeypatch, *WRITERS)


def written(name: str, root: Path, folder: str = "") -> Path:
    WRITERS[name](root)
    return root / folder


def test_every_function_of_the_package_is_named() -> None:
    others = {"BENCHMARKS", "GroundTruth", "revisited_ground_truth"}
    assert set(benchmarks.BENCHMARKS) == set(benchmarks.__all__) - others


def test_digits_are_scikit_learns_in_full_contrast(tmp_path: Path) -> None:
    table, data = benchmarks.digits(tmp_path), load_digits()
    assert table.frame["label"].tolist() == data.target.tolist()
    assert table.subset("train").classes == [0, 1, 2, 3, 4]
    assert table.subset("test").classes == [5, 6, 7, 8, 9]
    for row in (0, 17, 1796):
        with Image.open(table.paths[row]) as image:
            assert image.mode == "L"
            assert np.array_equal(np.asarray(image), np.rint(data.images[row] * 255 / 16))
    assert load_table("digits", root=tmp_path).frame.equals(table.frame)


def test_cub(tmp_path: Path) -> None:
    folder = written("cub", tmp_path, "CUB_200_2011")
    table = load_table("cub", root=tmp_path)
    train, test = table.subset("train"), table.subset("test")
    assert train.classes == [f"{number:03d}.Bird_{number}" for number in range(1, 7)]
    assert test.classes == [f"{number}.Bird_{number}" for number in range(101, 105)]
    assert train.class_counts.tolist() == [IMAGES] * 6
    assert table.paths[-1] == str(folder / "images" / "104.Bird_104" / "Bird_104_0004.jpg")
    assert table.frame[BOX].iloc[0].tolist() == [2, 3, 13, 15]
    assert benchmarks.cub(folder).paths == table.paths
    for place in ("cub/CUB_200_2011", "cub"):
        root = tmp_path / place.replace("/", "-")
        (root / place).parent.mkdir(parents=True)
        folder = folder.rename(root / place)
        assert benchmarks.cub(root).paths[0].startswith(str(root / place / "images"))


def test_a_wrong_root_is_told_what_was_looked_for_and_found(tmp_path: Path) -> None:
    folder = written("cub", tmp_path, "CUB_200_2011")
    message = (
        r"images: no image_class_labels\.txt in cub/, CUB_200_2011/ or the folder itself; it holds 001\.B.*"
        r" and 2 more; download CUB_200_2011\.tgz from https://.*, or give the folder that holds it as root"
    )
    refused_call(message, benchmarks.cub, folder / "images")
    (folder / "image_class_labels.txt").unlink()
    refused_call(r"itself; CUB_200_2011/ holds bounding_boxes\.txt, classes\.txt, images, ", benchmarks.cub, tmp_path)
    refused_call(r"itself; it cannot be read \(no such file or directory\)", benchmarks.cub, folder / "nowhere")


def test_sop(tmp_path: Path) -> None:
    folder = written("sop", tmp_path, "Stanford_Online_Products")
    table = load_table("sop", root=tmp_path)
    assert table.subset("train").classes == [1, 2, 3, 4, 5, 6]
    assert table.subset("test").classes == [11319, 11320, 11321, 11322]
    assert set(table.class_counts) == {5}
    assert table.frame.groupby("label")["coarse"].unique().map(list).tolist() == [["bicycle"], ["coffee_maker"]] * 5
    assert table.paths[5] == str(folder / "coffee_maker_final" / "2_0.JPG")
    assert benchmarks.sop(folder).paths == table.paths


@pytest.mark.parametrize(
    "write", [published.write_cars, published.write_cars_devkit, published.write_cars_class_folders]
)
def test_all_layouts_of_cars_have_the_same_classes(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path)
    table = load_table("cars", root=tmp_path)
    assert table.subset("train").classes == [1, 2, 3, 4, 5, 6]
    assert table.subset("test").classes == [99, 100, 101, 102]
    assert set(table.class_counts) == {5}
    assert table.frame[BOX].drop_duplicates().values.tolist() == [[3, 2, 20, 18]]
    assert len(set(table.paths)) == 50


def test_the_devkit_of_cars_alone_has_no_classes_of_test_images(tmp_path: Path) -> None:
    published.write_cars_devkit(tmp_path)
    labels = tmp_path / "cars_test_annos_withlabels.mat"
    labels.rename(tmp_path / "devkit" / labels.name)
    assert len(benchmarks.cars(tmp_path)) == 50
    (tmp_path / "devkit" / labels.name).unlink()
    refused_call(r"no cars_test_annos_withlabels\.mat here or in devkit/; ", benchmarks.cars, tmp_path)
    (tmp_path / "devkit" / "cars_test_annos.mat").rename(labels)
    refused_call(r"withlabels\.mat: has no class; the fields of its annotations are", benchmarks.cars, tmp_path)


def test_broken_files_of_cars(tmp_path: Path) -> None:
    published.write_cars(tmp_path)
    whole = (tmp_path / "cars_annos.mat").read_bytes()
    for content in (b"", b"MATLAB", whole[: len(whole) // 2], whole[:200] + b"\xff" * 200 + whole[400:]):
        (tmp_path / "cars_annos.mat").write_bytes(content)
        refused_call(
            r"cars_annos\.mat: (not a readable MATLAB file|has no relative_im_path)", benchmarks.cars, tmp_path
        )
    published.write_cars_class_folders(tmp_path / "other")
    published.write_lines(tmp_path / "other" / "names.csv", "Model 1", "Model 2")
    refused_call(r"anno_train\.csv: has the class 102, but names\.csv has 2 names", benchmarks.cars, tmp_path / "other")


def test_in_shop(tmp_path: Path) -> None:
    folder = written("in_shop", tmp_path, "In-shop Clothes Retrieval Benchmark").rename(tmp_path / "in_shop")
    table = load_table("in_shop", root=tmp_path)
    train, test = table.subset("train").frame, table.subset("test").frame
    assert train["label"].unique().tolist() == [f"id_{number:08d}" for number in range(1, 7)]
    assert train["coarse"].unique().tolist() == ["MEN/Denim", "WOMEN/Dresses"]
    assert test["coarse"].unique().tolist() == ["MEN/Pants", "WOMEN/Skirts"]
    assert not train[["is_query", "is_gallery"]].any(axis=None)
    assert test["is_query"].tolist() == [True, True, False, False, False] * 4
    assert test["is_gallery"].tolist() == [False, False, True, True, True] * 4
    assert table.frame[BOX].values.tolist()[1::5] == [[3, 2, 20, 13]] * 10
    assert table.paths[0] == str(folder / "Img/img/MEN/Denim/id_00000001/00_1_front.jpg")
    (folder / "Img" / "img").rename(folder / "img")
    part, name = "Eval", "list_eval_partition.txt"
    for place in ("Anno", "."):
        (folder / part / name).rename(folder / place / name)
        table, part = benchmarks.in_shop(folder), place
        assert table.paths[0].startswith(str(folder / "img"))
        assert table.has("box_x_1")
    (folder / "Anno" / "list_bbox_inshop.txt").unlink()
    assert not benchmarks.in_shop(folder).has("box_x_1")


def test_in_shop_in_high_resolution(tmp_path: Path) -> None:
    folder = written("in_shop_highres", tmp_path, "In-shop Clothes Retrieval Benchmark")
    table = benchmarks.in_shop_highres(tmp_path)
    assert table.paths[0].startswith(str(folder / "Img/img_highres/MEN"))
    assert not table.has("box_x_1")  # the boxes are those of the small images
    refused_call("no folder img, nor one in Img/; there is img_highres, which is read as", benchmarks.in_shop, tmp_path)


def test_inaturalist_2018(tmp_path: Path) -> None:
    table = load_table("inaturalist_2018", root=written("inaturalist_2018", tmp_path))
    assert table.subset("train").classes == [20, 21, 22, 23, 24, 25]
    assert table.subset("test").classes == [90, 91, 92, 93]
    assert table.frame.groupby("label")["coarse"].unique().map(list).tolist() == [["Aves"], ["Plantae"]] * 5
    assert table.paths[5].startswith(str(tmp_path / "train_val2018" / "Plantae" / "21"))
    for path in (tmp_path / "Inat_dataset_splits").iterdir():
        path.rename(tmp_path / path.name)
    assert benchmarks.inaturalist_2018(tmp_path).paths == table.paths


def test_mini_inaturalist_2021(tmp_path: Path) -> None:
    folder = written("mini_inaturalist_2021", tmp_path / "mini_inaturalist_2021")
    table = load_table("mini_inaturalist_2021", root=tmp_path)
    assert table.subset("train").classes == [20, 21, 22, 23, 24, 25]
    assert table.subset("test").classes == [90, 91, 92, 93]
    assert table.frame.groupby("label")["coarse"].unique().map(list).tolist() == [["Birds"], ["Plants"]] * 5
    assert table.paths[0].startswith(str(folder / "train_mini" / "00020_Animalia_Chordata_Aves"))
    (folder / "data").mkdir()
    for path in folder.glob("*.txt"):  # lists may be in their folder, and resized images come first
        path.rename(folder / "data" / path.name)
    (folder / "train_mini").rename(folder / "train_mini_resized")
    (folder / "train_mini").mkdir()
    assert benchmarks.mini_inaturalist_2021(tmp_path).paths[0].startswith(str(folder / "train_mini_resized"))


def test_vehicle_id(tmp_path: Path) -> None:
    folder = written("vehicle_id", tmp_path, "VehicleID_V1.0")
    for size, vehicles in (("small", [100, 101]), ("medium", [100, 101, 102]), ("large", [100, 101, 102, 103])):
        table = benchmarks.vehicle_id(tmp_path, size)
        assert table.subset("test").classes == vehicles
        assert table.subset("train").classes == [1, 2, 3, 4, 5, 6]
        assert table.paths[1] == str(folder / "image" / "0000011.jpg")
        assert table.subset("test").paths[IMAGES] == str(folder / "image" / "0001010.jpg")
        name = "vehicle_id" if size == "large" else f"vehicle_id_{size}"
        assert load_table(name, root=tmp_path).paths == table.paths


def test_attributes_of_vehicle_id_are_columns_if_they_are_there(tmp_path: Path) -> None:
    folder = written("vehicle_id", tmp_path, "VehicleID_V1.0")
    table = benchmarks.vehicle_id(folder)
    models = table.frame.groupby("label")["model"].first()
    assert models[[2, 100]].tolist() == [2, 100 % 7]
    assert models[[1, 101]].isna().all()
    assert table.frame["color"].dropna().unique().tolist() == [2, 1, 0]
    table.save(tmp_path / "table.parquet")
    (folder / "attribute" / "color_attr.txt").write_text("2 red\n")
    refused_call(r"color_attr\.txt, line 1: 'red' is not an integer", benchmarks.vehicle_id, folder)
    (folder / "attribute").rename(folder / "attributes")
    assert not benchmarks.vehicle_id(folder).has("model")
    refused_call("size is 'huge'; it can be small, medium, large", benchmarks.vehicle_id, tmp_path, "huge")
    message = r"no train_test_split in vehicle_id/, .*; ask for VehicleID at https://"
    refused_call(message, benchmarks.vehicle_id, tmp_path / "nothing")
