"""Datasets in containers of other libraries: Hugging Face datasets, WebDataset shards, Parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from vicinal.data.containers.listing import ListedImages

__all__ = ["list_container"]

CONTAINERS = {
    "hf": "a Hugging Face dataset: its name on the Hub, or a folder",
    "wds": "WebDataset shards, such as wds:data/train-{000000..000010}.tar",
}
"""Descriptions of the containers by the prefix of a source."""


def split_container(source: object) -> tuple[str, str] | None:
    """The kind of the container that a source names, and the name after the prefix; None if it names no container."""
    kind, colon, name = source.partition(":") if isinstance(source, str) else ("", "", "")
    return (kind, name) if colon and kind in CONTAINERS else None


def list_container(
    source: str, root: str | Path | None = None, path_column: str | None = None, label_column: str | None = None
) -> ListedImages:
    """List the images of a container, `hf:NAME` or `wds:SHARDS`, and read their table.

    The list is written on the first call, into the folder of benchmarks. Images that are not files of their own become
    files there, as they are encoded, when they are needed.

    - `hf:owner/name`, `hf:owner/name:configuration` or `hf:owner/name@revision` is a dataset on the Hugging Face Hub.
      It is read once, with all its images; a later revision is read if it is named. `hf:folder` is a folder of
      `save_to_disk`, or of images or Parquet files as the library reads them. Configurations `corpus`, `query` and
      `qrels` together become queries and a gallery. Needs the extra `datasets`.
    - `wds:shards/train-{000000..000010}.tar`, or with `*`, is a set of tar files. A sample is an image (`key.jpg`) with
      its label in `key.cls` or in the key `label` of `key.json`.

    Args:
        source: The container.
        root: The folder of benchmarks; by default the environment variable VICINAL_DATA, else ~/.cache/vicinal.
        path_column: The column of images, if there are several; `path` and None name none.
        label_column: The column of labels, if it cannot be inferred: `hf:` infers it by the name `label` or if there is
            one column of classes. None if the table needs no labels.

    Raises:
        InputError: The container cannot be read, or it is ambiguous which column holds its images or labels.
    """
    from vicinal.data.containers.listing import NamedColumns

    kind, name = split_container(source) or ("", "")
    if not name:
        raise InputError(f"{source} names no container; give {' or '.join(f'{each}:NAME' for each in CONTAINERS)}")
    columns = NamedColumns.of_table(path_column, label_column)
    if kind == "hf":
        from vicinal.data.containers.hugging_face import list_hugging_face

        return list_hugging_face(name, root, columns)
    from vicinal.data.containers.webdataset import list_webdataset

    return list_webdataset(name, root, columns)
