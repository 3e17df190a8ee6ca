"""Datasets in containers of other libraries: Hugging Face datasets, WebDataset shards, Parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vicinal.data.containers.names import CONTAINERS, split_container
from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from vicinal.data.containers.export import NamedColumns
    from vicinal.data.containers.listing import ListedImages
    from vicinal.data.table import Table

__all__ = ["load_container"]


def load_container(
    source: str, root: str | Path | None = None, path_column: str | None = None, label_column: str | None = None
) -> Table:
    """Read the table of a container: `hf:NAME` or `wds:SHARDS`.

    Images that are not files of their own are written, as they are encoded, into the folder of benchmarks on the first
    call; so is their table.

    - `hf:owner/name`, `hf:owner/name:configuration` or `hf:owner/name@revision` is a dataset on the Hugging Face Hub.
      It is read once; a later revision is read if it is named. `hf:folder` is a folder of `save_to_disk`, or of images
      or Parquet files as the library reads them. Configurations `corpus`, `query` and `qrels` together become
      queries and a gallery. Needs the extra `datasets`.
    - `wds:shards/train-{000000..000010}.tar`, or with `*`, is a set of tar files. A sample is an image (`key.jpg`) with
      its label in `key.cls` or in the key `label` of `key.json`.

    Args:
        source: The container.
        root: The folder of benchmarks; by default the environment variable VICINAL_DATA, else ~/.cache/vicinal.
        path_column: The column of images, if there are several; `path` and None name none.
        label_column: The column of labels, if it cannot be told: with `hf:` by the name `label` or because there is one
            column of classes. None if the table needs no labels.

    Raises:
        InputError: The container cannot be read, or what holds its images or labels is not clear.
    """
    kind, name, columns = _parse(source, path_column, label_column)
    if kind == "hf":
        from vicinal.data.containers.hugging_face import read_hugging_face

        return read_hugging_face(name, root, columns)
    from vicinal.data.containers.webdataset import read_webdataset

    return read_webdataset(name, root, columns)


def list_container(
    source: str, root: str | Path | None = None, path_column: str | None = None, label_column: str | None = None
) -> ListedImages | None:
    """List the images of a container, without writing them; arguments and errors are those of :func:`load_container`.

    Returns:
        The table, with paths of its own; None if it can only be read as a whole.
    """
    kind, name, columns = _parse(source, path_column, label_column)
    if kind == "hf":
        from vicinal.data.containers.hugging_face import list_saved_dataset

        return list_saved_dataset(name, root, columns)
    from vicinal.data.containers.webdataset import list_webdataset

    return list_webdataset(name, root, columns)


def _parse(source: str, path_column: str | None, label_column: str | None) -> tuple[str, str, NamedColumns]:
    from vicinal.data.containers.export import NamedColumns

    kind, name = split_container(source) or ("", "")
    if not name:
        raise InputError(f"{source} names no container; give {' or '.join(f'{each}:NAME' for each in CONTAINERS)}")
    return kind, name, NamedColumns.of_table(path_column, label_column)
