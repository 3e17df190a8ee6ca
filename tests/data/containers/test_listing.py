"""Shards of containers: each process writes its own images only, and all together have those of the whole."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.containers.pictures import contents, encoded
from tests.data.containers.test_webdataset import write_shard
from tests.refusals import refused_call
from vicinal.data import load_table
from vicinal.data.containers import listing, webdataset
from vicinal.data.loading import list_images
from vicinal.utils.arrays import Integers

NUMBER, BLIND, UNLABELED = 14, 3, 9  # samples, of which one has no image, and one no label


def wds(folder: Path) -> str:
    for number, split in enumerate(("train", "val", "val")):
        members: dict[str, Any] = {}
        for row in range(number * 5, min(number * 5 + 5, NUMBER)):
            members |= {} if row == BLIND else {f"d/{row}.png": encoded(row)}
            members |= {f"d/{row}.txt": b"caption"}
            members |= (
                {} if row == UNLABELED else {f"d/{row}.json": f'{{"label": "{row % 3}", "group": {row}}}'.encode()}
            )
        write_shard(folder / f"birds-{split}-{number}.tar", members)
    return f"wds:{folder}/birds-*.tar"


def images(rows: range) -> list[dict[str, Any] | None]:
    return [
        None if row == BLIND else {"bytes": encoded(row), "path": f"{row}.png" if row % 2 else None} for row in rows
    ]


def labels(rows: range) -> list[str | None]:
    return [None if row == UNLABELED else f"class {row % 3}" for row in rows]


def parquet(folder: Path) -> str:
    table = pa.table({"image": images(range(NUMBER)), "label": labels(range(NUMBER)), "size": [*range(NUMBER)]})
    pq.write_table(table, folder / "birds.parquet", row_group_size=4)
    return f"{folder}/birds.parquet"


def saved(folder: Path) -> str:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("string")})
    splits = {"train": range(6), "test": range(6, NUMBER)}
    made = {
        split: datasets.Dataset.from_dict({"image": images(rows), "label": labels(rows)}, features=features)
        for split, rows in splits.items()
    }
    datasets.DatasetDict(made).save_to_disk(folder / "saved")
    return f"hf:{folder}/saved"


@pytest.mark.parametrize("make", [wds, parquet, saved])
def test_images_are_written_where_they_are_needed(make: Callable[[Path], str], tmp_path: Path, monkeypatch) -> None:
    source = make(tmp_path)
    whole = load_table(source, root=tmp_path / "whole")
    monkeypatch.setattr(listing, "ROWS_PER_FRAME", 3)
    listed = list_images(source, root=tmp_path / "whole" / ".." / "listed")
    without_paths = [each.frame.drop(columns="path") for each in (whole, listed.table)]
    pd.testing.assert_frame_equal(*without_paths)
    assert len(whole) == NUMBER - 2
    assert not any(Path(path).exists() for path in listed.table.paths)
    own = listed.table.paths[3:8]
    listed.write(own)
    assert [Path(path).exists() for path in listed.table.paths] == [path in own for path in listed.table.paths]
    again = list_images(source, root=tmp_path / "listed")
    again.write(again.table.paths)
    assert contents(again.table) == contents(whole)
    assert not list(Path(own[0]).parent.glob(".*"))


def test_images_that_are_there_are_not_read_again(tmp_path: Path) -> None:
    listed = list_images(wds(tmp_path), root=tmp_path)
    listed.write(listed.table.paths[:4])
    lengths: list[int] = []

    def read(locations: Integers) -> Iterator[bytes]:
        lengths.append(len(locations))
        return iter(len(locations) * [b"-"])

    replace(listed, read=read).write(listed.table.paths[2:7])
    assert lengths == [3]
    written = Path(listed.table.paths[0])
    written.write_bytes(written.read_bytes()[:50])  # the machine has lost its power
    listed.write(listed.table.paths[:1])
    assert [content == b"-" for content in contents(listed.table.take(range(7)))] == 4 * [False] + 3 * [True]
    assert written.read_bytes() == encoded(0)


@pytest.mark.parametrize("name", [listing.TABLE, listing.LOCATIONS])
@pytest.mark.parametrize("content", [b"", b"PAR1\x93NUMPY" * 100])
def test_a_damaged_list_is_made_again(name: str, content: bytes, tmp_path: Path) -> None:
    listed = list_images(wds(tmp_path), root=tmp_path)
    assert listed.folder is not None
    (listed.folder / name).write_bytes(content)
    again = list_images(f"wds:{tmp_path}/birds-*.tar", root=tmp_path)
    again.write()
    assert (
        contents(again.table)
        == contents(listed.table)
        == [encoded(row) for row in range(NUMBER) if row not in (BLIND, UNLABELED)]
    )


def test_only_own_row_groups_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    complete = [image for image in images(range(NUMBER)) if image]
    pq.write_table(pa.table({"image": complete}), tmp_path / "birds.parquet", row_group_size=4)
    read: list[Any] = []
    original = pq.ParquetFile.iter_batches

    def recorded(file: pq.ParquetFile, *sizes: int, **options: Any) -> Any:
        read.append((options.get("row_groups"), options["columns"]))
        return original(file, *sizes, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", recorded)
    listed = list_images(tmp_path / "birds.parquet", root=tmp_path, label_column=None)
    listed.write(listed.table.paths[5:7])
    assert [each for each in read if each[1][0].startswith("image.")] == [
        (None, ["image.path"]),
        ([1], ["image.bytes"]),
    ]


def test_no_image_of_a_tar_file_is_read_for_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    original = webdataset.tarfile.TarFile.extractfile

    def recorded(tar: Any, member: Any) -> Any:
        sizes.append(member.name.endswith(".png"))
        return original(tar, member)

    monkeypatch.setattr(webdataset.tarfile.TarFile, "extractfile", recorded)
    list_images(wds(tmp_path), root=tmp_path)
    assert sizes
    assert not any(sizes)


@pytest.mark.parametrize("left", [images(range(5)), 9 * [None]])
def test_a_parquet_file_that_is_replaced_is_an_error(left: list[dict[str, Any] | None], tmp_path: Path) -> None:
    source = parquet(tmp_path)
    listed = list_images(source, root=tmp_path)
    image = pa.array(left, pq.read_schema(source).field("image").type)
    pq.write_table(pa.table({"image": image, "label": labels(range(len(left)))}), source)
    refused_call(r"\.parquet: has changed while it was read; start again$", listed.write, listed.table.paths)
