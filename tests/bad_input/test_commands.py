"""Mistakes on the command line of what evaluates, embeds, indexes, searches and refines."""

import contextlib
import io
import re
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.bad_input.conftest import Files, Refused, exit_status
from tests.conftest import SMALL
from tests.refusals import refused_call
from vicinal.cli.main import main
from vicinal.data import Table, load_embeddings, load_table, save_embeddings
from vicinal.retrieval import Index, PCAWhitening

ANOTHER_MODEL = "; give --model ~/m1, or build the index again"
RERANK = "evaluate ~/v.parquet --rerank contextual"
BOTH = "evaluate ~/v.parquet ~/e.parquet"
SEARCH = "search ~/plain ~/photos/class0/0.png -k 2"

CASES: list[tuple[str, str]] = [
    ("train", "--out is missing"),
    ("serach", "invalid choice: 'serach'"),
    ("data ~/photos --sead 3", "unknown argument --sead, did you mean --seed?"),
    ("data ~/photos --seed -1", "-1 is not an integer from 0 up"),
    # Sources
    ("evaluate lost.csv", "error: lost.csv: no such file"),
    ("evaluate my/photos", "error: my/photos: no such file or folder"),
    ("evaluate omniglott", "benchmark; did you mean omniglot?"),
    ("evaluate ''", "error: the source is empty; give a folder of images, a .csv or"),
    ("evaluate ~/photos --model ''", "model: the name is empty; give a folder"),
    ("evaluate ~/photos", "--model"),
    ("evaluate ~/v.parquet --split val", "has no rows in the split val"),
    # Metrics and re-ranking
    ("evaluate ~/v.parquet --metrics precision@0", "precision@0 is invalid; use k from 1 up"),
    ("evaluate ~/v.parquet --metrics mAP@9", "mAP@9 is out of range with 7"),
    ("evaluate ~/v.parquet --recall-at 9", "recall@9 is out of range with 7 gallery images"),
    ("evaluate ~/v.parquet --rerank magic", "invalid choice: 'magic'"),
    (f"{RERANK} --rerank.k1 9", "--rerank.k1 is not an option of contextual; its options: k, beta, epsilon"),
    (f"{RERANK} --rerank.k many", "argument --rerank.k: many is not an integer"),
    (f"{RERANK} --rerank.beta 2", "beta = 2.0 must be from 0 to below 1"),
    (RERANK, "k = 16 is too large for a gallery of 8 images; use k <= 8"),
    ("evaluate ~/v.parquet --rerank.k 9", "give --rerank too"),
    ("evaluate ~/v.parquet --metrics accuracy", "unknown metric 'accuracy'"),
    ("evaluate ~/v.parquet --metrics precision@07", "unknown metric 'precision@07'"),
    ("evaluate ~/v.parquet --group_by camera", "the table has no column 'camera'"),
    (f"{RERANK} --rerank.k 3 --group_by label", "--group_by is for single sources without re-ranking"),
    (f"{RERANK} --rerank.k 3 --clusters", "--clusters is for embeddings without re-ranking"),
    ("evaluate ~/v.parquet --per_query x.txt", "name a file ending in .csv or .parquet"),
    ("evaluate ~/v.parquet --scales 1", "leave out --scales"),
    ("evaluate ~/v.parquet --images ~/v.parquet", "v.parquet holds embeddings, not images"),
    ("evaluate ~/v.parquet --intervals --confidence_level 1.5", "confidence_level = 1.5 is invalid"),
    (f"{BOTH} --compare --group_by label", "--group_by is for single sources"),
    (f"{BOTH} --average --intervals", "leave out --intervals"),
    ("evaluate ~/v.parquet --compare", "name two or more"),
    ("evaluate ~/v.parquet --average", "name two or more"),
    ("evaluate ~/v.parquet --devices 2 --rerank reciprocal", "leave out --rerank"),
    ("evaluate ~/v.parquet --devices 2 --clusters", "leave out --clusters"),
    ("evaluate ~/v.parquet --devices 0", "0 is not an integer from 1 up"),
    ("evaluate ~/v.parquet --devices 2000", "use at most that many"),
    ("evaluate ~/photos --model ~/m1 --devices 2", "holds images; write their embeddings to a file first"),
    # Local features
    ("evaluate ~/photos --model ~/m1 --rerank local", "the weight of local features is chosen on the split val: "),
    ("evaluate ~/photos --model ~/m1 --local.size 64", "--local.size is for local features; give --rerank local too"),
    ("evaluate ~/v.parquet --rerank contextual --local.dim 9", "--local.dim is for local features"),
    ("evaluate ~/photos --model ~/m1 --rerank local --rerank.weight 1 --local.size 0", "size"),
    ("index build i ~/photos --model ~/m1 --local.size 64", "--local.size is for local features; give --local too"),
    ("index build i ~/photos --model ~/m1 --local nan", "--local nan: the weight of local features must be 0"),
    ("index build i ~/photos --model ~/m1 --local --local.size 0", "size"),
    # Cleaning
    ("clean ~/photos --csv f.txt --model ~/m1", "--csv f.txt: name a file ending in .csv or .parquet"),
    ("clean ~/photos --out a.jpg --model ~/m1", "--out a.jpg: name a file ending in .html or .htm"),
    ("clean ~/photos --csv f.csv --labels ./f.csv", "--csv f.csv: is --labels too"),
    ("clean ~/photos --num_neighbors 0 --model ~/m1", "num_neighbors = 0 must be at least 1"),
    ("clean ~/photos --min_similarity nan --model ~/m1", "min_similarity = nan must be from -1 to 1"),
    ("clean ~/photos --seed -1 --model ~/m1", "seed = -1 must be from 0"),
    ("clean ~/photos --num_clusters 99 --model ~/m1", "num_clusters is 99, but there are 48 images"),
    ("clean ~/photos/class0/0.png --model ~/m1", "1 of 1 images can be read; two are needed"),
    # Exports
    ("export ~/m1 --out m.onnx --precision int4", "invalid choice: 'int4'"),
    ("export ~/m1 --out m.txt", "m.txt; a model for onnx ends in .onnx"),
    ("export ~/m1 --out m.onnx --fp16", "needs labeled images; give check"),
    ("export ~/m1 --out m.onnx --split test", "is no run; give check"),
    ("export ~/m1 --out m.onnx --private", "give --push_to_hub too"),
    ("export ~/m1 --out m.onnx --push_to_hub me/m --size 48", "leave out size or push_to_hub"),
    # Calibrations
    ("calibrate ~/e.parquet --false_accept_rate 2", "false_accept_rate = 2.0 is invalid"),
    ("calibrate ~/e.parquet --gallery none", "none"),
    ("calibrate ~/e.parquet --out c.txt", "name a file ending in .json"),
    ("calibrate ~/e.parquet --index none", "none: no such file or folder"),
    ("calibrate ~/e.parquet --split train", "no rows in the split train"),
    # Reports
    ("report", "no source: name one"),
    ("report missing.parquet", "missing.parquet"),
    ("report ~/v.parquet ~/e.parquet --map-images 9", "a comparison has no map"),
    ("report ~/v.parquet ~/e.parquet --rerank contextual", "--rerank is for the page of one source"),
    ("report ~/v.parquet --rerank local", "v.parquet holds embeddings; --rerank local needs the images too"),
    # Embedding
    ("embed ~/photos --model ~/m1 --out v.txt", "v.txt"),
    ("embed ~/photos --model ~/m1 --out o.npy --device foo", "device foo cannot be used"),
    ("embed ~/photos --model ~/m1 --out o.npy --device meta", "device meta holds no values; use a"),
    ("embed ~/photos --model ~/m1 --out o.npy --scales 1e9", "error: scale 1"),
    ("embed ~/photos --model ~/m1 --out o.npy --scales nan", "scale nan is invalid"),
    ("embed ~/photos --out v.npy --num_workers -1", "num_workers = -1 must be at least 0"),
    ("embed", "give the images to embed, or else --merge or --verify"),
    ("embed photos", "--out is missing: name the file"),
    ("embed --verify s --out x", "--verify writes nothing"),
    ("embed --verify s --shard 1/2", "--shard embeds images"),
    ("embed photos --out x --part_size 3", "give --shard or --ray too"),
    ("embed --verify s --ray local", "--ray embeds images"),
    ("embed photos --out x.npy --ray local", "with --ray, --out is a folder"),
    ("embed photos --out x --ray local --num_workers 2", "with --ray all CPUs of the cluster read"),
    ("embed photos --out x --shard 1/2 --refiner r", "--refiner needs all embeddings"),
    ("embed photos --out x.npy --shard 1/2", "--out is a folder"),
    ("embed --verify none", "no such file or folder"),
    *((f"embed photos --out x --shard {shard}", f"{shard} is not a shard I/N") for shard in ("0/3", "4/3", "1", "a/b")),
    # Refiners
    ("evaluate ~/v.parquet --refiner nothing", "refiner: no such folder nothing"),
    ("evaluate ~/v.parquet --context gallery", "give --refiner too"),
    ("evaluate ~/v.parquet --refiner ~/r4 --context all", "invalid choice: 'all'"),
    ("evaluate ~/v.parquet --refiner ~/r", "embeddings have 4 dimensions, the refiner is for 8"),
    ("evaluate ~/photos --model ~/m2 --refiner ~/r", "the refiner was trained for embeddings of the model"),
    # Indexes
    ("search nothing ~/e.parquet", "nothing"),
    ("index list milvus://host/a/b/c", "a Milvus index is milvus://HOST:19530/COLLECTION"),
    ("index list milvus://host/odd-name", "is not a collection name"),
    ("index list milvus://host/x?timeout=3", "unknown option 'timeout'; the options are tls"),
    ("index list postgresql://host/shop", "is postgresql://USER@HOST/DATABASE?table=TABLE"),
    ("index list postgresql://host:port/shop?table=x", "the URL of the index cannot be read"),
    (f"index list postgresql://host/shop?table={'x' * 49}", "at most 48 printable characters"),
    ("index build milvus://host/x ~/v.parquet --kind binary", "milvus has no indexes of kind binary"),
    ("index build postgresql://host/x?table=x ~/v.parquet --kind rabitq", "use exact, hnsw, binary"),
    ("index build postgresql://host/x?table=x ~/v.parquet --refiner ~/r4", "is kept in a folder"),
    ("serve postgresql://host/x?table=x --refiner ~/r4", "is kept in a folder"),
    ("search ~/photos ~/e.parquet", "photos is not an index: it has no"),
    ("search ~/plain", "the following arguments are required: queries"),
    ("search ~/plain owl.png --model ~/m1", "owl.png: no such file"),
    ("search ~/plain ~/v.parquet", "vectors have 4 dimensions, the index has 8"),
    ("search ~/plain ~/e.parquet -k 49", "k = 49 is invalid in an index of 48 images; use 1 to 48"),
    (f"{SEARCH} --model ~/m1 -k 2.5", "argument -k: 2.5 is not an integer from 1 up"),
    ("index list ~/plain --timeout soon", "--timeout: soon is not an integer from 0"),
    ("index delete none", "give either ids and paths, or --where alone"),
    ("index delete none 1 --where 'price > 1'", "give either ids and paths, or --where alone"),
    ("index sync none", "give the folder or table of images, or with --root the folder where the images are now"),
    ("index sync none photos --kind ivfpq", "build the index first"),
    ("index sync none photos --kind rabitq", "rabitq is trained on all images at once"),
    ("index build none photos --rescore 9", "give --kind too"),
    ("index delete ~/plain 99", "no id 99"),
    (f"index delete ~/plain {'9' * 30}", f"no id {'9' * 30}; it was"),
    ("index delete ~/plain 0.5", "the index has no image 0.5, and"),
    (f"{SEARCH} --model ~/m2", ANOTHER_MODEL),
    (f"{SEARCH} --model ~/m2", "(--model ~/m1), not of"),
    ("index add ~/plain ~/photos --model ~/m2", ANOTHER_MODEL),
    ("search ~/whitened ~/photos/class0/0.png --model ~/m2 --whitening ~/w.safetensors", ANOTHER_MODEL),
    ("search ~/plain ~/e.parquet ~/photos/class0/0.png", "class0/0.png holds images; say which model embeds them"),
    ("search ~/whitened ~/photos/class0/0.png --model ~/m1", "; give --whitening ~/w.safetensors, or build the index"),
    ("search ~/whitened ~/e.parquet", "; embed the images with --model ~/m1 --whitening ~/w.safetensors, or build"),
    (f"{SEARCH} --model ~/m1 --whitening ~/w.safetensors", "; leave out --whitening, or build the index again"),
    ("search ~/scaled ~/photos/class0/0.png --model ~/m1", "; give --scales 1 0.5, or build the index again"),
    ("search ~/refined ~/photos/class0/0.png --model ~/m1", "; give that refiner (--refiner ~/r)"),
    ("search ~/refined ~/e.parquet --refiner ~/r2", "use that refiner, or build the index again"),
    ("index add ~/refined ~/e.parquet", "give that refiner (--refiner "),
    (f"{SEARCH} --model ~/m1 --refiner ~/r", "the index was built without a refiner; leave it out, or build"),
]


