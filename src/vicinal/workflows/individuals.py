"""A gallery of individuals: the quality of enrolled photos, photos still to be identified, and decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from vicinal.analysis.identities import photo_quality
from vicinal.data.cleaning_decisions import IDENTIFYING, Decision, decided_rows
from vicinal.data.columns import is_coarse_column
from vicinal.data.table import Table
from vicinal.data.table_files import INTEGER
from vicinal.retrieval.index.database import TIMEOUT
from vicinal.retrieval.index.index import Index
from vicinal.retrieval.index.interface import ImageIndex
from vicinal.retrieval.individuals import enrolled_photos
from vicinal.utils.arguments import is_integer, shown
from vicinal.utils.arrays import Booleans, Integers
from vicinal.utils.errors import InputError
from vicinal.workflows.embedded_table import EmbeddedTable

SHOWN = 20  # lines about photos


def enrolled_quality(index: ImageIndex, table: Table) -> pd.DataFrame:
    """Measure the quality of a table's photos that are in an index of identities, among all photos of the index.

    Returns:
        The columns of :func:`~vicinal.analysis.photo_quality` after `path` and `identity`.
    """
    vectors, gallery = enrolled_photos(index)
    has_paths = gallery.has("path")
    rows = np.arange(len(gallery))
    if has_paths and table.has("path"):
        rows = np.flatnonzero(np.isin(gallery.image_keys, table.image_keys))
    quality = photo_quality(vectors, gallery, rows).drop(columns="row")
    quality.insert(0, "identity", gallery.frame["label"].to_numpy()[rows])
    quality.insert(0, "path", gallery.frame["path"].to_numpy()[rows] if has_paths else None)
    return quality


def enrollment_text(quality: pd.DataFrame, index: ImageIndex) -> str:
    """The numbers of enrolled photos and identities, and the notes about the photos."""
    noted = quality[quality["note"] != ""]
    lines = [
        f"{len(quality):,} photos of {quality['identity'].nunique():,} identities; the gallery has {len(index):,}",
        f"{len(noted):,} photos with notes" + ":" * bool(len(noted)),
        *(f"  {each.path} ({each.identity}): {each.note}" for each in noted.head(SHOWN).itertuples()),
    ]
    return "\n".join([*lines, f"  and {len(noted) - SHOWN:,} more"] if len(noted) > SHOWN else lines)


def is_undecided(index: ImageIndex, table: Table, ask_again: bool = False) -> Booleans:
    """Whether each photo has no identity in an index and, unless `ask_again`, is not noted as unsure, bool [rows]."""
    if not table.has("path"):
        return np.ones(len(table), dtype=bool)
    undecided: Booleans = _enrolled_as(index, table).isna().to_numpy()
    return undecided if ask_again else undecided & ~np.isin(table.image_keys, index.unsure)


def identification_text(frame: pd.DataFrame) -> str:
    """A line per photo: its identity, or the proposed name and the nearest identity."""
    lines = []
    for each in frame.to_dict("records"):
        new = f"new; nearest {each['nearest']} " if each["is_new"] else ""
        known = "" if each["probability"] != each["probability"] else f", probability {each['probability']:.2f}"
        lines.append(f"{each['path']}  {each['identity']} ({new}{each['score']:.4f}{known})")
    is_new = frame["is_new"]
    return "\n".join([*lines, f"{(~is_new).sum():,} photos of identities of the gallery, {is_new.sum():,} photos of "
                      f"{frame['identity'][is_new].nunique():,} proposed new ones"])  # fmt: skip


class Plan(NamedTuple):
    """What decisions change; the counts are of photos that were not decided before."""

    labels: dict[int, Any]  # row -> identity of the photos that are to be enrolled
    unsure: set[str]  # the keys of photos
    counts: dict[str, int]  # of same, new and not sure


def apply_identity_decisions(
    place: str | Path,
    table: Table,
    decisions: str | Path,
    embed: Callable[[Integers], EmbeddedTable],
    timeout: float = TIMEOUT,
) -> dict[str, int]:
    """Enroll photos as a file of decisions says, in one transaction of the index.

    The file is a CSV file with the columns `path`, `decision` (`same`, `new`, `not sure` or empty) and `identity`, as
    the page of `vicinal identify` saves it; paths are read as by :func:`~vicinal.data.apply_decisions`. A photo is
    enrolled under an identity of the index (`same`) or another one (`new`), even if the index has the photo without an
    identity. A photo that is not sure is remembered, so that it is not proposed again. Decisions that were applied
    before change nothing.

    Args:
        place: the folder of an index of identities, or its URL.
        table: the photos, with paths; their labels do not matter.
        decisions: the file.
        embed: returns the embeddings of some rows of the table, by the model of the index; none may be left out.
        timeout: seconds to wait while another process writes the index.

    Returns:
        The numbers of photos that are `same`, `new` and `not sure`, without photos that were decided before.

    Raises:
        InputError: as :func:`~vicinal.data.apply_decisions`; `same` names an identity that the index does not have, or
            `new` one that it has; or a photo is in the index under another identity. Nothing is changed then.
    """
    if not table.has("path"):
        raise InputError("decisions need photos with paths; the source has none")
    decided = decided_rows(table, Path(decisions), vocabulary=IDENTIFYING)
    with Index.load(place, timeout) as index:
        rows = np.array(list(_plan(index, table, decided).labels), dtype=np.int64)
    embedded = embed(rows) if len(rows) else None
    with Index.open(place, timeout) as index, index.transaction():
        plan = _plan(index, table, decided)  # another process may have changed it meanwhile
        if embedded is not None and plan.labels:
            is_left = np.isin(rows, list(plan.labels))
            labels = [plan.labels[row] for row in rows[is_left].tolist()]
            if not all(map(is_integer, labels)):  # a column has one type
                labels = [str(label) for label in labels]
            photos = _unlabeled(embedded.table.take(is_left)).frame.assign(label=labels)
            index.upsert(embedded.vectors[is_left], Table(photos))
        enrolled = {table.image_keys[row] for row in plan.labels}
        if enrolled or plan.unsure:
            index.unsure = ({*index.unsure} | plan.unsure) - enrolled
    return plan.counts


def _plan(index: ImageIndex, table: Table, decided: Mapping[int, Decision]) -> Plan:
    frames = [frame["label"].dropna() for frame in index.frames() if "label" in frame]
    names = {str(name): name for frame in frames for name in frame.unique().tolist()}
    enrolled = _enrolled_as(index, table)
    labels: dict[int, Any] = {}
    unsure: set[str] = set()
    for row, each in decided.items():
        label = enrolled.iloc[row]
        if each.action == "not sure":
            unsure |= {table.image_keys[row]} if label is None else set()
        elif label is None:
            labels[row] = _name(each, names)
        elif str(label) != each.new_label:
            raise InputError(
                f"{each.where}: the photo is in the gallery under another identity, {shown(str(label))}; delete it "
                "first: vicinal index delete"
            )
    unsure -= {*index.unsure}
    counts = {action: sum(decided[row].action == action for row in labels) for action in ("same", "new")}
    return Plan(labels, unsure, {**counts, "not sure": len(unsure)})


def _enrolled_as(index: ImageIndex, table: Table) -> pd.Series:
    """The identity that each photo has in an index, [rows]; None for those without one, and for those not in it."""
    ids = index.ids_by_key(table.image_keys)
    frame = index.lookup(np.unique(ids[ids >= 0]), skip_unknown=True)
    labels = frame.set_index("id")["label"].dropna().to_dict() if "label" in frame else {}
    return pd.Series([labels.get(number) for number in ids.tolist()], dtype=object)


def _name(decision: Decision, names: dict[str, Any]) -> Any:
    """The identity of a decision, an integer where those of the index are."""
    text = decision.new_label
    if decision.action == "same":
        if text not in names:
            raise InputError(f"{decision.where}: same, but the gallery has no identity {shown(text)}; make it new")
        return names[text]
    if text in names:
        raise InputError(
            f"{decision.where}: new, but the gallery has an identity {shown(text)}; make it same, or rename it"
        )
    is_number = bool(names) and all(is_integer(name) for name in names.values()) and INTEGER.fullmatch(text)
    return int(text) if is_number else text


def _unlabeled(table: Table) -> Table:
    """The table without labels and splits, which come from the folders of the photos."""
    names = [name for name in table.frame if name in ("label", "split") or is_coarse_column(str(name))]
    return Table(table.frame.drop(columns=names))
