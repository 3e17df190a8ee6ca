"""The flags that the embeddings of an index were made with: what the index keeps, and taking them from it again."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vicinal.cli.flags import Arguments
from vicinal.cli.inputs import check_refiner, load_refiner, read_embedding
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from vicinal.models import ContextRefiner
    from vicinal.retrieval import ImageIndex
    from vicinal.workflows.embedded_table import EmbeddedTable
    from vicinal.workflows.embedding_reader import EmbeddingReader


def made_with(arguments: Arguments, source: str, engine: str | None = None) -> dict[str, str]:
    """The flags that make the embeddings of a source, with the places of their models and files.

    The names of columns that are not given are those of the model's run. `engine` is the one that made the embeddings,
    if it is known.
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

    Args:
        arguments: the flags of the command.
        stored: those of the index.
        sources: what is to be searched or added.

    Raises:
        InputError: the model of the index is not known, or it or another file is not where it was.
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
            raise InputError(f"the index was built with --{name} {text}, which is not there; say where it is: --{name}")
        setattr(arguments, name, _value(name, text))
    log("embedding as the index was built: " + " ".join(f"--{name} {text}" for name, text in taken.items()))


def reader_for(
    index: ImageIndex, arguments: Arguments, sources: Sequence[str], **options: Any
) -> tuple[EmbeddingReader, ContextRefiner | None]:
    """What embeds images as those of the index, and refines them; by the flags, or else as the index was built.

    Raises:
        InputError: model or refiner are not those of the index, or not to be found.
    """
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
        return str(Path(value).expanduser().resolve()) if Path(value).expanduser().exists() else value
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