@pytest.mark.parametrize(("words", "message"), CASES)
def test_a_mistake_on_the_command_line(words: str, message: str, refused: Refused) -> None:
    refused(words, message)


def labeled(**classes: int) -> Files:
    """Embeddings of so many images per class; the classes a to d are in the split train, all others in val."""

    def save(path: Path) -> None:
        labels = np.repeat(list(classes), list(classes.values()))
        splits = ["train" if label in "abcd" else "val" for label in labels]
        vectors = np.random.default_rng(0).normal(size=(len(labels), 4)).astype(np.float32)
        save_embeddings(path, vectors, Table(pd.DataFrame({"label": labels, "split": splits})))

    return {"e.parquet": save}


def in_both_splits(path: Path) -> None:
    labeled(a=4, b=4, x=4, y=4)["e.parquet"](path)
    vectors, table = load_embeddings(path)
    split = table.frame["split"].where(table.frame.index != 8, "train")
    save_embeddings(path, vectors, Table(table.frame.assign(split=split)))


def unlabeled(path: Path) -> None:
    save_embeddings(path, np.eye(4, dtype=np.float32), Table(pd.DataFrame({"path": list("abcd")})))


REFINE = "refine --out run --batch_size 4 --samples_per_class 2 --refiner.num_heads 2"
GIVEN = "--embeddings e.parquet"
REFINER_RUN: Files = {"r/recipe.yaml": "epochs: 3\n", "r/embeddings.parquet": labeled(a=4, x=4)["e.parquet"]}
NO_NEIGHBORS = "run: .\naugmentation:\n  neighbor_dropout: 1\n"

