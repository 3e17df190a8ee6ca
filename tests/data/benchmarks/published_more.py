"""More tiny benchmarks in the layout of the published files; see `published.py`, whose conventions hold here too."""

import gzip
import json
import pickle
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.data.benchmarks.published import IMAGES, TEST, TRAIN, write_cars_devkit, write_image, write_lines
from vicinal.data.benchmarks import revisited
from vicinal.data.benchmarks.cache import COUNTS, Count

NUM_QUERIES, NUM_DISTRACTORS = 4, 3

CLASSES = {"train": range(TRAIN), "test": range(TRAIN, TRAIN + TEST)}

_TRAIN, _TEST = (TRAIN * IMAGES, TRAIN), (TEST * IMAGES, TEST)

SMALL_COUNTS: dict[str, dict[str, Count | list[Count]]] = {
    **{name: {"train": _TRAIN, "test": (TRAIN * 2, TRAIN)} for name in ("mnist", "fashion_mnist", "kmnist")},
    **{name: {"train": _TRAIN} for name in ("landmarks_v2", "landmarks_v2_full", "met", "cars98n")},
    "landmarks_v2_retrieval": {"test": (TEST * IMAGES + NUM_QUERIES, TEST)},
    "grocery": {"train": _TRAIN, "val": (2 * IMAGES, 2), "test": _TEST},
    "sfm_120k": {"train": _TRAIN, "val": (2 * IMAGES, 2)},
    "cars": {"train": _TRAIN, "test": _TEST},
    "food_101n": {"test": _TEST},
}
"""The numbers of images and classes of the tiny benchmarks, in the form of `COUNTS`."""


def accept_small_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the published numbers of these benchmarks by those of the tiny ones."""
    for name, counts in SMALL_COUNTS.items():
        monkeypatch.setitem(COUNTS, name, counts)
    monkeypatch.setattr(revisited, "NUM_DISTRACTORS", NUM_DISTRACTORS)


def _members(classes: Iterable[int], num_images: int = IMAGES) -> list[tuple[int, int]]:
    return [(label, number) for label in classes for number in range(num_images)]


def _hex(*numbers: int) -> str:
    """An id of 16 digits, whose first and last ones differ between images."""
    value = 1
    for number in numbers:
        value = (value * 1_000_003 + number) * 0x9E3779B97F4A7C15 % 2**64
    return f"{value:016x}"


def write_pickle(path: Path, content: object) -> None:
    """Write a pickle as Python 2 did."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))


def _clusters(ids: dict[str, list[tuple[str, int]]]) -> dict[str, dict[str, list[object]]]:
    pairs = {"qidxs": [0], "pidxs": [1]}
    return {
        split: {"cids": [name for name, _ in members], "cluster": [label for _, label in members], **pairs}
        for split, members in ids.items()
    }


def write_landmarks_v1(root: Path) -> None:
    """`gl18/` with `gl18.pkl` and `images/train/`: six landmarks, and two others for validation."""
    parts = {"train": CLASSES["train"], "val": range(50, 52)}
    ids = {split: [(_hex(*member), member[0]) for member in _members(labels)] for split, labels in parts.items()}
    for name, label in (member for members in ids.values() for member in members):
        write_image(root / "gl18/images/train" / f"{name}.jpg", label)
    write_pickle(root / "gl18/gl18.pkl", _clusters(ids))


def write_sfm_120k(root: Path) -> None:
    """`retrieval-SfM-120k/` with its pickle and `ims/`: six models, and two for validation with the same numbers."""
    parts = {"train": CLASSES["train"], "val": range(2)}
    folder = root / "retrieval-SfM-120k"
    ids = {
        split: [(2 * _hex(place, *member), member[0]) for member in _members(labels)]
        for place, (split, labels) in enumerate(parts.items())
    }
    for split, members in ids.items():
        for name, label in members:
            write_image(folder / "ims" / name[-2:] / name[-4:-2] / name[-6:-4] / f"{name}.png", f"{split}{label}")
    for path in folder.glob("ims/*/*/*/*.png"):  # the published files have no suffix
        path.rename(path.with_suffix(""))
    write_pickle(folder / "retrieval-SfM-120k.pkl", _clusters(ids))


