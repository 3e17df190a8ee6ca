"""The inputs of several verbs: embedding sources, models and refiners."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vicinal.cli.flags import Arguments, Flags, Parser, add_settings, read_settings
from vicinal.data.benchmarks import BENCHMARKS
from vicinal.data.containers import split_container
from vicinal.utils.console import log
from vicinal.utils.errors import InputError, no_such_source

if TYPE_CHECKING:
    from vicinal.data import Table
    from vicinal.models import ContextRefiner
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


def is_url(place: str | None) -> bool:
    """Whether the place of an index is the URL of a database."""
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
    if source is not None and source not in BENCHMARKS and not split_container(source) and not _exists(source):
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
    if name and ("/" not in name or name.startswith("timm/")) and not Path(name).expanduser().exists():
        from vicinal.workflows.models import check_backbone

        check_backbone(name)
    else:
        check_folder(name)


def check_folder(name: str | None) -> None:
    """Raise InputError if a saved model is neither a folder nor the name of one on the Hugging Face Hub."""
    if name is not None and name.count("/") != 1 and not (name and Path(name).expanduser().exists()):
        raise InputError(f"model: no such folder {name}" if name else "model: the name is empty; give a folder")


def check_embedding(arguments: Arguments) -> None:
    """Raise InputError if what embedding images needs does not exist; before anything slow is imported."""
    given = vars(arguments)
    check_model(given.get("model"))
    check_folder(given.get("refiner"))
    check_files(given.get("weights"), given.get("whitening"), given.get("root"), given.get("labels"))


def add_json(flags: Flags) -> None:
    """Add the flag for results as JSON."""
    flags.add_argument("--json", action="store_true", help="print the result as JSON")


def add_groups(parser: Parser) -> None:
    """Add the flags about images that do not find each other."""
    parser.add_argument("--group_pattern", metavar="REGEX", help="tell groups, such as series of photos, by the file "
                        "names: images with the same text in the parentheses of this regular expression, such as "
                        "'(.*)_[0-9]+', do not find each other; a column group does the same")  # fmt: skip
    parser.add_argument(
        "--group_minutes",
        type=float,
        metavar="MINUTES",
        help="the same by time: photos that were "
        "taken at most so long after another one, as their EXIF data say, do not find it",
    )


def add_embedding(parser: Parser, split: bool = True, whitening: bool = True, where: bool = True) -> None:
    """Add the flags about embedding images."""
    from vicinal.workflows.settings import EmbeddingOptions

    group = parser.add_argument_group("embedding of images")
    if split:
        group.add_argument("--split", help="use only the images of this split, such as test; all: of every split")
    add_settings(
        group,
        EmbeddingOptions,
        skip=[name for name, given in (("whitening", whitening), ("dim", whitening), ("where", where)) if not given],
    )


def add_refiner(flags: Flags, purpose: str) -> None:
    """Add the flag for a refiner."""
    text = "a trained context refiner, the folder of `vicinal refine` or a model on the Hugging Face Hub"
    flags.add_argument("--refiner", help=f"{text}; {purpose}")


def read_embedding(arguments: Arguments, **options: Any) -> EmbeddingReader:
    """The reader of embedding sources, by the flags about embedding images."""
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
    """The refiner of the flags, or None without one."""
    if arguments.refiner is None:
        return None
    from vicinal.workflows.models import load_refiner, usable_device

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
