"""Embedding on a Ray cluster: the files of `--shard`, whatever is unreadable, deadly or killed on the way."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import draw_photos, free_port, refused
from vicinal.data import verify_shards
from vicinal.data.shard_manifest import ShardManifest
from vicinal.models import Embedder
from vicinal.utils.errors import InputError
from vicinal.workflows import EmbeddingReader, embed_on_ray, embed_shard

ray = pytest.importorskip("ray", reason="needs the extra ray")

ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}  # else workers wait for everyone else


def deadly_hook(orders: Path) -> Callable[[], None]:
    """What is called in each worker: some images, and orders that are files in a folder, kill the process."""

    def patch() -> None:  # pickled by its value, as a function of this module would make each worker import the tests
        from vicinal.data.batches.image_dataset import ImageDataset
        from vicinal.workflows.ray_job import EmbedBlock

        def die() -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        def obey(order: str) -> None:
            if (orders / order).exists():
                (orders / order).unlink()
                die()

        load, result = ImageDataset.load, EmbedBlock._result

        def deadly_load(dataset: Any, row: int, transform: Any) -> Any:
            if "deadly" in dataset.table.paths[row]:
                die()
            if "3.png" in dataset.table.paths[row]:
                obey("read")
            return load(dataset, row, transform)

        def deadly_result(block: Any, pixels: Any, first_row: int, *rest: Any) -> Any:
            if first_row > 3:
                obey("embed")
            return result(block, pixels, first_row, *rest)

        ImageDataset.load, EmbedBlock._result = deadly_load, deadly_result  # type: ignore[method-assign]

    return patch


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Of this process too: Ray gives the workers one each, and sums of more threads are rounded differently."""
    number = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(number)


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("orders")