def write_landmarks_v2(root: Path) -> None:
    """`google-landmark/` with lists and images: six landmarks, an index of four others, and four queries of which two
    are public, and one that is ignored."""
    folder = root / "google-landmark"

    def write(part: str, name: str, label: object) -> None:
        write_image(folder / part / name[0] / name[1] / name[2] / f"{name}.jpg", label)

    training = {label: [_hex(label, number) for number in range(IMAGES)] for label in CLASSES["train"]}
    index = {label: [_hex(7, label, number) for number in range(IMAGES)] for label in range(TEST)}
    queries = {_hex(9, label): label for label in range(NUM_QUERIES)}
    for part, classes in (("train", training), ("index", index)):
        for label, name in ((label, name) for label, names in classes.items() for name in names):
            write(part, name, f"{part}{label}")
    for name, label in queries.items():
        write("test", name, f"index{label}")
    rows = [(name, label) for label, names in training.items() for name in names]
    write_lines(folder / "train.csv", "id,url,landmark_id", *(f'{name},"http://x/,{name}",{at}' for name, at in rows))
    write_lines(
        folder / "train_clean.csv", "landmark_id,images", *(f"{k},{' '.join(names)}" for k, names in training.items())
    )
    rows = [(name, label) for label, names in index.items() for name in names]
    write_lines(folder / "index.csv", "id", *(name for name, _ in rows))
    write_lines(folder / "index_image_to_landmark.csv", "id,landmark_id", *(f"{name},{at}" for name, at in rows))
    solution = [
        f"{name},{' '.join(index[label])},{'Public' if label % 2 else 'Private'}" for name, label in queries.items()
    ]
    write_lines(folder / "retrieval_solution_v2.1.csv", "id,images,Usage", f"{_hex(9, 99)},None,Ignored", *solution)


def write_roxford_1m(root: Path, name: str = "roxford5k") -> None:
    """`roxford5k/` and `revisitop1m/`: four gallery images, two queries, three distractors."""
    images, queries = [f"gallery_{i}" for i in range(4)], ["query_0", "query_1"]
    for number, image in enumerate([*images, *queries]):
        write_image(root / name / "jpg" / f"{image}.jpg", number % 2)
    entry = {"bbx": [1.0, 1.0, 20.0, 18.0], "junk": np.array([3])}
    entries = [{**entry, "easy": np.array([0]), "hard": np.array([2])}, {**entry, "easy": [1], "hard": []}]
    write_pickle(root / name / f"gnd_{name}.pkl", {"imlist": images, "qimlist": queries, "gnd": entries})
    distractors = [f"distractor_{i}.jpg" for i in range(NUM_DISTRACTORS)]
    for distractor in distractors:
        write_image(root / "revisitop1m/jpg" / distractor, distractor)
    write_lines(root / "revisitop1m/revisitop1m.txt", *distractors)


def write_rparis_1m(root: Path) -> None:
    """The same with `rparis6k/`."""
    write_roxford_1m(root, "rparis6k")


def write_cars98n(root: Path) -> None:
    """`cars98n/` with its list and `img_v3/`: the folders 0, 1, 10, 11, 12 and 2, and Cars196 for testing."""
    write_cars_devkit(root / "cars196")
    rows = []
    for rank, folder in enumerate(["0", "1", "10", "11", "12", "2"], 1):
        for number in range(IMAGES):
            path = f"img_v3/{folder}/{_hex(rank, number)}--a-car.jpg"
            write_image(root / "cars98n" / path, folder)
            rows.append(f"/data/cars_noise/{path},{rank}")
    write_lines(root / "cars98n/CARSN_train.csv", *rows)


def food_classes() -> list[str]:
    """The names of 101 classes: the first six have training images, the last four test images."""
    return [f"dish_{number:03d}" for number in range(101)]


def write_food_101n(root: Path) -> None:
    """`Food-101N_release/` and `food-101/`, with images of few of the 101 classes; each has one of the other half."""
    classes = food_classes()
    noisy, clean = root / "Food-101N_release", root / "food-101"
    images = [f"{classes[label]}/{_hex(label, number)}.jpg" for label, number in _members([*range(TRAIN), 60])]
    for image in images:
        write_image(noisy / "images" / image, Path(image).parent.name)
    write_lines(noisy / "meta/classes.txt", "class_name", *classes)
    write_lines(noisy / "meta/imagelist.tsv", "class_name/key", *images)
    verdicts = [f"{image}\t{number % 2}" for number, image in enumerate(images[:8])]
    header, unlisted = "class_name/key\tverification_label", "hot_and_sour_soup/a49e6fb26e356c6c41a37b5c18176355.jpg"
    write_lines(noisy / "meta/verified_train.tsv", header, *verdicts[:6], f"{unlisted}\t1")
    write_lines(noisy / "meta/verified_val.tsv", header, *verdicts[6:])
    ids = [f"{classes[label]}/{1000 * label + number}" for label, number in _members([0, *range(97, 97 + TEST)])]
    for image in ids:
        write_image(clean / "images" / f"{image}.jpg", Path(image).parent.name)
    write_lines(clean / "meta/classes.txt", *classes)
    write_lines(clean / "meta/train.txt", *ids[::2])
    write_lines(clean / "meta/test.txt", *ids[1::2])


