"""Shards of embeddings: disjoint and complete, resumed, merged, verified, and refused where they do not fit."""

import os
import shutil
import tarfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from tests.conftest import draw_photos, output, refused
from tests.damage import flipped, refusal
from tests.refusals import refused_call
from vicinal.cli.main import main
from vicinal.data import EmbeddingShards, load_embeddings, load_vectors, merge_shards, read_fingerprint, verify_shards
from vicinal.data.batches.image_dataset import ImageDataset
from vicinal.data.embedding_files import read_own_images
from vicinal.data.shard_manifest import ShardManifest
from vicinal.models import Embedder
from vicinal.utils.errors import InputError
from vicinal.utils.files import hold_lock
from vicinal.workflows import EmbeddingReader, embed_shard
from vicinal.workflows.shards import LOCK

NUM_SHARDS, PART_SIZE = 3, 3
MANIFEST = ShardManifest(1, 3, "photos", 24, "0" * 64, "0123abcd", "32", "skip", PART_SIZE)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 images, of which one is unreadable and in the second shard, and three more fill a part of the third."""
    folder = draw_photos(tmp_path_factory.mktemp("images"), 4, 6)
    for name in ("class1/3.png", "class3/1.png", "class3/2.png", "class3/3.png"):
        folder.joinpath(name).write_bytes(b"no image")
    return folder


@pytest.fixture(scope="module")
def made(model: str, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "shards"
    for shard in (2, 1, 3):
        embed(model, images, folder, shard)
    return folder


@pytest.fixture
def shards(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "shards"))


def embed(model: str, source: object, folder: Path, shard: int = 1, **options: object) -> ShardManifest:
    chosen = {"num_shards": NUM_SHARDS, "part_size": PART_SIZE, **options}
    own = {name: chosen.pop(name) for name in ("num_shards", "part_size")}
    return embed_shard(EmbeddingReader(model=model, **chosen), str(source), folder, shard, **own)  # type: ignore[arg-type]


def test_the_merged_shards_are_the_embeddings_of_one_call(model: str, images: Path, made: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole.parquet"
    assert main(["embed", str(images), "--model", model, "--out", str(whole)]) == 0
    expected, table = load_embeddings(whole)
    merge_shards(made, tmp_path / "merged.parquet")
    merge_shards(made, tmp_path / "merged.npy")
    for path in (tmp_path / "merged.parquet", tmp_path / "merged.npy", made):
        vectors, same = load_embeddings(path)
        np.testing.assert_allclose(vectors, expected, atol=1e-6)
        pd.testing.assert_frame_equal(same.frame, table.frame)
        assert read_own_images(path)["path"].tolist() == table.paths
    assert len(table) == 20
    assert pq.read_schema(tmp_path / "merged.parquet") == pq.read_schema(whole)
    assert read_fingerprint(made) == read_fingerprint(tmp_path / "merged.parquet") == read_fingerprint(whole)
    np.testing.assert_array_equal(load_vectors(made), load_vectors(tmp_path / "merged.npy"))


@pytest.mark.parametrize("num_shards", [1, 2, 3, 7, 24, 30])
def test_shards_are_disjoint_complete_and_equal(num_shards: int) -> None:
    each = [replace(MANIFEST, shard=n + 1, num_shards=num_shards) for n in range(num_shards)]
    assert [row for manifest in each for row in manifest.rows] == list(range(24))
    sizes = [len(manifest.rows) for manifest in each]
    assert max(sizes) - min(sizes) <= 1


def test_unreadable_images_are_left_out_and_listed(images: Path, made: Path, capsys) -> None:
    unreadable = verify_shards(made).unreadable
    names = ["class1/3.png", "class3/1.png", "class3/2.png", "class3/3.png"]
    assert list(unreadable) == [9, 19, 20, 21]
    for error, name in zip(unreadable.values(), names, strict=True):
        assert error.startswith(f"{images / name}: not an image")
    assert not (made / "shard-3-of-3" / "part-000001.parquet").exists()  # of rows 19 to 21
    printed = output(capsys, "embed", "--verify", made)
    assert printed == f"{made}: 3 shards, 9 parts, 20 embeddings of 4 dimensions\n"


def test_an_unreadable_image_stops_the_shard_if_that_is_asked_for(model: str, images: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"class1/3\.png: not an image.*--on_error skip leaves out such images"):
        embed(model, images, tmp_path, 2, on_error="raise")


def test_a_shard_goes_on_at_its_last_part(model: str, images: Path, made: Path, tmp_path: Path, monkeypatch) -> None:
    write = ShardManifest.save

    def interrupted(manifest: ShardManifest, folder: Path) -> None:
        if len(manifest.parts) == 2:  # the file of the part is there, and not yet in the manifest
            raise KeyboardInterrupt
        write(manifest, folder)

    with monkeypatch.context() as patch:
        patch.setattr(ShardManifest, "save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            embed(model, images, tmp_path)
    refused_call(r"shard 2/3 is missing; shard 3/3 is missing; shard 1/3 has 1 of 3 parts;", verify_shards, tmp_path)
    first = tmp_path / "shard-1-of-3" / "part-000000.parquet"
    before = first.stat().st_mtime_ns
    manifest = embed(model, images, tmp_path)
    assert manifest.is_complete
    assert first.stat().st_mtime_ns == before
    assert manifest == ShardManifest.load(made / "shard-1-of-3" / "manifest.json")


def test_a_damaged_part_is_found_and_embedded_again(model: str, images: Path, shards: Path, tmp_path: Path) -> None:
    part, gone = (shards / "shard-2-of-3" / f"part-00000{number}.parquet" for number in (0, 1))
    content = part.read_bytes()
    part.write_bytes(content[:60] + bytes([content[60] ^ 1]) + content[61:])
    gone.unlink()
    refused_call(r"part-000000\.parquet: has the SHA-256 .*part-000001\.parquet: no such file", verify_shards, shards)
    for path in (tmp_path / "merged.parquet", tmp_path / "merged.npy"):
        refused_call(r"no such file|has the SHA-256 \w{8}, not \w{8} as it was written", merge_shards, shards, path)
    refused_call("has the SHA-256", load_embeddings, shards)
    assert [each.name for each in tmp_path.iterdir()] == ["shards"]
    embed(model, images, shards, 2)
    verify_shards(shards)


def test_a_flipped_bit_in_a_manifest_is_noticed(shards: Path) -> None:
    path = shards / "shard-2-of-3" / "manifest.json"
    before, content = ShardManifest.load(path), path.read_bytes()
    size = content.index(b'"num_embeddings": 3') + len(b'"num_embeddings": ')
    for place in (size, *np.random.default_rng(0).integers(len(content), size=100)):
        path.write_bytes(flipped(content, place))
        message = refusal(partial(ShardManifest.load, path))
        if message is None:
            assert place != size
            assert ShardManifest.load(path) == before
        else:
            assert f"delete {path.parent} and embed this shard again" in message


def test_shards_that_do_not_fit_are_refused(model: str, images: Path, shards: Path, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    Embedder("test_resnet", dim=5, pretrained=False).save_pretrained(other)
    frame = pd.DataFrame({"path": sorted(map(str, images.rglob("*.png")))})
    for name, rows in (("table", frame), ("shuffled", frame[::-1]), ("noted", frame.assign(note="a"))):
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
    (old,) = {each.model for each in EmbeddingShards.open(shards).manifests}
    new = EmbeddingReader(model=other).fingerprint
    for changed, message in (
        ({"model": other}, f"shard 1/3 was embedded with model {old}, not {new}"),
        ({"model": other, "shard": 2}, f"shard 1/3 was embedded with model {old}, not {new} as shard 2/3"),
        ({"precision": "bf16"}, "precision 32, not bf16"),
        ({"dim": 2}, f"model {old}, not {old}+dim 2"),
        ({"on_error": "raise"}, "on_error skip, not raise"),
        ({"num_shards": 4}, "num_shards 3, not 4"),
        ({"part_size": 4}, "part_size 3, not 4"),
        ({"where": "label == 'class1'"}, r"\(24 rows, SHA-256 \w{8}\), not .*images\d \(6 rows"),
        ({"source": tmp_path / "shuffled.csv"}, r"\(24 rows, SHA-256 \w{8}\), not .*shuffled.csv \(24 rows"),
    ):
        with pytest.raises(InputError, match=message.replace("+", r"\+")):
            embed(**{"model": model, "source": images, "folder": shards, **changed})  # type: ignore[arg-type]
    embed(model, tmp_path / "table.csv", tmp_path / "of_table")
    with pytest.raises(InputError, match=r"table.csv \(24 rows, SHA-256 (\w{8})\), not .*noted.csv \(24 rows"):
        embed(model, tmp_path / "noted.csv", tmp_path / "of_table", 2)
    with pytest.raises(InputError, match="already holds embeddings; --shard and --ray need images"):
        embed(model, shards, tmp_path / "again")
    refused_call("holds the images; write the shards into a folder of their own", embed, model, images, images)
    assert {each.name for each in (tmp_path / "of_table").iterdir()} == {"shard-1-of-3"}


def test_missing_overlapping_and_foreign_shards_are_refused(shards: Path) -> None:
    manifest = shards / "shard-2-of-3" / "manifest.json"
    second = ShardManifest.load(manifest)
    for changed, message in (
        ({"model": "4567"}, "shard 1/3 was embedded with model .*, not 4567 as shard 2/3"),
        ({"rows_sha256": "f" * 64}, "shard 1/3 was embedded with .*, not .*SHA-256 ffffffff"),
    ):
        replace(second, **changed).save(shards)
        refused_call(message, load_embeddings, shards)
    second.save(shards)
    shutil.copytree(manifest.parent, shards / "shard-2-of-4")
    refused_call("is of shard 2/3; its folder must be shard-2-of-3", verify_shards, shards)
    shutil.rmtree(shards / "shard-2-of-4")
    shutil.rmtree(manifest.parent)
    refused_call("shard 2/3 is missing", verify_shards, shards)
    refused_call("holds no shards of vicinal embed --shard", verify_shards, shards.parent)


def test_two_processes_do_not_embed_one_shard(model: str, images: Path, tmp_path: Path) -> None:
    (tmp_path / "shard-1-of-3").mkdir()
    with hold_lock(tmp_path / "shard-1-of-3" / LOCK, 0, "embed"):
        with pytest.raises(InputError, match=f"cannot embed shard 1/3 in {tmp_path}: another process is doing so"):
            embed(model, images, tmp_path)
        assert embed(model, images, tmp_path, 2).is_complete


def test_shards_are_a_source_of_other_verbs(shards: Path, tmp_path: Path, capsys) -> None:
    merged = tmp_path / "merged.parquet"
    assert output(capsys, "embed", "--merge", shards, "--out", merged).strip() == str(merged)
    assert "ending in .parquet or .npy" in refused(capsys, "embed", "--merge", shards, "--out", tmp_path / "x.csv")
    found = []
    for source in (shards, merged):
        index = tmp_path / f"index_{source.stem}"
        output(capsys, "index", "build", index, source)
        searched = output(capsys, "search", index, source)
        found.append((searched, output(capsys, "evaluate", source, "--where", "label != 'class3'")))
    assert found[0] == found[1]


def test_containers_are_sources_of_shards(model: str, images: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("VICINAL_DATA", str(tmp_path / "cache"))
    readable = [path for path in sorted(images.rglob("*.png")) if path.read_bytes() != b"no image"]
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number, path in enumerate(readable[:5]):
            tar.add(path, f"{number}.png")
    source = f"wds:{tmp_path / 'a.tar'}"
    for shard, number in ((1, 1), (2, 3), (3, 5)):
        embed(model, source, tmp_path / "shards", shard)
        written = [*(tmp_path / "cache").rglob("*.png")]
        assert len(written) == number  # its own images only
    written[0].unlink()
    embed(model, source, tmp_path / "shards")
    assert len([*(tmp_path / "cache").rglob("*.png")]) == 4  # none for a shard that is complete
    expected = EmbeddingReader(model=model).embed(source)
    vectors, table = load_embeddings(tmp_path / "shards")
    np.testing.assert_allclose(vectors, expected.vectors, atol=1e-6)
    pd.testing.assert_frame_equal(table.frame.drop(columns="path"), expected.table.frame.drop(columns="path"))
    os.utime(tmp_path / "a.tar", (0, 0))  # is another version, whose images are written elsewhere
    refused_call(r"a\.tar \(5 rows, SHA-256 (\w{8})\), not ", embed, model, source, tmp_path / "shards")


def test_all_options_of_a_model_are_those_of_shards(model: str, images: Path, tmp_path: Path) -> None:
    whitening = str(tmp_path / "whitening.safetensors")
    assert main(["whiten", str(images), "--model", model, "--dim", "3", "--out", whitening]) == 0
    for number, options in enumerate(({"scales": (1.0, 0.5), "max_size": 64}, {"whitening": whitening, "dim": 2})):
        for shard in (1, 2, 3):
            embed(model, images, tmp_path / str(number), shard, **options)
        expected = EmbeddingReader(model=model, **options).embed(str(images))
        np.testing.assert_allclose(load_vectors(tmp_path / str(number)), expected.vectors, atol=1e-4, err_msg=options)
        assert read_fingerprint(tmp_path / str(number)) == expected.fingerprint, options


def test_an_unreadable_image_costs_itself_only(model: str, images: Path, tmp_path: Path, monkeypatch) -> None:
    load, read = ImageDataset.load, []

    def counted(dataset: ImageDataset, row: int, transform: object) -> object:
        read.append(dataset.table.paths[row])
        return load(dataset, row, transform)  # type: ignore[arg-type]

    monkeypatch.setattr(ImageDataset, "load", counted)
    assert embed(model, images, tmp_path, num_shards=1, part_size=24).num_embeddings == 20
    assert len(read) == len(set(read)) == 24
