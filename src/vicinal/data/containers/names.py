"""The kinds of containers, and how a source names one. The command reads them, so this imports nothing heavy."""

from __future__ import annotations

CONTAINERS = {
    "hf": "a Hugging Face dataset: its name on the Hub, or a folder",
    "wds": "WebDataset shards, such as wds:data/train-{000000..000010}.tar",
}
"""What each container is, by the prefix of a source."""


def split_container(source: object) -> tuple[str, str] | None:
    """The kind of the container that a source names, and the name after the prefix; None if it names no container.

    Example:
        >>> split_container("hf:owner/birds"), split_container("birds.csv")
        (('hf', 'owner/birds'), None)
    """
    kind, colon, name = source.partition(":") if isinstance(source, str) else ("", "", "")
    return (kind, name) if colon and kind in CONTAINERS else None
