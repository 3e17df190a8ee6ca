"""What each verb of the command takes: its arguments, their help and their limits."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn

SOURCE = (
    "a folder with one folder of images per class, a .csv or .parquet table with the columns path and label, "
    "or a benchmark: digits, omniglot, glyphs, in_shop, vehicle_id, roxford, rparis"
)
EMBEDDABLE = f"a run folder, a file of embeddings (.parquet or .npy), the folder of an index, or images: {SOURCE}"


RERANKINGS = ("contextual", "reciprocal", "query-expansion", "database-augmentation", "neighbor-average")
RERANK_OPTIONS: dict[str, tuple[type, str]] = {
    "k": (int, "contextual: size of a neighbourhood, the image itself among them (default: 16)"),
    "beta": (float, "contextual: weight of shared neighbours, from 0 to below 1 (default: 0.1)"),
    "epsilon": (float, "contextual: how much farther than the last still counts as a neighbour (default: 0)"),
    "k1": (int, "reciprocal: neighbours looked at (default: 20)"),
    "k2": (int, "reciprocal: images averaged, at most k1 (default: 6)"),
    "lam": (float, "reciprocal: weight of the original distance, from 1e-30 to 1 (default: 0.3)"),
    "n": (
        int,
        "query-expansion, database-augmentation, neighbor-average: neighbours added (default: 10; 8 for the last)",
    ),
    "alpha": (float, "the same: the larger, the less far neighbours count (default: 3; 0 for the last)"),
}


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        sys.exit(fail(self.prog, f"{message}; `{self.prog} --help` explains", 2))


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add what there is to look at, divide and disturb."""
    parser.add_argument("source", help=SOURCE)
    parser.add_argument("--root", help="folder that a table's paths start from, or that holds a benchmark's files")
    parser.add_argument(
        "--shares", nargs="+", type=_share, metavar="SPLIT=SHARE",
        help="divide the classes, such as train=0.7 val=0.1 test=0.2; no class is in two splits",
    )  # fmt: skip
    noise = parser.add_argument_group("noise on purpose, in the split train or in a table without splits")
    noise.add_argument("--first-classes", type=float, metavar="CLASSES", help="keep only the first classes by name: "
                       "up to 1 a share of them, above 1 their number")  # fmt: skip
    noise.add_argument("--random-labels", type=float, default=0.0, metavar="SHARE",
                       help="give this share of the images another class's label")  # fmt: skip
    noise.add_argument("--confused-labels", type=float, default=0.0, metavar="SHARE",
                       help="give this share of the images of confused classes the other's label")  # fmt: skip
    noise.add_argument("--confusions", metavar="FILE", help="what is confused: a .csv with the columns "
                       "label and confused_with, a pair a line")  # fmt: skip
    noise.add_argument("--open-set-labels", type=float, default=0.0, metavar="SHARE", help="dissolve whole classes, "
                       "with this share of the images, into small clusters under other labels")  # fmt: skip
    noise.add_argument("--open-set-cluster-size", type=float, default=2.0, metavar="IMAGES",
                       help="how many images such a cluster has on average (default: 2)")  # fmt: skip
    noise.add_argument("--foreign", metavar="SOURCE", help="images foreign to all classes, the same kinds of sources")
    noise.add_argument("--foreign-share", type=float, default=0.0, metavar="SHARE",
                       help="put foreign ones in the place of this share of the images")  # fmt: skip
    noise.add_argument("--foreign-root", help="as --root, for the foreign images")
    parser.add_argument("--seed", type=_whole(0), default=0, help="of the division and the noise (default: 0)")
    parser.add_argument("--out", help="save the table with paths, labels and splits as .csv or .parquet")
    _add_json(parser)


def add_recipe(parser: argparse.ArgumentParser) -> None:
    """Add a recipe, where its run goes, and settings over it."""
    parser.usage = f"{parser.prog} [RECIPE] --out RUN [--resume] [--SETTING VALUE ...]"
    parser.allow_abbrev = False  # a setting's name may begin like one of ours
    parser.epilog = (
        "RECIPE is a YAML file with settings; without one all have their defaults. Every setting can also be given "
        "here, with dots, such as --optimizer.lr 0.001 --loss.alpha 2, and wins over the recipe. The settings:"
    )
    parser.add_argument("--out", metavar="RUN", help="the run's folder; must be new, or hold the run to resume")
    parser.add_argument("--resume", action="store_true", help="continue the run in RUN where it was stopped or killed")
    parser.add_argument("-h", "--help", action="store_true", help="show this help and all settings")


