"""Images, tables, arrays and ground truths that somebody made to do harm, and files that are none: one line each."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from vicinal.cli.main import main
from vicinal.data import ImageTransform, Table, save_embeddings
from vicinal.evaluation import evaluate_arrays
from vicinal.models import Embedder
from vicinal.retrieval import Index, PCAWhitening
from vicinal.utils import memory
from vicinal.utils.errors import InputError

Make = Callable[[Path], list[str]]


def written(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def npy(descr: str, shape: str, data: bytes = bytes(64)) -> bytes:
    """A .npy file whose header says what it is told to."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode("latin1")
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def array(descr: str, shape: str, data: bytes = bytes(64)) -> Make:
    return lambda folder: ["evaluate", str(written(folder / "v.npy", npy(descr, shape, data)))]


def labels(descr: str, shape: str, data: bytes = bytes(64)) -> Make:
    def make(folder: Path) -> list[str]:
        np.save(folder / "v.npy", np.eye(4, dtype=np.float32))
        file = written(folder / "labels.npy", npy(descr, shape, data))
        return ["evaluate", "--embeddings", str(folder / "v.npy"), "--labels", str(file)]

    return make


def csv(text: bytes | str) -> Make:
    return lambda folder: ["data", str(written(folder / "t.csv", text))]


def sparse(name: str, head: bytes, *words: str) -> Make:
    """A file of 4 TB that takes no space."""

    def make(folder: Path) -> list[str]:
        with (folder / name).open("wb") as file:
            file.write(head)
            file.truncate(2**42)
        return [*words, str(folder / name)]

    return make


def image(name: str, data: bytes) -> Make:
    return lambda folder: ["search", str(saved_index(folder)), str(written(folder / name, data)), *saved_model(folder)]


def saved_index(folder: Path) -> Path:
    Index.build(np.eye(4, 8, dtype=np.float32), Table(pd.DataFrame({"label": list("aabb")}))).save(folder / "index")
    return folder / "index"


def saved_model(folder: Path) -> list[str]:
    transform = ImageTransform(size=16)
    Embedder("test_resnet", dim=8, pretrained=False, transform=transform).save_pretrained(folder / "model")
    return ["--model", str(folder / "model")]