REFINING: list[tuple[str, str, Files]] = [
    ("", "embeddings = None must be a file of embeddings, unless run is given", {}),
    (f"{GIVEN} --run .", "run = . must be left out where embeddings = ", labeled(a=4)),
    (GIVEN, "e.parquet: no such file", {}),
    (GIVEN, "the embeddings have no column label", {"e.parquet": unlabeled}),
    (GIVEN, "only one class ('a', 4 images)", labeled(a=4, x=3)),
    (GIVEN, "no embeddings are in the split train; the splits are val", labeled(x=4, y=3)),
    (GIVEN, "the split val has one class, so every match would be right", labeled(a=4, b=4, x=4)),
    (GIVEN, "class x is in train and val; a refiner is validated on unseen", {"e.parquet": in_both_splits}),
    (GIVEN, "the split val has no class with two images", labeled(a=4, b=4, x=1, y=1)),
    (GIVEN, "a fraction of 0.2 of 2 classes leaves val empty", labeled(a=4, b=4)),
    (f"{GIVEN} --batch_size 8", "that needs 4 classes", labeled(a=4, b=4, x=2, y=2)),
    (f"{GIVEN} --wings 3", "unknown key wings; `vicinal refine --help_all` lists all keys", {}),
    (f"{GIVEN} --refiner.neighbors 0", "refiner.neighbors = 0 must be at least 1", labeled(a=4, b=4)),
    (f"{GIVEN} --refiner.num_heads 3", "refiner.num_heads = 3 must divide dim = 4", labeled(a=4, b=4, x=2, y=2)),
    (f"{GIVEN} --val_fraction 1", "val_fraction = 1.0 must", labeled(a=4, b=4)),
    (f"{GIVEN} --embedder_fraction 0.5", "embedder_fraction = 0.5 must be 0 without run", labeled(a=4)),
    (f"{GIVEN} --out r", "exists already", REFINER_RUN),
    ("--run r", "is the run of a refiner; give that of an embedder", REFINER_RUN),
    ("--run ~/photos", "is not the folder of a training run: recipe.yaml is missing", {}),
]