def add_evaluate(parser: argparse.ArgumentParser) -> None:
    """Add what is measured, and how."""
    _add_sources(parser)
    together = parser.add_mutually_exclusive_group()
    together.add_argument("--compare", action="store_true", help="hold the sources against the first one, on the same "
                          "images: differences, their intervals, p-values")  # fmt: skip
    together.add_argument("--average", action="store_true", help="the sources are runs of one recipe, such as of "
                          "several seeds: the mean, standard deviation and interval of each metric")  # fmt: skip
    _add_measuring(parser)
    parser.add_argument(
        "--protocol", choices=["standard", "roxford", "rparis", "vehicle_id"],
        help="roxford and rparis: easy, medium and hard; vehicle_id: ten random galleries of an image a class "
        "(default: that of the benchmark named, else standard)",
    )  # fmt: skip
    parser.add_argument(
        "--intervals", nargs="?", const="classes", choices=["classes", "queries"],
        help="confidence intervals by bootstrap: of classes (what --intervals alone means), which tells how the model "
        "does on other classes, or of queries. --compare has them in any case",
    )  # fmt: skip
    parser.add_argument("--by", metavar="COLUMN", help="metrics of each group of queries too: label, or another column")
    parser.add_argument("--clusters", action="store_true", help="NMI, AMI and F1 too: how well k-means finds classes")
    parser.add_argument("--per-query", metavar="FILE", help="write every query's metrics, with its path and label, "
                        "to a .csv or .parquet file")  # fmt: skip
    _add_refinement(parser)
    _add_reranking(parser)
    _add_reading(parser)
    shown = parser.add_mutually_exclusive_group()
    _add_json(shown)
    shown.add_argument("--csv", action="store_true", help="print the result as CSV, values from 0 to 1")


def add_report(parser: argparse.ArgumentParser) -> None:
    """Add what the page is about."""
    _add_sources(parser)
    parser.add_argument("--out", metavar="PAGE", help="the page (default: report.html in the run, or else here)")
    parser.add_argument("--title", help="of the page (default: the name of the source)")
    parser.add_argument("--map-images", type=_whole(0), metavar="IMAGES", help="so many images at most are on the map "
                        "(default: 2000)")  # fmt: skip
    _add_measuring(parser)
    parser.add_argument("--intervals", choices=["classes", "queries", "none"], default="classes",
                        help="what is drawn for confidence intervals (default: classes)")  # fmt: skip
    _add_reading(parser)


def add_whiten(parser: argparse.ArgumentParser) -> None:
    """Add what whitening is learned from."""
    parser.add_argument("source", help=f"of the training images: {EMBEDDABLE}")
    parser.add_argument("--out", required=True, metavar="FILE", help=".safetensors, to be given as --whitening FILE")
    parser.add_argument("--dim", type=_whole(1), help="numbers in a whitened vector (default: as many as before)")
    parser.add_argument("--shrinkage", type=float, default=0.0, metavar="SHARE", help="from 0, the default, to 1: how "
                        "far rare directions are kept from being stretched")  # fmt: skip
    _add_reading(parser, whitening=False)


def _add_sources(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sources", nargs="*", metavar="source", help=f"{EMBEDDABLE}; with --images: a model")
    parser.add_argument("--images", metavar="SOURCE", help="measure on these images, and not on those of a run: the "
                        "sources are then runs, model folders, or models on the Hugging Face Hub")  # fmt: skip
    parser.add_argument("--embeddings", metavar="FILE", help="in the place of a source: a .npy or .parquet file")
    parser.add_argument("--labels", metavar="FILE", help="of these embeddings: a .csv or .parquet table with a column "
                        "label (and coarse, group, is_query, is_gallery, ...), or a .npy file")  # fmt: skip


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--recall-at", nargs="+", type=int, metavar="K",
        help="the k of recall@k (default: 1 2 4 8, as far as there are images)",
    )  # fmt: skip
    parser.add_argument(
        "--metrics", nargs="+", default=[], metavar="NAME",
        help="more metrics: precision@K, mAP@K, found@K (the share of all positives among the first K), MRR",
    )  # fmt: skip
    parser.add_argument("--hierarchy", action="store_true", help="score the table's coarse labels too")
    parser.add_argument("--level", type=float, default=0.95, help="confidence of intervals (default: 0.95)")
    parser.add_argument("--draws", type=_whole(1), default=2000, help="samples of a bootstrap (default: 2000)")
    parser.add_argument("--seed", type=_whole(0), default=0, help="of everything drawn by chance (default: 0)")


def add_embed(parser: argparse.ArgumentParser) -> None:
    """Add what is embedded, and where the vectors go."""
    parser.add_argument("source", help=EMBEDDABLE)
    parser.add_argument("--out", required=True, help=".parquet, or .npy with a .table.csv of paths and labels")
    _add_refiner(parser, "moves every vector by what its nearest among the others look like")
    _add_reading(parser)


