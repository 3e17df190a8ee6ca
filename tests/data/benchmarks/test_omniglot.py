import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.containers.pictures import encoded
from tests.refusals import refused_call
from vicinal.data import Table, load_table
from vicinal.data.benchmarks import omniglot

SMALL1, SMALL2 = "images_background_small1", "images_background_small2"
OFFICIAL = Path(os.environ.get("VICINAL_OMNIGLOT") or Path(__file__).parents[4] / "shared" / "data" / "omniglot")


def members(part: str, alphabets: list[str]) -> list[str]:
    return [
        f"{part}/{alphabet}/character0{c}/000{c}_0{i}.png" for alphabet in alphabets for c in (1, 2) for i in (1, 2)
    ]


def write_zip(path: Path, names: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, encoded(0))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    alphabets = ["Greek", "Balinese", "Early_Aramaic", "Korean"]
    write_zip(tmp_path / "source" / f"{SMALL1}.zip", members(SMALL1, alphabets))
    write_zip(tmp_path / "source" / "katakana.zip", members(SMALL2, ["Japanese_(katakana)"]))
    return tmp_path / "source"


def check(table: Table) -> None:
    assert len(table) == 20
    assert table.frame["label"].iloc[0] == "Balinese/character01"
    by_split = table.frame.groupby("split")["coarse"].unique().map(sorted)
    training, testing = ["Japanese_(katakana)", "Korean"], ["Balinese", "Greek"]
    assert by_split.to_dict() == {"train": training, "val": ["Early_Aramaic"], "test": testing}
    assert all(Path(path).is_file() for path in table.paths)


def test_archives_are_unpacked_into_the_root_once(source: Path) -> None:
    check(omniglot(source))
    for archive in source.glob("*.zip"):
        archive.unlink()
    table = load_table("omniglot", root=source)
    check(table)
    assert all(path.startswith(str(source / "omniglot")) for path in table.paths)


def test_a_source_beside_the_root(source: Path, tmp_path: Path) -> None:
    check(omniglot(tmp_path / "kept", source=source))
    assert sorted(path.name for path in source.iterdir()) == [f"{SMALL1}.zip", "katakana.zip"]


def test_unpacked_folders_are_read_where_they_lie(source: Path) -> None:
    for archive in list(source.glob("*.zip")):
        with zipfile.ZipFile(archive) as file:
            file.extractall(source)
        archive.unlink()
    table = omniglot(source)
    check(table)
    assert not (source / "omniglot").exists()
    assert table.paths[0].startswith(str(source / SMALL1))


def test_the_full_second_set_adds_alphabets_for_training(source: Path) -> None:
    write_zip(source / f"{SMALL2}.zip", members(SMALL2, ["Japanese_(katakana)", "Sanskrit"]))
    table = omniglot(source)
    assert set(table.subset("train").frame["coarse"]) == {"Japanese_(katakana)", "Sanskrit", "Korean"}


def test_missing_files_are_named_with_what_to_do(source: Path, tmp_path: Path) -> None:
    message = rf"nothing: no {SMALL1}\.zip, nor a folder {SMALL1}; download omniglot from https://.* put it there"
    refused_call(message, omniglot, tmp_path / "nothing")
    (source / "katakana.zip").unlink()
    refused_call(rf"no {SMALL2}\.zip or katakana\.zip, nor a folder {SMALL2}", omniglot, source)


@pytest.mark.parametrize(
    "name",
    [f"{SMALL1}/../../evil.png", "/etc/evil/a/b.png", "../evil/x/y.png", f"{SMALL1}/a/b/c/d.png", "other/a/b/c.png"],
)
def test_archives_that_would_write_elsewhere_are_refused(source: Path, tmp_path: Path, name: str) -> None:
    write_zip(source / f"{SMALL1}.zip", [*members(SMALL1, ["Greek"]), name])
    refused_call(r"small1\.zip: holds '.*'; its images must be images_background_small1/", omniglot, source)
    assert list(tmp_path.rglob("evil*")) == []
    assert not (source / "omniglot" / SMALL1).exists()


def test_broken_archives(source: Path) -> None:
    archive = source / f"{SMALL1}.zip"
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    refused_call(r"small1\.zip: not a valid zip archive \(.*\); download it again", omniglot, source)
    archive.write_bytes(whole.replace(b"IDAT", b"IDAX"))
    refused_call("not a valid zip archive", omniglot, source)
    write_zip(archive, ["readme.txt"])
    refused_call(r"small1\.zip: no images under images_background_small1/", omniglot, source)
    archive.write_bytes(whole)
    check(omniglot(source))


@pytest.mark.skipif(not OFFICIAL.is_dir(), reason=f"no Omniglot in {OFFICIAL}; set VICINAL_OMNIGLOT to its folder")
def test_the_official_archives(tmp_path: Path) -> None:
    table = omniglot(tmp_path, source=OFFICIAL)
    counts = {split: (part.num_classes, part.num_images) for split, part in table.statistics().splits.items()}
    assert counts == {"train": (113, 2260), "val": (22, 440), "test": (48, 960)}
    assert sorted(set(table.subset("train").frame["coarse"])) == ["Japanese_(katakana)", "Korean", "Latin"]
    with Image.open(table.paths[0]) as image:
        assert image.size == (105, 105)
        assert np.asarray(image).mean() > 0.5