def png(width: int, height: int, bits: int = 16, color: int = 0) -> bytes:
    """The beginning of a PNG file that says it has so many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000)))


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40)
UNKNOWN = "not an image of a known format (JPEG, PNG, WEBP, BMP, GIF, TIFF, PPM, TGA, JPEG2000, AVIF)"


def pickled(*parts: bytes) -> Make:
    """A ground truth of ROxford made of these instructions."""

    def make(folder: Path) -> list[str]:
        written(folder / "roxford5k" / "gnd_roxford5k.pkl", b"\x80\x02" + b"".join(parts) + b".")
        return ["data", "roxford", "--root", str(folder)]

    return make


DTYPE = b"cnumpy\ndtype\n(U\x02i8K\x00K\x01tR"
TEXT = b"X" + struct.pack("<I", 10**6) + b"x" * 10**6 + b"q\x000"  # a million characters, stored as number 0
KEYS = b"".join(b"\x8a\x0a" + (key * (2**61 - 1)).to_bytes(10, "little") + b"N" for key in range(5_000))
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR(K\x01J\x48\xe8\x01\x00\x85"
CASES: list[tuple[str, str, Make, str]] = [
    ("image", "EPS by another name", image("a.png", EPS), f"a.png: {UNKNOWN}"),
    ("image", "PDF by another name", image("a.jpg", b"%PDF-1.4\n" + bytes(99)), f"a.jpg: {UNKNOWN}"),
    ("image", "icon by another name", image("a.gif", b"\0\0\1\0\1\0" + bytes(99)), f"a.gif: {UNKNOWN}"),
    ("image", "HEIC by another name", image("a.jpg", HEIC), "a.jpg: HEIC needs the package pillow-heif"),
    (
        "image",
        "16 bits, 169 million pixels",
        image("a.png", png(13_000, 13_000)),
        "a.png: image too large (13,000 x 13,",
    ),
    (
        "image",
        "10 billion pixels",
        image("a.png", png(100_000, 100_000, 8, 2)),
        "a.png: image too large (10,000 million pixels",
    ),
    ("image", "4 billion columns", image("a.png", png(2**31 - 1, 2**31 - 1, 8, 2)), "a.png: "),
    ("pickle", "a class", pickled(b"(cos\nsystem\nU\x04true\x85R"), "it asks for 'os.system'"),
    ("pickle", "an old class", pickled(b"(U\x04trueios\nsystem\n"), "it asks for 'os.system'"),
    ("pickle", "an object of elsewhere", pickled(b"Pname\n"), "not a pickle of plain data ("),
    ("pickle", "a stack that is empty", pickled(b"00u"), "not a pickle of plain data ("),
    ("array", "shape of booleans", array("'<f4'", "(True, 4)"), "v.npy: not a whole .npy file of numbers (an integer"),
    ("array", "no axes", array("'<f4'", "()"), "v.npy: one value of type float32; it must be an array with a row for"),
    ("array", "deep header", array("-" * 8000 + "1", "(4, 4)"), "v.npy: not a whole .npy file of numbers (MemoryError"),
    ("array", "deep lists", array("[" * 3000 + "]" * 3000, "(4, 4)"), "v.npy: not a whole .npy file of numbers ("),
    ("array", "negative shape", array("'<f4'", "(-4, -4)"), "v.npy: not a whole .npy file of numbers (negative"),
    ("array", "shape beyond the file", array("'<f4'", "(9999999, 4)"), "v.npy: not a whole .npy file of numbers ("),
    ("array", "shape beyond 64 bits", array("'<f4'", f"({2**62}, 4)"), "v.npy: not a whole .npy file of numbers ("),
    ("array", "objects", array("'|O'", "(2,)"), "v.npy: not a whole .npy file of numbers ("),
    (
        "array",
        "4 TB",
        sparse("v.npy", npy("'<f4'", f"({(2**42 - 128) // 16}, 4)", b""), "evaluate"),
        "GB of memory are",
    ),
    (
        "labels",
        "beyond Unicode",
        labels("'<U1'", "(4,)", b"\xff" * 16),
        "labels.npy: the label of row 0 is not Unicode",
    ),
    (
        "labels",
        "surrogates",
        labels("'<U1'", "(4,)", b"a\0\0\0\0\xd8\0\0" * 2),
        "labels.npy: the label of row 1 is not",
    ),
    ("labels", "of no characters", labels("'<U0'", "(4,)", b""), "labels.npy: "),
    ("labels", "no axes", labels("'<i8'", "()"), "labels.npy: one value of type int64"),
    ("labels", "shape of booleans", labels("'<i8'", "(True,)"), "labels.npy: not a whole .npy file of numbers ("),
    ("csv", "huge field", csv("path,label\na.png," + "x" * 200_000), "line 2: a field of more than 131,072 characters"),
    (
        "csv",
        "nested quotation marks",
        csv('path,label\n"a"b.png",cat\n'),
        "line 2: text after a closing quotation mark",
    ),
    ("csv", "open quotation mark", csv('path,label\na.png,"cat\n'), "line 2: the last field begins with a quotation"),
    ("csv", "null character", csv("path,label\na\0.png,cat\n"), "line 2"),
    ("csv", "surrogates", csv(b"path,label\na.png,\xed\xa0\x80\n"), "line 2: not UTF-8 text; save the file as UTF-8"),
]


@pytest.mark.parametrize(("kind", "case", "make", "expected"), CASES, ids=[f"{each[0]}: {each[1]}" for each in CASES])
def test_hostile_data_are_one_line(
    kind: str, case: str, make: Make, expected: str, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = make(tmp_path)
    monkeypatch.setattr(memory, "available_memory", lambda: 200_000_000)
    status = main(words)
    captured = capsys.readouterr()
    assert status == 2, captured.err
    assert len(captured.err.splitlines()) == 1, captured.err
    assert expected in captured.err
    assert captured.out == ""


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def endless(path: Path) -> Path:
    path.symlink_to("/dev/zero")
    return path


def listening(path: Path) -> Path:
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)  # a full path may be too long for a socket
    return path


SPECIAL = {"pipe": pipe, "device": endless, "socket": listening}
READERS: dict[str, tuple[str, Callable[[Path, Path], list[str]]]] = {
    "table": ("t.csv", lambda file, _: ["data", str(file)]),
    "Parquet table": ("t.parquet", lambda file, _: ["data", str(file)]),
    "embeddings": ("v.npy", lambda file, _: ["evaluate", str(file)]),
    "embeddings in Parquet": ("v.parquet", lambda file, vectors: ["evaluate", "--embeddings", str(file), "--labels",
                                                                  str(vectors)]),
    "labels": ("l.csv", lambda file, vectors: ["evaluate", "--embeddings", str(vectors), "--labels", str(file)]),
    "whitening": ("w.safetensors", lambda file, vectors: ["evaluate", str(vectors), "--whitening", str(file)]),
    "confusions": ("c.csv", lambda file, vectors: ["data", str(vectors.parent / "photos"), "--noise.confused_labels=1",
                                                   "--noise.confusions", str(file)]),
    "ground truth": ("gnd_roxford5k.pkl", lambda file, _: ["data", "roxford", "--root", str(file.parent.parent)]),
    "configuration of a model": ("config.json", lambda file, _: ["evaluate", str(file.parent), "--model", "x"]),
}  # fmt: skip


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("reader", READERS)
def test_pipes_sockets_and_devices_are_refused(
    reader: str, special: str, tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, words = READERS[reader]
    (tmp_path / "photos").symlink_to(photos)
    (tmp_path / "roxford5k").mkdir()
    np.save(tmp_path / "vectors.npy", np.eye(4, dtype=np.float32))
    written(tmp_path / "vectors.table.csv", "label\na\na\nb\nb\n")
    file = SPECIAL[special](tmp_path / "roxford5k" / name)
    status = main(words(file, tmp_path / "vectors.npy"))
    message = capsys.readouterr().err
    assert status == 2, message
    assert len(message.splitlines()) == 1
    if reader not in ("configuration of a model", "ground truth"):
        assert f"{file}: is a pipe, socket or device; give a file" in message


def test_masked_numbers_are_refused(tmp_path: Path) -> None:
    vectors = np.ma.masked_array(np.eye(2), mask=[[True, False], [False, False]])
    labels = np.ma.masked_array([1, 2], mask=[True, False])
    for use in (
        lambda: save_embeddings(tmp_path / "v.npy", vectors, Table(pd.DataFrame({"label": [1, 2]}))),
        lambda: evaluate_arrays(np.eye(2), labels, np.eye(2), [1, 2]),
        lambda: evaluate_arrays(vectors, [1, 2], np.eye(2), [1, 2]),
        lambda: PCAWhitening.fit(vectors),
    ):
        with pytest.raises(InputError, match=r"1 of [24] values is masked; give an array in which every value counts"):
            use()


def test_minus_zero_is_another_label_than_zero(tmp_path: Path) -> None:
    table = written(tmp_path / "t.csv", "path,label\na.png,0\nb.png,-0\n")
    assert Table.from_csv(table).classes == ["-0", "0"]