RUNS: list[tuple[str, str, Files]] = [
    ("refine --out run --resume", "run holds no run to resume", {}),
    ("refine r.yaml --out run", "r.yaml:3: unknown key refiner.depht; did you mean refiner.depth?",
     {"r.yaml": "run: .\nrefiner:\n  depht: 3\n"}),
    ("refine r.yaml --out run", "r.yaml:3: augmentation.neighbor_dropout = 1.0 must be from 0 to below 1",
     {"r.yaml": NO_NEIGHBORS}),
    ("refine r.yaml --out run", "r.yaml:3: refiner.depth = 0 must be at least 1",
     {"r.yaml": "run: .\nrefiner:\n  depth: 0\n"}),
    ("train --resume --out r", "is the run of a refiner; resume it with vicinal refine", REFINER_RUN),
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message", "files"), [*((f"{REFINE} {words}", *rest) for words, *rest in REFINING), *RUNS]
)
def test_a_mistake_in_refining(words: str, message: str, files: Files, refused: Refused) -> None:
    refused(words, message, files)


def test_a_run_without_a_model_is_not_refined(refused: Refused, place: Path, good: Path) -> None:
    load_table(good / "photos").split_classes(fractions={"train": 0.5, "val": 0.5}).save(place / "r" / "table.parquet")
    (place / "r" / "recipe.yaml").write_text("epochs: 3\n")
    refused(f"{REFINE} --run r", "has no finished model; continue the run with: vicinal train --out")


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda index: index.search(np.eye(4), 2.5), "k = 2.5 is invalid in an index of 4 images"),
        (lambda index: index.search(np.eye(4), True), "k = True is invalid"),
        (lambda index: index.search([], 1), r"query embeddings have shape \[0\]; expected \[rows, dimensions\]"),
        (lambda index: index.delete([1.5]), "id 1.5 is not an integer"),
        (lambda index: index.delete([True]), "id True is not an integer"),
        (lambda index: index.delete([-(2**70)]), f"the index has no id -{2**70}"),
        (lambda index: index.delete(np.array([2**63], np.uint64)), f"the index has no id {2**63}"),
    ],
)
def test_a_mistake_with_an_index_in_python(call: Callable[[Index], object], expected: str) -> None:
    index = Index.build(np.eye(4), Table(pd.DataFrame(index=range(4))))
    refused_call(expected, call, index)
    assert len(index) == 4


