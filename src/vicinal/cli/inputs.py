"""The inputs of several verbs: embedding sources, models, refiners, indexes and re-rankings."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vicinal.cli.flags import Arguments, Flags, Parser, add_settings, flag_type, read_settings
from vicinal.data.benchmarks import BENCHMARKS
from vicinal.data.containers import split_container
from vicinal.retrieval.reranking import RERANKINGS
from vicinal.utils.console import log
from vicinal.utils.errors import InputError, no_such_source

if TYPE_CHECKING:
    from vicinal.data import Table
    from vicinal.models import ContextRefiner
    from vicinal.retrieval import ImageIndex
    from vicinal.workflows.embedded_table import EmbeddedTable
    from vicinal.workflows.embedding_reader import EmbeddingReader

IMAGES = (
    "a folder of images, with labels if it has one folder per class, a .csv or .parquet table with the columns path "
    "and label, a benchmark such as cub (listed by vicinal data --help), or a container: hf:NAME or wds:SHARDS"
)
INDEX = (
    "the folder of the index, or where a database keeps it: milvus://HOST:19530/COLLECTION or "
    "postgresql://USER@HOST/DATABASE?table=TABLE, with passwords in the environment"
)
SOURCE = f"a run folder, embeddings (.parquet, .npy or a folder of shards), the folder of an index, or images: {IMAGES}"
# Their modules import torch, so help does not read the options from the classes; a test compares the two.
RERANKING_OPTIONS: dict[str, tuple[type, str]] = {
    "k": (int, "contextual: size of a neighborhood, with the image itself; local: number of first matches that are "
          "compared with the query (default: 16; 100 for local)"),
    "beta": (float, "contextual: weight of shared neighbors, from 0 to below 1 (default: 0.1)"),
    "epsilon": (float, "contextual: how much farther than the k-th an image may be and still be a neighbor "
                "(default: 0)"),
    "k1": (int, "reciprocal: number of candidate neighbors (default: 20)"),
    "k2": (int, "reciprocal: number of images that are averaged, at most k1 (default: 6)"),
    "lam": (float, "reciprocal: weight of the original distance, from 1e-30 to 1 (default: 0.3)"),
    "n": (int, "query-expansion, database-augmentation, neighbor-average: number of neighbors added "
          "(default: 10; 8 for the last)"),
    "alpha": (float, "the same: exponent of the neighbors' weights (default: 3; 0 for the last)"),
    "weight": (float, "local: weight of matching patches beside the similarity; evaluate chooses it on the validation "
               "classes, of the split val (default: 0.5)"),
    "min_similarity": (float, "local: smallest similarity of matching patches (default: 0.5)"),
    "geometric": (bool, "local: count only matching patches that agree with one shift, rotation and scale; it needs "
                  "the extra geometry"),
}  # fmt: skip


def is_url(place: str | None) -> bool:
    if "://" not in str(place):
        return False
    from vicinal.retrieval.index.remote.engine_url import is_engine_url

    return is_engine_url(place)


def check_index(place: str) -> None:
    """Raise InputError if the folder of an index does not exist, or its URL is wrong; before anything slow."""
    if not is_url(place):
        return check_files(place)
    from vicinal.retrieval.index.remote.engine_url import EngineURL

    EngineURL.parse(place)


def check_source(source: str | None) -> None:
    """Raise InputError if a source does not exist; before anything slow is imported."""
    if is_url(source):
        return check_index(str(source))
    if source is not None and not (_exists(source) or source in BENCHMARKS or split_container(source)):
        raise InputError(no_such_source(source, BENCHMARKS))


def check_files(*paths: str | None) -> None:
    """Raise InputError if a file or folder does not exist; before anything slow is imported."""
    for path in paths:
        if path is not None and not _exists(path):
            raise InputError(f"{path}: no such file or folder" if path else "a path is empty; name a file or folder")


def _exists(path: str) -> bool:
    """Whether a path exists; an empty one would be the working directory."""
    return path != "" and Path(path).exists()


def check_model(name: str | None) -> None:
    """Raise InputError if a model is neither a folder, the name of one on the Hugging Face Hub, nor a backbone."""
    if name and ("/" not in name or name.startswith("timm/")) and not os.path.exists(os.path.expanduser(name)):
        from vicinal.workflows.models import check_backbone

        check_backbone(name)
    else:
        check_folder(name)


def check_folder(name: str | None, kind: str = "model") -> None:
    """Raise InputError if a saved model is neither a folder nor the name of one on the Hugging Face Hub."""
    if name is not None and name.count("/") != 1 and not (name and os.path.exists(os.path.expanduser(name))):
        raise InputError(f"{kind}: no such folder {name}" if name else f"{kind}: the name is empty; give a folder")


def check_embedding(arguments: Arguments) -> None:
    """Raise InputError if a file or model for embedding images does not exist; before anything slow is imported."""
    given = vars(arguments)
    check_model(given.get("model"))
    check_folder(given.get("refiner"), "refiner")
    check_files(given.get("weights"), given.get("whitening"), given.get("root"), given.get("labels"))


def add_json(flags: Flags) -> None:
    flags.add_argument("--json", action="store_true", help="print the result as JSON")


def add_groups(parser: Parser) -> None:
    parser.add_argument("--group_pattern", metavar="REGEX", help="form groups, such as series of photos, by file name: "
                        "images with the same text in the parentheses of this regular expression, such as "
                        "'(.*)_[0-9]+', do not match each other; a column group does the same")  # fmt: skip
    parser.add_argument("--group_minutes", type=flag_type(float), metavar="MINUTES", help="the same by time: photos "
                        "taken at most this long after another, by their EXIF data, do not match it")  # fmt: skip


def add_embedding(parser: Parser, split: bool = True, whitening: bool = True, where: bool = True) -> None:
    from vicinal.workflows.models import EmbeddingOptions

    group = parser.add_argument_group("embedding of images")
    if split:
        group.add_argument("--split", help="use only the images of this split, such as test; all: of every split")
    add_settings(
        group,
        EmbeddingOptions,
        skip=[name for name, given in (("whitening", whitening), ("dim", whitening), ("where", where)) if not given],
    )


def add_refiner(flags: Flags, purpose: str) -> None:
    text = "a trained context refiner, the folder of `vicinal refine` or a model on the Hugging Face Hub"
    flags.add_argument("--refiner", help=f"{text}; {purpose}")


def read_embedding(arguments: Arguments, **options: Any) -> EmbeddingReader:
    from vicinal.workflows.embedding_reader import EmbeddingReader

    return read_settings(EmbeddingReader, arguments, **options)


def require_labels(source: str, table: Table, purpose: str) -> None:
    """Raise InputError if the images of a source have no labels, which `purpose` needs."""
    if table.has("label"):
        return
    from vicinal.data.table_files import TABLE_SUFFIX
    from vicinal.workflows.source import Source

    if Source(source).kind == "embeddings":
        beside = f", or in {Path(source).with_suffix(TABLE_SUFFIX)}" if source.lower().endswith(".npy") else ""
        raise InputError(f"{source} has no labels; give them with --labels FILE{beside}")
    remedy = f"a column 'label', or another named by --label_column; the columns are {', '.join(table.frame.columns)}"
    if Path(source).is_dir():
        remedy = "a folder for each class, all at the same depth, or a table with a column 'label'"
    raise InputError(f"{source}: the images have no labels, which {purpose} needs: {remedy}")


def load_refiner(arguments: Arguments) -> ContextRefiner | None:
    if arguments.refiner is None:
        return None
    from vicinal.models.execution import usable_device
    from vicinal.workflows.models import load_refiner

    return load_refiner(arguments.refiner).to(usable_device(getattr(arguments, "device", None)))


def check_refiner(refiner: ContextRefiner | None, embedded: EmbeddedTable) -> None:
    """Raise InputError if the refiner is for embeddings of another model; log if the model is unknown."""
    if refiner is None:
        return
    refiner.check_model(embedded.fingerprint)
    if embedded.fingerprint is None and refiner.model_fingerprint is not None:
        log(
            f"the model of the embeddings in {embedded.origin} is unknown; "
            f"the refiner is for those of {refiner.model_fingerprint}"
        )


def add_reranking(parser: Parser, purpose: str) -> None:
    from vicinal.workflows.settings import LocalSettings

    group = parser.add_argument_group("re-ranking", purpose)
    group.add_argument(
        "--rerank", choices=RERANKINGS, type=lambda name: re.sub("^k[_-]", "", name).replace("_", "-"),
        help="contextual and reciprocal: images that share neighbors with the query are ranked higher; "
        "query-expansion: search again with the mean of each query and its neighbors; "
        "database-augmentation: search among the means of each gallery image and its neighbors; "
        "neighbor-average: both; local: the first matches that have patches in common with the query are ranked higher",
    )  # fmt: skip
    for option, (kind, text) in RERANKING_OPTIONS.items():
        given: dict[str, Any] = {"type": flag_type(kind), "metavar": kind.__name__.upper()}
        if kind is bool:
            given = {"action": "store_const", "const": True}
        group.add_argument(f"--rerank.{option}", help=text, **given)
    add_settings(group, LocalSettings, prefix="local.")


def read_reranking(arguments: Arguments) -> Any:
    """The re-ranking of the flags, or None without one; raises InputError for options of another one."""
    options = {name: getattr(arguments, f"rerank.{name}") for name in RERANKING_OPTIONS}
    options = {name: value for name, value in options.items() if value is not None}
    if arguments.rerank is None:
        if options:
            raise InputError(f"--rerank.{next(iter(options))} needs a re-ranking method; give --rerank too")
        check_local(arguments, is_used=False)
        return None
    check_local(arguments, is_used=arguments.rerank == "local")
    from vicinal import retrieval

    kind = getattr(retrieval, RERANKINGS[arguments.rerank])
    known = [field.name for field in fields(kind) if field.name in RERANKING_OPTIONS]
    for name in options:
        if name not in known:
            raise InputError(f"--rerank.{name} is not an option of {arguments.rerank}; its options: {', '.join(known)}")
    return kind(**options)


def check_local(arguments: Arguments, is_used: bool, needed: str = "--rerank local") -> None:
    """Raise InputError if there are options of local features, but these are not used without another flag."""
    given = [name for name in vars(arguments) if name.startswith("local.")]
    if given and not is_used:
        raise InputError(f"--{given[0]} is for local features; give {needed} too")


def made_with(arguments: Arguments, source: str, engine: str | None = None) -> dict[str, str]:
    """The flags that make the embeddings of a source, with the places of their models and files.

    The names of columns that are not given are those of the model's run.
    """
    from vicinal.data.columns import COLUMN_FLAGS
    from vicinal.retrieval.index.made_with import FLAGS
    from vicinal.workflows.source import Source, columns_of_run

    values = {**{name: getattr(arguments, name, None) for name in FLAGS}, "engine": engine}
    if values["model"] is None and Source(source).kind == "run":
        values["model"] = source
    for name, column in columns_of_run(values["model"]).items():
        if column != COLUMN_FLAGS[name]:
            values[name] = values[name] or column
    return {
        name: value if name in COLUMN_FLAGS else _place(value) for name, value in values.items() if value is not None
    }


def use_flags_of_index(arguments: Arguments, stored: Mapping[str, str], sources: Sequence[str]) -> None:
    """Set the flags that are not given to those that an index was built with, for images that no model embeds yet.

    Nothing is set if a model is given, or if a source is not images: a run has a model of its own, and embeddings need
    none.
    """
    from vicinal.data.columns import COLUMN_FLAGS

    if getattr(arguments, "model", None) is not None or not are_images(sources):
        return
    if "model" not in stored:
        raise InputError(
            f"{sources[0]} holds images, and the index does not say which model made its embeddings; give --model"
        )
    taken = {
        name: text
        for name, text in stored.items()
        if name not in ("engine", *COLUMN_FLAGS) and getattr(arguments, name, None) is None
    }
    for name, text in taken.items():
        if os.path.isabs(text) and not Path(text).exists():
            raise InputError(f"the index was built with --{name} {text}, which is not found; give its path: --{name}")
        setattr(arguments, name, _value(name, text))
    log("embedding as the index was built: " + " ".join(f"--{name} {text}" for name, text in taken.items()))


def reader_for(
    index: ImageIndex, arguments: Arguments, sources: Sequence[str], **options: Any
) -> tuple[EmbeddingReader, ContextRefiner | None]:
    """The embedder and refiner of the images of the index; by the flags, or else as the index was built."""
    use_flags_of_index(arguments, index.made_with, sources)
    from vicinal.data.columns import named_columns

    reader = read_embedding(arguments, remembered_columns=named_columns(index.made_with), **options)
    refiner = load_refiner(arguments)
    index.check_refiner(refiner)
    return reader, refiner


def check_models(
    index: ImageIndex, refiner: ContextRefiner | None, embedded: EmbeddedTable, flags: dict[str, str]
) -> None:
    """Raise InputError if embeddings are of another model than those of the index or the refiner."""
    index.check_model(embedded.fingerprint, flags)
    check_refiner(refiner, embedded)


def are_images(sources: Sequence[str]) -> bool:
    """Whether all sources are images without a model of their own."""
    from vicinal.workflows.source import Source

    return all(Source(source).kind in ("image", "images") for source in sources)


def _place(value: object) -> str:
    """The value of a flag as text; the path of a file or folder in full."""
    if isinstance(value, str):
        path = Path(os.path.expanduser(value))
        return str(path.resolve()) if path.exists() else value
    return " ".join(map(_number, value)) if isinstance(value, Iterable) else str(value)


def _number(value: float) -> str:
    """A number as short text that is read back as the same number."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _value(name: str, text: str) -> Any:
    """The value of a flag whose text is kept in an index."""
    try:
        if name == "scales":
            return [float(each) for each in text.split()]
        return int(text) if name in ("max_size", "dim") else text
    except ValueError:
        raise InputError(f"the index is damaged: it was built with --{name} {text[:80]!r}; build it again") from None