def write_met(root: Path) -> None:
    """`met/` with `ground_truth/` and `images/`: six exhibits, and in each set of queries four, and two without."""
    folder = root / "met"
    catalog = [{"id": 10 + label, "path": f"MET/{10 + label}/{number}.jpg"} for label, number in _members(range(TRAIN))]
    queries = {
        part: [
            *({"path": f"test_met/{part}_{label}.jpg", "MET_id": 10 + label} for label in range(NUM_QUERIES)),
            *({"path": f"test_{other}/{part}_0.jpg"} for other in ("noart", "other")),
        ]
        for part in ("val", "test")
    }
    for entry in [*catalog, *queries["val"], *queries["test"]]:
        write_image(folder / "images" / str(entry["path"]), entry.get("id", entry.get("MET_id", entry["path"])))
    (folder / "ground_truth").mkdir()
    files = {"MET_database": catalog, "mini_MET_database": catalog[::2]}
    for name, entries in {**files, "valset": queries["val"], "testset": queries["test"]}.items():
        (folder / "ground_truth" / f"{name}.json").write_text(json.dumps(entries))


def write_grocery(root: Path) -> None:
    """`grocery.zip`: six products, two for validation and four for testing, of two coarse classes each."""
    rows, source = ["path,label,coarse,split"], root / "unpacked"
    parts = {"train": range(TRAIN), "val": range(20, 22), "test": range(30, 30 + TEST)}
    for split, label, number in ((s, *member) for s, labels in parts.items() for member in _members(labels)):
        coarse = f"{split.title()}-{label % 2}"
        path = f"{coarse}/Product-{label}/{('train', 'test')[number % 2]}_{number:03d}.jpg"
        write_image(source / path, label)
        rows.append(f"{path},Product-{label},{coarse},{split}")
    write_lines(source / "table.csv", *rows)
    with zipfile.ZipFile(root / "grocery.zip", "w") as archive:
        for path in sorted(source.rglob("*.*")):
            archive.write(path, path.relative_to(source))
            path.unlink()


def write_idx(path: Path, values: np.ndarray) -> None:
    """Write an array of bytes as an idx file, compressed if its name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    data = header + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_mnist(root: Path, folder: str = "mnist", suffix: str = "-ubyte.gz") -> None:
    """Four idx files: six digits, five times for training and twice for testing, all of 8 x 8 pixels."""
    for part, repeats in (("train", IMAGES), ("t10k", 2)):
        labels = np.arange(TRAIN * repeats) % TRAIN
        noise = np.random.default_rng(repeats).integers(0, 40, (len(labels), 8, 8))
        write_idx(root / folder / f"{part}-labels-idx1{suffix}", labels)
        write_idx(root / folder / f"{part}-images-idx3{suffix}", 30 * labels[:, None, None] + noise)


def write_fashion_mnist(root: Path) -> None:
    """The same in the folders of torchvision, not compressed."""
    write_mnist(root, "FashionMNIST/raw", "-ubyte")


def write_kmnist(root: Path) -> None:
    """The same in the folder of the benchmark's own name."""
    write_mnist(root, "kmnist")


def cub_rows(*classes: int) -> list[str]:
    """The lines of a list of training images of `write_cub`, as PRISM published it, with the right labels."""
    return [
        f"/data/CUB_200_2011/images/{number:03d}.Bird_{number}/Bird_{number}_{i:04d}.jpg,{number}"
        for number in classes
        for i in range(IMAGES)
    ]


def write_cub_train_list(root: Path) -> Path:
    """`CUB_0.1noised_train.csv`, with two noisy labels, and the list of the others, both of images of `write_cub`."""
    rows = cub_rows(*range(1, TRAIN + 1))
    write_lines(root / "CUB_0.1noised_cleaned_train.csv", *rows[2:])
    write_lines(root / "CUB_0.1noised_train.csv", *(row[:-1] + "4" for row in rows[:2]), *rows[2:])
    return root / "CUB_0.1noised_train.csv"


def replace_text(path: Path, old: str, new: str) -> None:
    """Replace the first place of a text in a file, which must be there."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


MORE_WRITERS: dict[str, Callable[[Path], None]] = {
    "cars98n": write_cars98n,
    "fashion_mnist": write_fashion_mnist,
    "food_101n": write_food_101n,
    "grocery": write_grocery,
    "kmnist": write_kmnist,
    "landmarks_v1": write_landmarks_v1,
    "landmarks_v2": write_landmarks_v2,
    "landmarks_v2_full": write_landmarks_v2,
    "met": write_met,
    "met_mini": write_met,
    "mnist": write_mnist,
    "roxford_1m": write_roxford_1m,
    "rparis_1m": write_rparis_1m,
    "sfm_120k": write_sfm_120k,
}
"""The writer of each benchmark, by the name that recipes and the command use."""

TRAINABLE: Sequence[str] = sorted(set(MORE_WRITERS) - {"roxford_1m", "rparis_1m"})
"""The benchmarks with a training split."""
