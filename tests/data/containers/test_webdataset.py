import gzip
import io
import json
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.data.containers.pictures import encoded
from tests.refusals import refused_call
from vicinal.data import load_table
from vicinal.data.containers import webdataset as reader
from vicinal.utils.errors import InputError


def write_shard(path: Path, members: Mapping[str, bytes | tarfile.TarInfo]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
            else:
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return path


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def test_shards_of_the_library_are_read_as_the_library_reads_them(tmp_path: Path) -> None:
    library = pytest.importorskip("webdataset", reason="webdataset is not installed")
    for shard in range(2):
        with library.TarWriter(str(tmp_path / f"birds-{shard:06d}.tar")) as writer:
            for row in range(shard * 5, shard * 5 + 5):
                sample = {"jpg": encoded(row, ".jpg"), "cls": row % 3, "json": {"coarse": row % 2}}
                writer.write({"__key__": f"sub.d/bird{row}", **sample})
    pattern = f"{tmp_path}/birds-{{000000..000001}}.tar"
    table = load_table(f"wds:{pattern}", root=tmp_path / "kept")
    samples = list(library.WebDataset(pattern, shardshuffle=False))
    assert [Path(path).read_bytes() for path in table.paths] == [sample["jpg"] for sample in samples]
    assert table.frame["name"].tolist() == [f"{sample['__key__']}.jpg" for sample in samples]
    assert table.frame["label"].tolist() == [int(sample["cls"]) for sample in samples]
    assert table.frame["coarse"].tolist() == [row % 2 for row in range(10)]
    assert not table.has("split")


def test_labels_are_found_in_members_and_json(tmp_path: Path, capsys) -> None:
    samples = {
        "a.PNG": encoded(0), "a.json": b'{"caption": "x", "label": "owl", "kind": 1}', "a.txt": b"an owl",
        "b.webp": encoded(1, ".webp"), "b.label.txt": b" kiwi\n", "b.json": b'{"kind": 2}', "b.npy": b"-",
    }  # fmt: skip
    source = f"wds:{write_shard(tmp_path / 'x.tar', samples)}"
    table = load_table(source, root=tmp_path)
    assert table.frame["label"].tolist() == ["owl", "kiwi"]
    assert table.frame["name"].tolist() == ["a.png", "b.webp"]
    assert [Path(path).suffix for path in table.paths] == [".png", ".webp"]
    assert load_table(source, root=tmp_path, label_column="kind").frame["label"].tolist() == [1, 2]
    capsys.readouterr()
    captions = load_table(source, root=tmp_path, label_column="txt")
    assert captions.frame["label"].tolist() == ["an owl"]
    assert "left out 1 images without a label" in capsys.readouterr().err
    assert len(list(Path(captions.paths[0]).parent.iterdir())) == 1
    with pytest.raises(InputError, match=r"x\.tar: no labels; name the column that holds them by label_column"):
        load_table(source, root=tmp_path, label_column="species")


def test_the_names_of_shards_tell_splits(tmp_path: Path) -> None:
    for number, name in enumerate(["birds-train-00", "birds-val-00", "birds-val-01"]):
        write_shard(tmp_path / f"{name}.tar", {"1.png": encoded(number), "1.cls": str(number).encode()})
    table = load_table(f"wds:{tmp_path}/*.tar", root=tmp_path / "kept")
    assert table.frame["split"].tolist() == ["train", "val", "val"]
    assert load_table(f"wds:{tmp_path}/birds-val-{{00..01}}.tar", root=tmp_path / "kept").splits == ["val"]
    write_shard(tmp_path / "more.tar", {"1.png": encoded(9), "1.cls": b"9"})
    assert not load_table(f"wds:{tmp_path}/*.tar", root=tmp_path / "kept").has("split")


def test_a_shard_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    for number in (1, 22):
        shard = write_shard(tmp_path / "x.tar", {"1.png": encoded(number), "1.cls": str(number).encode()})
        assert load_table(f"wds:{shard}", root=tmp_path / "kept").classes == [number]


def test_nothing_is_unpacked_under_its_own_name(tmp_path: Path) -> None:
    names = ["../outside.png", "/tmp/vicinal-outside.png", "a/../../b.png", "nul\x01\x1b.png"]
    members = {name: encoded(number) for number, name in enumerate(names)}
    table = load_table(f"wds:{write_shard(tmp_path / 'x.tar', members)}", root=tmp_path / "kept", label_column=None)
    assert [Path(path).read_bytes() for path in table.paths] == list(members.values())
    assert all(Path(path).is_relative_to(tmp_path / "kept" / "webdataset") for path in table.paths)
    assert not list(tmp_path.glob("*.png"))


def test_hostile_and_broken_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_BYTES", 4096)
    for members, message in (
        ({"a.png": link("a.png", "/etc/passwd")}, "'a.png' is not a regular file, which shards hold"),
        ({"a.png": bytes(5000)}, "'a.png' has 0 MB; at most 0 are read"),
        ({"a.png": encoded(0), "a.PNG": encoded(0)}, "'a.PNG' appears twice; every member needs its own name"),
        ({"a.png": encoded(0), "a.jpg": encoded(0)}, "has several images (png, jpg); name one by path_column"),
        ({"a.png": encoded(0), "a.cls": b"\xff"}, "sample 'a': the label is not UTF-8 text"),
        ({"a.png": encoded(0), "a.json": b"{"}, "sample 'a': not JSON (Expecting property name"),
        ({"a.png": encoded(0), "a.json": b"[" * 4000}, "sample 'a': not JSON ("),
        ({"a.png": encoded(0), "a.json": b"[1]"}, "sample 'a': the JSON is not a mapping of names to values"),
        ({"a.png": encoded(0), "a.json": b'{"label": [1]}'}, "row 0: label is [1]; a label is text or a 64-bit"),
        ({"a.txt": b"no image", "a.cls": b"1"}, "no images; 1 samples without one"),
    ):
        shard = write_shard(tmp_path / "x.tar", members)
        refused_call(re.escape(message), load_table, f"wds:{shard}", root=tmp_path / "kept")
        assert not [path for path in tmp_path.glob("kept/*/*") if path.suffix != ".lock"]


def test_damaged_shards_are_refused(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "x.tar", {"a.png": encoded(0), "a.cls": b"1", "b.png": encoded(1), "b.cls": b"2"})
    content = shard.read_bytes()
    second = content.index(b"b.png")
    for damaged in (
        content[: second + 300],  # cut in a member
        content[:second],  # between members
        content + content,
        content[:second] + b"x" + content[second + 1 :],  # a header
        gzip.compress(content),
        b"",
    ):
        shard.write_bytes(damaged)
        with pytest.raises(InputError, match=r"x\.tar: not a readable tar file \(.*\)$"):
            load_table(f"wds:{shard}", root=tmp_path / "kept")


def test_hidden_members_are_no_images(tmp_path: Path) -> None:
    members = {"./._a.png": b"\0\5\26\7", "./a.png": encoded(0), "./a.cls": b"1", "./._a.cls": b"\0", ".git/b.png": b""}
    table = load_table(f"wds:{write_shard(tmp_path / 'x.tar', members)}", root=tmp_path / "kept")
    assert table.frame["name"].tolist() == ["./a.png"]


def test_dots_in_the_names_of_samples_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard = write_shard(
        tmp_path / "x.tar", {"a.1.png": encoded(0), "a.1.cls": b"1", "b.png": encoded(1), "b.cls": b"2"}
    )
    assert load_table(f"wds:{shard}", root=tmp_path / "kept").frame["label"].tolist() == [2]
    message = f"{shard}: a.1.png has no label: the name of a sample ends at its first dot, here a"
    assert message in capsys.readouterr().err.splitlines()
    shard = write_shard(tmp_path / "y.tar", {"a.1.png": encoded(0), "a.2.png": encoded(1)})
    with pytest.raises(InputError, match=r"has several images .*; the name of a sample ends at its first dot; name"):
        load_table(f"wds:{shard}", root=tmp_path / "kept")


def test_a_sparse_member_is_not_expanded(tmp_path: Path) -> None:
    """A header of half a kilobyte that stands for a gigabyte of zeros."""
    member = tarfile.TarInfo("a.png")
    sparse = {"major": "0", "minor": "1", "map": "0,0", "size": "1000000000"}
    member.pax_headers = {f"GNU.sparse.{key}": value for key, value in sparse.items()}
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(member)
    with pytest.raises(InputError, match=r"x\.tar: 'a\.png' is not a regular file"):
        load_table(f"wds:{tmp_path / 'x.tar'}", root=tmp_path / "kept")


def test_patterns_of_no_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for pattern, message in (
        ("x-{0..2}.tar", "3 of 3 shards are missing: x-0.tar, x-1.tar, x-2.tar; give tar files"),
        ("x-*.tar", "wds:x-*.tar: no file; give tar files, such as wds:train-{000000..000010}.tar"),
        ("x-{3..2}.tar", "wds:x-{3..2}.tar: no file; give tar files"),
        ("pipe:touch ran", "1 of 1 shards are missing: pipe:touch ran"),
    ):
        refused_call(re.escape(message), load_table, f"wds:{pattern}", root=tmp_path)
        assert not list(tmp_path.iterdir())


def test_an_image_among_several_is_named(tmp_path: Path) -> None:
    members = {"a.left.png": encoded(0), "a.right.png": encoded(1), "a.json": json.dumps({"label": 1}).encode()}
    shard = write_shard(tmp_path / "x.tar", members)
    table = load_table(f"wds:{shard}", root=tmp_path / "kept", path_column="right.png")
    assert Path(table.paths[0]).read_bytes() == encoded(1)