@pytest.mark.parametrize(
    ("index", "flags"), [("plain", ""), ("whitened", "--whitening ~/w.safetensors"), ("refined", "--refiner ~/r")]
)
def test_the_flags_that_the_messages_name_find_images(index: str, flags: str, good: Path, capsys) -> None:
    words = f"search ~/{index} ~/photos/class0/0.png -k 2 --model ~/m1 {flags}".replace("~", str(good))
    assert main(words.split()) == 0
    assert re.search(r"^   1  1\.0000  class0  .*class0/0\.png$", capsys.readouterr().out, re.MULTILINE)


def test_whitening_learns_from_the_split_train_unless_told(place: Path, good: Path, capsys) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"label": np.arange(40) % 8, "split": ["train", "val", "test", "test"] * 10})
    frame["label"] = frame["label"] + 10 * (frame["split"] != "train") + 10 * (frame["split"] == "test")
    vectors = rng.normal(size=(40, 4)).astype(np.float32)
    save_embeddings("splits.parquet", vectors, Table(frame))
    learned = {
        "": "whitening to 4 dimensions, learned from 10 embeddings: 10 of the split train",
        "test": "whitening to 4 dimensions, learned from 20 embeddings: 20 of the split test",
        "all": "learned from 40 embeddings: 10 of the split train, 10 of the split val, 20 of the split test",
    }
    for split, message in learned.items():
        more = ["--split", split] if split else []
        assert main(["whiten", "splits.parquet", *more, "--out", f"w{split}.safetensors"]) == 0
        assert message in capsys.readouterr().err
    of_train = PCAWhitening.fit(vectors[::4])
    assert PCAWhitening.load("w.safetensors").fingerprint() == of_train.fingerprint()
    assert main(["whiten", f"{good}/v.parquet", "--out", "w.safetensors"]) == 0
    assert "learned from 8 embeddings; they have no splits" in capsys.readouterr().err