def start(**options: object) -> None:
    os.environ.update(ENVIRONMENT)
    memory, quiet = 80 * 2**20, {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init(address="local", num_cpus=1, object_store_memory=memory, **quiet, **options)


@pytest.fixture(scope="module")
def cluster(orders: Path) -> Iterator[None]:
    start(runtime_env={"worker_process_setup_hook": deadly_hook(orders)})
    yield
    ray.shutdown()


@pytest.fixture
def quick_cluster() -> Iterator[None]:
    """A cluster whose workers start sooner. There must be no other, so the test comes first."""
    start()
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 images, of which four are unreadable: one, and a whole part."""
    folder = draw_photos(tmp_path_factory.mktemp("images"), 4, 6)
    for name in ("class1/3.png", "class3/0.png", "class3/1.png", "class3/2.png"):
        folder.joinpath(name).write_bytes(b"no image")
    return folder


def reader_of(model: str) -> EmbeddingReader:
    return EmbeddingReader(model=model, batch_size=2)


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of all files of shards, but of locks and of what a killed process was writing."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("[!.]*.*")}


@pytest.mark.slow
def test_the_files_are_those_of_a_shard(model: str, images: Path, quick_cluster: None, tmp_path: Path) -> None:
    for shard in (1, 2):
        embed_shard(reader_of(model), str(images), tmp_path / "here", shard, 2, part_size=3)
    embed_on_ray(reader_of(model), str(images), tmp_path / "ray", "local", 2, 2, part_size=3)
    embed_shard(reader_of(model), str(images), tmp_path / "ray", 1, 2, part_size=3)
    assert contents(tmp_path / "ray") == contents(tmp_path / "here")
    assert list(verify_shards(tmp_path / "ray").unreadable) == [9, 18, 19, 20]
    assert [part.num_embeddings for part in verify_shards(tmp_path / "ray").manifests[1].parts] == [3, 3, 0, 3]


@pytest.mark.slow
def test_what_was_embedded_is_kept(model: str, images: Path, cluster: None, tmp_path: Path) -> None:
    done = embed_on_ray(reader_of(model), str(images), tmp_path, part_size=3)
    first, second, third = (done.part_file(tmp_path, number) for number in range(3))
    expected, before = contents(tmp_path), first.stat().st_mtime_ns
    second.write_bytes(b"damaged")
    third.unlink()
    replace(done, parts=done.parts[:6]).save(tmp_path)
    assert embed_on_ray(reader_of(model), str(images), tmp_path, part_size=3) == done
    assert contents(tmp_path) == expected
    assert first.stat().st_mtime_ns == before


@pytest.mark.slow
def test_an_error_is_one_line(model: str, images: Path, cluster: None, tmp_path: Path) -> None:
    raising = replace(reader_of(model), on_error="raise")
    with pytest.raises(InputError, match=r"row 9: .*class1/3\.png: not an image.*; --on_error skip leaves out such"):
        embed_on_ray(raising, str(images), tmp_path, part_size=3)
    assert ShardManifest.load(tmp_path / "shard-1-of-1" / "manifest.json").is_complete is False
    network = Embedder("test_resnet", dim=4, pretrained=False)
    network.head[1].weight.data.fill_(torch.inf)
    network.save_pretrained(tmp_path / "infinite")
    with pytest.raises(InputError, match="device cuda cannot be used: the Ray cluster has no GPUs"):
        embed_on_ray(replace(reader_of(model), device="cuda"), str(images), tmp_path / "out")
    with pytest.raises(InputError, match="from row 0: the embedding of image 0 is not finite"):
        embed_on_ray(reader_of(str(tmp_path / "infinite")), str(images), tmp_path / "infinite_out")


@pytest.mark.slow
def test_an_image_that_kills_its_worker_costs_itself(model: str, images: Path, cluster: None, tmp_path: Path) -> None:
    folder = draw_photos(tmp_path / "images", 3, 6)
    (folder / "class1" / "2.png").rename(folder / "class1" / "deadly.png")
    done = embed_on_ray(reader_of(model), str(folder), tmp_path / "ray", part_size=4)
    (row,) = done.unreadable
    told = f"{folder / 'class1' / 'deadly.png'}: the process that read it died 2 times"
    assert done.unreadable[row].startswith(told)
    assert done.num_embeddings == 17
    (folder / "class1" / "deadly.png").write_bytes(b"no image")
    embed_shard(reader_of(model), str(folder), tmp_path / "here", 1, 1, part_size=4)
    parts = [{**contents(tmp_path / each)} for each in ("ray", "here")]
    for each in parts:
        del each["shard-1-of-1/manifest.json"]  # has the errors
    assert parts[0] == parts[1]


@pytest.mark.slow
@pytest.mark.parametrize("order", ["read", "embed"])
def test_killed_workers(model: str, images: Path, orders: Path, cluster: None, tmp_path: Path, order: str) -> None:
    (orders / order).touch()
    embed_on_ray(reader_of(model), str(images), tmp_path / "ray", part_size=4)
    assert not (orders / order).exists()
    embed_shard(reader_of(model), str(images), tmp_path / "here", 1, 1, part_size=4)
    assert contents(tmp_path / "ray") == contents(tmp_path / "here")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGINT])
def test_a_driver_that_ends_is_resumed(model: str, tmp_path: Path, kind: signal.Signals) -> None:
    images = draw_photos(tmp_path / "images", 10, 40)
    words = ["embed", images, "--model", model, "--part_size", "2", "--batch_size", "2", "--out", tmp_path / "ray"]
    process = subprocess.Popen(
        [sys.executable, "-m", "vicinal", *map(str, words), "--ray", "local"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **ENVIRONMENT, "OMP_NUM_THREADS": "1"},
    )
    second = tmp_path / "ray" / "shard-1-of-1" / "part-000001.parquet"
    while not second.exists() and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(kind)
    _, printed = process.communicate()
    assert process.returncode == (130 if kind == signal.SIGINT else -kind), printed
    assert "Traceback" not in printed
    assert not ShardManifest.load(second.parent / "manifest.json").is_complete
    assert second.exists()
    embed_shard(reader_of(model), str(images), tmp_path / "ray", 1, 1, part_size=2)
    embed_shard(reader_of(model), str(images), tmp_path / "here", 1, 1, part_size=2)
    assert contents(tmp_path / "ray") == contents(tmp_path / "here")


def test_a_wrong_address_is_one_line(model: str, images: Path, tmp_path: Path, capsys) -> None:
    port = free_port()
    for address, message in (
        ("head", "--ray head: give local, auto, or HOST:PORT of a Ray cluster"),
        (f"127.0.0.1:{port}", f"--ray 127.0.0.1:{port}: no Ray cluster there (Connection refused)"),
    ):
        words = ["embed", images, "--model", model, "--out", tmp_path / "out", "--ray", address]
        assert message in refused(capsys, *words)
    assert not (tmp_path / "out").exists()


def test_no_cluster_is_started_for_a_model_that_is_not_there(images: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    def never(address: str) -> None:
        raise AssertionError("a cluster is started")

    monkeypatch.setattr(sys.modules[embed_on_ray.__module__], "ray_cluster", never)
    for more, message in (
        (["--model", "resnet5000"], "timm has no model 'resnet5000'"),
        ([], "say which model embeds"),
    ):
        error = refused(capsys, "embed", images, *more, "--ray", "local", "--out", tmp_path / "out")
        assert refused(capsys, "embed", images, *more, "--out", tmp_path / "out.parquet") == error
        assert message in error
    assert not (tmp_path / "out").exists()


def test_without_ray_the_extra_is_named(model: str, images: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ["embed", images, "--model", model, "--out", tmp_path / "out", "--ray", "local"]
    assert "--ray local: needs the package ray; pip install 'vicinal[ray]'" in refused(capsys, *words)
    assert not (tmp_path / "out").exists()
