"""Tiny benchmarks in the layout of the published files, and a way to accept how small they are.

`write_NAME(root)` writes the benchmark NAME into the folder `root`, as if its archive had been unpacked there. Unless
the format says otherwise, six classes are for training and four for testing, with five images each, so that a model can
be trained on them. `accept_small(monkeypatch, NAME)` makes its reader accept their numbers of images and classes.
"""

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vicinal.data.benchmarks.cache import COUNTS

TRAIN, TEST, IMAGES = 6, 4, 5
"""Classes for training, classes for testing, images per class."""

TEST_CLASSES = {"vehicle_id_small": 2, "vehicle_id_medium": 3}
"""Classes for testing of the benchmarks that have another number of them."""


def accept_small(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Replace the published numbers of the benchmarks by those of the tiny ones."""
    for name in names:
        test = TEST_CLASSES.get(name, TEST)
        monkeypatch.setitem(COUNTS, name, {"train": (TRAIN * IMAGES, TRAIN), "test": (test * IMAGES, test)})


def write_image(path: Path, label: object, size: tuple[int, int] = (24, 20)) -> None:
    """Write a picture in the color of its class, with noise that depends on its name only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    color = np.random.default_rng(zlib.crc32(str(label).encode())).integers(40, 216, 3)
    noise = np.random.default_rng(zlib.crc32(path.name.encode())).normal(0, 20, (size[1], size[0], 3))
    Image.fromarray(np.clip(color + noise, 0, 255).astype(np.uint8)).save(path)


def write_lines(path: Path, *lines: str) -> None:
    """Write a text file of lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_cub(root: Path) -> None:
    """`CUB_200_2011/`: the classes 1 to 6 and 101 to 104, some files of macOS, and the split that is not to be used."""
    folder = root / "CUB_200_2011"
    classes = {number: f"{number:03d}.Bird_{number}" for number in (*range(1, TRAIN + 1), *range(101, 101 + TEST))}
    images = [(number, f"{name}/Bird_{number}_{i:04d}.jpg") for number, name in classes.items() for i in range(IMAGES)]
    for number, path in images:
        write_image(folder / "images" / path, number)
        write_lines(folder / "images" / path.replace("/", "/._"), "no image")
    rows = list(enumerate(images, 1))
    write_lines(folder / "classes.txt", *(f"{number} {name}" for number, name in classes.items()))
    write_lines(folder / "images.txt", *(f"{i} {path}" for i, (_, path) in rows))
    write_lines(folder / "image_class_labels.txt", *(f"{i} {number}" for i, (number, _) in rows))
    write_lines(folder / "train_test_split.txt", *(f"{i} {i % 2}" for i, _ in rows))
    write_lines(folder / "bounding_boxes.txt", *(f"{i} 2.0 3.0 {10 + i % 5}.0 12.0" for i, _ in rows))


def write_cars(root: Path) -> None:
    """`car_ims/` and `cars_annos.mat`: the classes 1 to 6 and 99 to 102."""
    images = _cars()
    names = [f"car_ims/{number:06d}.jpg" for number in range(1, len(images) + 1)]
    for name, label in zip(names, images, strict=True):
        write_image(root / name, label)
    rows = [
        (name, *_CAR_BOX, label, number % 2) for number, (name, label) in enumerate(zip(names, images, strict=True))
    ]
    write_records(root / "cars_annos.mat", ("relative_im_path", *_CAR_FIELDS, "test"), rows)


def write_cars_devkit(root: Path) -> None:
    """The same classes as `cars_train/`, `cars_test/` and `devkit/`, with the classes of the test images beside it."""
    for part, images in _halves(_cars()).items():
        names = [f"{number:05d}.jpg" for number in range(1, len(images) + 1)]
        for name, label in zip(names, images, strict=True):
            write_image(root / f"cars_{part}" / name, label)
        rows = [(*_CAR_BOX, label, name) for name, label in zip(names, images, strict=True)]
        path = root / ("devkit/cars_train_annos.mat" if part == "train" else "cars_test_annos_withlabels.mat")
        write_records(path, (*_CAR_FIELDS, "fname"), rows)
        if part == "test":
            unlabeled = [(*_CAR_BOX, name) for name in names]
            write_records(root / "devkit/cars_test_annos.mat", (*_CAR_FIELDS[:4], "fname"), unlabeled)


def write_cars_class_folders(root: Path) -> None:
    """The same classes as `car_data/`, `names.csv`, `anno_train.csv` and `anno_test.csv`."""
    names = [f"Model {number} C/V 2012" for number in range(1, 197)]
    write_lines(root / "names.csv", *names)
    for part, images in _halves(_cars()).items():
        files = [f"{number:05d}.jpg" for number in range(1, len(images) + 1)]
        for file, label in zip(files, images, strict=True):
            write_image(root / "car_data/car_data" / part / names[label - 1].replace("/", "-") / file, label)
        box = ",".join(map(str, _CAR_BOX))
        rows = zip(files, images, strict=True)
        write_lines(root / f"anno_{part}.csv", *(f"{file},{box},{label}" for file, label in rows))


def write_sop(root: Path) -> None:
    """`Stanford_Online_Products/`: the classes 1 to 6 and 11319 to 11322, of two super-classes each."""
    folder = root / "Stanford_Online_Products"
    image_id, everything = 0, []
    for part, classes in {"train": range(1, 1 + TRAIN), "test": range(11319, 11319 + TEST)}.items():
        rows = []
        for label, number in ((label, number) for label in classes for number in range(IMAGES)):
            image_id += 1
            name, super_class = ("bicycle", 1) if label % 2 else ("coffee_maker", 4)
            path = f"{name}_final/{label}_{number}.JPG"
            write_image(folder / path, label)
            rows.append(f"{image_id} {label} {super_class} {path}")
        write_lines(folder / f"Ebay_{part}.txt", "image_id class_id super_class_id path", *rows)
        everything += rows
    write_lines(folder / "Ebay_info.txt", "image_id class_id super_class_id path", *everything)


def write_in_shop(root: Path, images: str = "img") -> None:
    """`In-shop Clothes Retrieval Benchmark/` with its folders: six items and four, in four categories."""
    folder = root / "In-shop Clothes Retrieval Benchmark"
    partition, boxes = [], []
    for item, number in ((item, number) for item in range(1, 1 + TRAIN + TEST) for number in range(IMAGES)):
        category = (
            ("WOMEN/Dresses", "MEN/Denim")[item % 2] if item <= TRAIN else ("WOMEN/Skirts", "MEN/Pants")[item % 2]
        )
        name = f"{category}/id_{item:08d}/{number:02d}_1_front.jpg"
        write_image(folder / "Img" / images / name, item)
        status = "train" if item <= TRAIN else "query" if number < 2 else "gallery"
        partition.append(f"img/{name}   id_{item:08d}   {status}")
        boxes.append(f"img/{name}   1 2 003 002 020 {12 + number:03d}")
    total = str(len(partition))
    header = "image_name clothes_type pose_type x_1 y_1 x_2 y_2"
    write_lines(folder / "Eval/list_eval_partition.txt", total, "image_name item_id evaluation_status", *partition)
    write_lines(folder / "Anno/list_bbox_inshop.txt", total, header, *reversed(boxes))


def write_in_shop_highres(root: Path) -> None:
    """The same with the images of high resolution only."""
    write_in_shop(root, "img_highres")


def write_inaturalist_2018(root: Path) -> None:
    """`train_val2018/` and `Inat_dataset_splits/`: six species and four, of two supercategories each."""
    for part, species in _species().items():
        paths = [
            f"train_val2018/{('Aves', 'Plantae')[s % 2]}/{s}/{s:08x}{i:08x}.jpg" for s in species for i in range(IMAGES)
        ]
        for path in paths:
            write_image(root / path, Path(path).parent.name)
        write_lines(root / "Inat_dataset_splits" / f"Inaturalist_{part}_set1.txt", *paths)


def write_mini_inaturalist_2021(root: Path) -> None:
    """`train_mini/` and the two lists: six species and four, of two supercategories each."""
    for part, species in _species().items():
        rows = []
        for number, image in ((number, image) for number in species for image in range(IMAGES)):
            folder = (
                f"{number:05d}_{('Animalia_Chordata_Aves', 'Plantae_Tracheophyta_Liliopsida')[number % 2]}_{number}"
            )
            path = f"{folder}/{number:08x}-{image:04x}.jpg"
            write_image(root / "train_mini" / path, number)
            rows.append(f"{path},{(3, 8)[number % 2]},{number}")
        write_lines(root / f"iNaturalist_{part}.txt", *rows)


def _species() -> dict[str, range]:
    return {"train": range(20, 20 + TRAIN), "test": range(90, 90 + TEST)}


def write_vehicle_id(root: Path) -> None:
    """`VehicleID_V1.0/`: six vehicles, test sets of two, three and four, and attributes of every other vehicle."""
    folder = root / "VehicleID_V1.0"
    rows = {
        v: [f"{v * 10 + i:07d} {v}" for i in range(IMAGES)] for v in (*range(1, 1 + TRAIN), *range(100, 100 + TEST))
    }
    for vehicle, images in rows.items():
        for row in images:
            write_image(folder / "image" / f"{row.split()[0]}.jpg", vehicle)
    parts = {
        "train_list": range(1, 1 + TRAIN),
        **{f"test_list_{n}": range(100, 102 + n // 800 - 1) for n in (800, 1600)},
    }
    parts["test_list_2400"] = range(100, 100 + TEST)
    for name, vehicles in parts.items():
        write_lines(
            folder / "train_test_split" / f"{name}.txt", *(row for vehicle in vehicles for row in rows[vehicle])
        )
    known = [vehicle for vehicle in rows if vehicle % 2 == 0]
    write_lines(folder / "attribute/model_attr.txt", *(f"{vehicle} {vehicle % 7}" for vehicle in known))
    write_lines(folder / "attribute/color_attr.txt", *(f"{vehicle} {vehicle % 3}" for vehicle in known))


_CAR_FIELDS = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class")
_CAR_BOX = (3, 2, 20, 18)


def _cars() -> list[int]:
    """The class of each image."""
    return [label for label in (*range(1, TRAIN + 1), *range(99, 99 + TEST)) for _ in range(IMAGES)]


def _halves(images: list[int]) -> dict[str, list[int]]:
    """A division of the images of each class, for classification."""
    return {"train": images[::2], "test": images[1::2]}


def write_records(path: Path, fields: Sequence[str], rows: Sequence[tuple[object, ...]]) -> None:
    """Write records as the struct array `annotations` of a file of MATLAB."""
    from scipy.io import savemat

    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"annotations": np.array([rows], dtype=[(field, object) for field in fields])})


WRITERS: dict[str, Callable[[Path], None]] = {
    "cars": write_cars,
    "cub": write_cub,
    "in_shop": write_in_shop,
    "in_shop_highres": write_in_shop_highres,
    "inaturalist_2018": write_inaturalist_2018,
    "mini_inaturalist_2021": write_mini_inaturalist_2021,
    "sop": write_sop,
    "vehicle_id": write_vehicle_id,
    "vehicle_id_medium": write_vehicle_id,
    "vehicle_id_small": write_vehicle_id,
}
"""The writer of each benchmark, by the name that recipes and the command use."""