def test_one_class_is_warned_of(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_embeddings("one.npy", np.eye(4, dtype=np.float32), Table(pd.DataFrame({"label": ["cat"] * 4})))
    assert main(["evaluate", "one.npy"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "one.npy: only one class ('cat', 4 images): every image is a match, so the scores tell nothing about the model"
    ]


@pytest.mark.parametrize("words", [
    "data ~/photos --out /proc/x/t.csv",
    "clean ~/v.parquet --out /proc/x/c.html",
    "clean ~/v.parquet --out c.html --csv /proc/x/c.csv",
    "report ~/v.parquet --out /proc/x/r.html",
    "evaluate ~/v.parquet --per_query /proc/x/q.csv",
    "calibrate ~/e.parquet --out /proc/x/c.json",
    "whiten ~/e.parquet --out /proc/x/w.safetensors",
    "embed ~/e.parquet --out /proc/x/v.npy",
    "embed ~/photos --model ~/m1 --out /proc/x/v.npy",
    "index build /proc/x/i ~/e.parquet",
    f"train --data.source ~/photos {' '.join(SMALL)} --out /proc/x/run",
])  # fmt: skip
def test_a_place_that_cannot_be_written_is_one_line(words: str, good: Path, place: Path, capsys) -> None:
    """/proc, where nobody makes files, stands in for read-only folders, which the superuser may write."""
    status = exit_status(words.replace("~", str(good)).split())
    errors = capsys.readouterr().err.splitlines()
    assert status in (1, 2)
    assert ": error: " in errors[-1]
    assert "/proc/x" in errors[-1]
    assert not any("Traceback" in line for line in errors)


def test_a_full_disk_is_one_line_and_leaves_what_was_there(good: Path, place: Path) -> None:
    """A limit on the size of files stands in for the full disk: the same calls fail in the same way."""
    commands = (
        f"train --data.source ~/photos {' '.join(SMALL)} --out run",
        "embed ~/photos --model ~/m1 --out v.npy",
        "index build i ~/photos --model ~/m1",
    )
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for command in commands:
        output = io.StringIO()  # that of the tests may be a file
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
            try:
                status = main(command.replace("~", str(good)).split())
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert status == 1, output.getvalue()
        assert re.search("error: .*(File too large|disk I/O error)", output.getvalue().splitlines()[-1])  # or SQLite's
    assert not Path("v.npy").exists()
    assert not any(path.suffix in (".tmp", ".old") for path in place.rglob("*"))
