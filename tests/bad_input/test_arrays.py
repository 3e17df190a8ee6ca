"""Arrays, labels, pickles of ground truth, and images that somebody made to do harm, or that are none."""

import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from tests.bad_input.conftest import Files, Refused
from tests.conftest import SMALL, refused
from vicinal.cli.main import main
from vicinal.data import Table, load_embeddings
from vicinal.retrieval import Index


def npy(descr: str, shape: str, data: bytes = bytes(64)) -> bytes:
    """A .npy file whose header says what it is told to."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode("latin1")
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def png(width: int, height: int, bits: int = 16, color: int = 0) -> bytes:
    """The beginning of a PNG file that says it has so many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000)))


def vectors(path: Path) -> None:
    np.save(path, np.eye(4, dtype=np.float32))


NOT_WHOLE = "v.npy: not a complete .npy file of numbers ("
UNKNOWN = "not an image of a known format (JPEG, PNG, WEBP, BMP, GIF, TIFF, PPM, TGA, JPEG2000, AVIF)"
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40)

ARRAYS = [
    (npy("'<f4'", "(True, 4)"), f"{NOT_WHOLE}an integer"),
    (npy("'<f4'", "()"), "v.npy: one value of type float32; it must be an array with a row for"),
    (npy("[" * 3000 + "]" * 3000, "(4, 4)"), NOT_WHOLE),
    (npy("'<f4'", "(-4, -4)"), f"{NOT_WHOLE}negative"),
    (npy("'<f4'", "(9999999, 4)"), NOT_WHOLE),
    (npy("'<f4'", f"({2**62}, 4)"), NOT_WHOLE),
    (npy("'|O'", "(2,)"), NOT_WHOLE),
]
LABELS = [
    (npy("'<U1'", "(4,)", b"\xff" * 16), "labels.npy: the label of row 0 is not Unicode"),
    (npy("'<U1'", "(4,)", b"a\0\0\0\0\xd8\0\0" * 2), "labels.npy: the label of row 1 is not"),
    (npy("'<U0'", "(4,)", b""), "labels.npy: "),
    (npy("'<i8'", "()"), "labels.npy: one value of type int64"),
]
IMAGES = [
    ("a.png", EPS, f"a.png: {UNKNOWN}"),
    ("a.jpg", b"%PDF-1.4\n" + bytes(99), f"a.jpg: {UNKNOWN}"),
    ("a.gif", b"\0\0\1\0\1\0" + bytes(99), f"a.gif: {UNKNOWN}"),
    ("a.jpg", HEIC, "a.jpg: HEIC needs the package pillow-heif"),
    ("a.png", png(13_000, 13_000), "a.png: image too large (13,000 x 13,"),
    ("a.png", png(100_000, 100_000, 8, 2), "a.png: image too large (10,000 million pixels"),
    ("a.png", png(2**31 - 1, 2**31 - 1, 8, 2), "a.png: "),
]
PICKLES = [
    (b"(cos\nsystem\nU\x04true\x85R", "it asks for 'os.system'"),
    (b"(U\x04trueios\nsystem\n", "it asks for 'os.system'"),
    (b"Pname\n", "not a pickle of plain data ("),
    (b"00u", "not a pickle of plain data ("),
]
CASES: list[tuple[str, str, Files]] = [
    *(("evaluate v.npy", message, {"v.npy": data}) for data, message in ARRAYS),
    *(
        ("evaluate --embeddings v.npy --labels labels.npy", message, {"v.npy": vectors, "labels.npy": data})
        for data, message in LABELS
    ),
    *((f"search ~/plain {name} --model ~/m1", message, {name: data}) for name, data, message in IMAGES),
    *(
        ("data roxford --root .", message, {"roxford5k/gnd_roxford5k.pkl": b"\x80\x02" + data + b"."})
        for data, message in PICKLES
    ),
]


@pytest.mark.parametrize(("words", "message", "files"), CASES)
def test_a_file_that_cannot_be_read(words: str, message: str, files: Files, refused: Refused) -> None:
    refused(words, message, files)


SKIP = f"class4/3.png: {UNKNOWN}; --on_error skip leaves out such images"


@pytest.fixture
def broken(place: Path, good: Path) -> Path:
    """Photos of which one cannot be read, as a folder and as a table."""
    shutil.copytree(good / "photos", "photos")
    Table.from_folder("photos").save("photos.csv")
    Path("photos/class4/3.png").write_bytes(b"no image")
    return place


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("evaluate photos --model ~/m1", SKIP),
        ("evaluate photos.csv --model ~/m1", SKIP),
        ("embed photos.csv --model ~/m1 --out o.npy", SKIP),
        ("index build i photos.csv --model ~/m1", SKIP),
        ("report photos --model ~/m1", SKIP),
        (f"train --data.source=photos {' '.join(SMALL)} '--data.fractions={{train: 1}}' --out=run", "--data.on_error"),
    ],
)  # fmt: skip
def test_a_broken_image_ends_what_counts_on_all(words: str, message: str, broken: Path, refused: Refused) -> None:
    refused(words, message)


@pytest.mark.parametrize("verb", ["embed", "index", "search"])
def test_folders_are_embedded_indexed_and_searched_without_broken_images(
    verb: str, broken: Path, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = {
        "embed": ["embed", "photos", "--out", "o.npy"],
        "index": ["index", "build", "i", "photos"],
        "search": ["search", f"{good}/plain", "photos/class4", "-k", "1"],
    }
    words = [*commands[verb], "--model", f"{good}/m1"]
    assert main(words) == 0
    head, left_out, *_ = capsys.readouterr().err.splitlines()
    assert head == f"left out 1 of {6 if verb == 'search' else 48} images that cannot be read:"
    assert left_out.startswith("  row ")
    if verb == "embed":
        assert load_embeddings("o.npy")[0].shape == (47, 8)
    again = ["--overwrite"] if verb == "index" else []
    assert SKIP in refused(capsys, *words, *again, "--on_error", "raise")
    if verb == "index":
        assert len(Index.load("i")) == 47  # an index is replaced only by one that is complete
        Path("alone").mkdir()
        Path("photos/class4/3.png").rename("alone/3.png")
        assert main(["index", "add", "i", "alone", "--model", f"{good}/m1"]) == 0
        assert "left out: none of the 1 images can be read" in capsys.readouterr().err


def test_the_setting_of_the_training_is_carried_on(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    splits = "--data.fractions={train: 0.75, test: 0.25}"
    assert main(["train", "--data.source=photos", *SMALL, splits, "--data.on_error=skip", "--out=run"]) == 0
    Path("photos/class0/0.png").write_bytes(b"no image")
    capsys.readouterr()
    assert main(["evaluate", "run"]) == 0
    assert "left out 2 of 48 images that cannot be read:" in capsys.readouterr().err
    assert "class0/0.png: not an image" in refused(capsys, "evaluate", "run", "--on_error", "raise")