def add_index(parser: argparse.ArgumentParser) -> None:
    """Add what goes in and out of an index."""
    parser.add_argument("index", help="the index's folder")
    parser.add_argument("--source", help=f"build the index, anew if there is one, from {EMBEDDABLE}")
    parser.add_argument("--add", metavar="SOURCE", help="add to the index; the same kinds of sources")
    parser.add_argument("--delete", nargs="+", type=_whole(0), metavar="ID", help="delete these ids from the index")
    parser.add_argument(
        "--kind", choices=["auto", "exact", "hnsw", "ivfpq"],
        help="exact compares with every image; hnsw is faster and nearly exact; ivfpq is small and approximate; "
        "auto (the default) is exact up to 100,000 images, then hnsw",
    )  # fmt: skip
    _add_refiner(parser, "with --source: move every embedding by what its nearest look like, and search among those "
                 "moved; then needed for every --add and search too")  # fmt: skip
    _add_reading(parser)
    _add_json(parser)


def add_search(parser: argparse.ArgumentParser) -> None:
    """Add where, for what and how far to search."""
    parser.add_argument("index", help="the index's folder")
    parser.add_argument("queries", nargs="+", help="images, folders of images, tables, or one file of embeddings")
    parser.add_argument("-k", type=_whole(1), default=10, help="matches a query (default: 10)")
    parser.add_argument("--leave-out-itself", action="store_true", help="leave out the match with the query's own path")
    parser.add_argument("--grid", metavar="PICTURE", help="draw queries and matches, such as found.png")
    _add_refiner(parser, "the one the index was built with, if it was built with one: moves every query by what its "
                 "nearest in the index look like, before it searches")  # fmt: skip
    _add_reading(parser, split=False)
    _add_json(parser)


def _add_reading(parser: argparse.ArgumentParser, split: bool = True, whitening: bool = True) -> None:
    group = parser.add_argument_group("how images are embedded")
    group.add_argument("--model", help="a model folder, a run folder, or a model's name on the Hugging Face Hub")
    if split:
        group.add_argument("--split", help="only the images of this split, such as test")
    group.add_argument("--root", help="folder that a table's paths start from, or that holds a benchmark's files")
    group.add_argument("--batch", type=_whole(1), default=64, help="images at a time (default: 64)")
    group.add_argument("--workers", type=_whole(0), default=0, help="processes that read images (default: 0)")
    group.add_argument("--precision", choices=["32", "bf16", "16"], default="32", help="of the network (default: 32)")
    group.add_argument("--device", help="such as cpu or cuda (default: a GPU where there is one)")
    group.add_argument("--scales", nargs="+", type=float, metavar="SCALE", help="embed each image at several scales, "
                       "such as 1 0.7071 1.4142, and take the mean")  # fmt: skip
    group.add_argument("--longest", type=_whole(1), metavar="PIXELS", help="with --scales: whole images, their longer "
                       "side made so short at most (1024 for roxford), and no square cut out")  # fmt: skip
    if whitening:
        group.add_argument("--whitening", metavar="FILE", help="of `vicinal whiten`; all embeddings go through it")
    group.add_argument("--on-error", choices=["raise", "skip"], default="raise", help="at an unreadable image: stop "
                       "(the default), or leave it out and count it")  # fmt: skip


REFINER = "a trained context refiner: the folder of `vicinal refine`, or a name on the Hugging Face Hub"


def _add_refiner(parser: argparse._ActionsContainer, purpose: str) -> None:
    parser.add_argument("--refiner", help=f"{REFINER}; {purpose}")


def _add_refinement(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("refinement", "metrics before and after embeddings have looked at their nearest")
    _add_refiner(group, "moves every embedding by what its nearest look like; with --rerank, that comes after it")
    group.add_argument(
        "--context", choices=["everything", "gallery"],
        help="where a refiner looks for the nearest: everything (the default), queries and gallery together; or "
        "gallery, as when queries come one by one to an index. Where every image searches all others, both mean these",
    )  # fmt: skip


def _add_reranking(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("re-ranking", "metrics before and after a second look at every ranking")
    group.add_argument(
        "--rerank", choices=RERANKINGS,
        help="contextual and reciprocal: images stand higher that have the same neighbours as the query; "
        "query-expansion: search again with each query moved towards what it found; "
        "database-augmentation: with each image of the gallery moved towards its neighbours; "
        "neighbor-average: with both moved",
    )  # fmt: skip
    for option, (kind, text) in RERANK_OPTIONS.items():
        group.add_argument(f"--rerank.{option}", type=kind, metavar=option.upper(), help=text)


def _add_json(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _whole(least: int) -> Callable[[str], int]:
    """Reads a whole number that is not below `least`."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number from {least} on")
        return int(text)

    return read


def _share(text: str) -> tuple[str, float]:
    split, _, share = text.partition("=")
    try:
        return split, float(share)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not SPLIT=SHARE, such as train=0.7") from None


def fail(name: str, message: str, status: int) -> int:
    """Print an error in one line, and return the status."""
    # Not through `log`: of several processes, the one in trouble may not be the one that speaks for all.
    print(f"{name}: error: {' '.join(message.split())}", file=sys.stderr)
    return status
