"""The page about the identification of individuals, on which each proposal is decided upon."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from vicinal.data.table import Table
from vicinal.report.page.cleaning import relative_keys
from vicinal.report.page.frames import ImageFrames, Thumbnails, entry, entry_list, frame_list
from vicinal.report.page.markup import Markup, Section, document, element, header_line, section, table, without_home
from vicinal.utils.console import counted
from vicinal.utils.errors import InputError
from vicinal.utils.files import write_bytes

MAX_PROPOSALS = 200
MAX_PHOTOS = 24  # shown of a proposal; it is decided about all of them
NUM_EXAMPLES = 3  # enrolled photos of the nearest identity, beside those of a proposal
LEAD = (
    "Compare the photos with those of the gallery, which come first, and decide. Same: they show this identity. New: "
    "they show a new individual, under the name that you give. Not sure: they are not proposed again. ✕ removes a "
    "photo from its proposal; it is then not "
    "sure. The browser remembers the decisions. Save them as decisions.csv, which "
    "this command applies. Photos without a decision are proposed again."
)


class Proposal(NamedTuple):
    """Photos that are proposed as one individual."""

    name: Any
    is_new: bool
    nearest: Any  # the identity of the gallery that most of the photos are nearest to
    rows: list[int]  # the least certain photo first where it is not new


def write_proposals_page(
    path: str | Path,
    found: pd.DataFrame,
    photos: Table,
    gallery: Table,
    *,
    title: str = "Individuals",
    command: str = "vicinal enroll GALLERY --source PHOTOS --decisions decisions.csv",
    folder: str | None = None,
) -> None:
    """Write a page about identified photos, on which each identity and each proposed new one is decided upon.

    It is one HTML file that opens from disk without a network. Its decisions are saved as `decisions.csv`, which
    `vicinal enroll --decisions` applies.

    Args:
        path: the file; it is replaced as a whole.
        found: as :func:`~vicinal.retrieval.identify` returns it; of more than 200 proposals, the first are shown.
        photos: one row per row of `found`, with paths.
        gallery: the enrolled photos, with labels, see :func:`~vicinal.retrieval.enrolled_photos`.
        title: of the page.
        command: the command that applies the decisions, which the page shows.
        folder: the folder in which the paths of `decisions.csv` begin; None: the innermost folder of all photos.

    Raises:
        InputError: the photos have no paths.
        OSError: the file cannot be written.
    """
    if not photos.has("path"):
        raise InputError("a page shows photos, and the source has no paths")
    thumbnails = Thumbnails()
    # Without the labels of their folders, which say nothing here, the names of the files are shown.
    unlabeled = Table(photos.frame.drop(columns="label", errors="ignore"))
    frames, names = ImageFrames(thumbnails, unlabeled), relative_keys(photos, folder)
    enrolled = ImageFrames(thumbnails, gallery) if gallery.has("path") else None
    proposals = list(_proposals(found))
    entries: dict[bool, list[Markup]] = {False: [], True: []}
    for number, each in enumerate(proposals[:MAX_PROPOSALS]):
        entries[each.is_new].append(_entry(number, each, frames, found, enrolled))
    review = {
        "identities": sorted(map(str, gallery.classes)),
        "proposals": [_proposal_data(each, thumbnails, frames.table, names) for each in proposals[:MAX_PROPOSALS]],
    }
    key = hashlib.sha256(json.dumps(review, sort_keys=True).encode()).hexdigest()[:16]
    shown = f" Of {len(proposals):,} proposals, {MAX_PROPOSALS} are shown." if len(proposals) > MAX_PROPOSALS else ""
    groups: dict[str, list[Section | None]] = {
        "Review": [
            section(
                "overview", "Proposals", LEAD + shown, element("pre", without_home(command)), _counts_table(proposals)
            )
        ],
        "Individuals": [
            _section("known", "Individuals of the gallery", "Photos that were accepted.", entries[False]),
            _section("new", "New individuals", "Photos unlike any identity of the gallery.", entries[True]),
        ],
    }
    data = {"images": thumbnails.encoded(), "review": {"key": key, **review}}
    line = header_line(counted(len(photos), "photo"), *thumbnails.notes())
    page = document(
        without_home(title), line, groups, data, style="review.css", scripts=["decisions.js", "proposals.js"]
    )
    write_bytes(path, page)


def _proposals(found: pd.DataFrame) -> Iterator[Proposal]:
    """The proposals: those of the gallery by name, then the new ones, the largest first."""
    positions = found.assign(position=np.arange(len(found)))
    for is_new in (False, True):
        part = positions[positions["is_new"] == is_new]
        proposals = []
        for name, photos in part.groupby("identity", sort=False):
            ordered = photos if is_new else photos.sort_values("score", kind="stable")
            proposals.append(Proposal(name, is_new, photos["nearest"].mode()[0], ordered["position"].tolist()))
        yield from sorted(proposals, key=lambda each: (-len(each.rows) if is_new else 0, str(each.name)))


def _entry(
    number: int, proposal: Proposal, frames: ImageFrames, found: pd.DataFrame, enrolled: ImageFrames | None
) -> Markup:
    scores = found["score"].to_numpy()[proposal.rows]
    text = f"{proposal.name} · {counted(len(proposal.rows), 'photo')}"
    text += f" · nearest {proposal.nearest} {scores.max():.2f}" if proposal.is_new else f" · {scores.min():.2f} or more"
    text += f" · {MAX_PHOTOS} shown" if len(proposal.rows) > MAX_PHOTOS else ""
    shown = []
    if enrolled is not None:
        rows = np.flatnonzero((enrolled.table.frame["label"] == proposal.nearest).to_numpy())[:NUM_EXAMPLES]
        shown = [enrolled.frame(int(row), "query", "gallery", "photo of the gallery") for row in rows]
    for row in proposal.rows[:MAX_PHOTOS]:
        score = f"{found['score'].iloc[row]:.2f}"
        shown.append(frames.frame(row, "plain", score, f"new photo, {score} to {found['nearest'].iloc[row]}"))
    return entry(text, element("div", data_proposal=number, class_="proposal"), frame_list(shown))


def _proposal_data(proposal: Proposal, thumbnails: Thumbnails, photos: Table, names: list[str]) -> dict[str, object]:
    """A proposal for the script; photos that are not shown have no number."""
    numbers = [thumbnails.number(photos, row) for row in proposal.rows[:MAX_PHOTOS]]
    hidden = [-1] * (len(proposal.rows) - len(numbers))
    return {
        "name": str(proposal.name),
        "isNew": proposal.is_new,
        "nearest": str(proposal.nearest),
        "photos": [[number, names[row]] for number, row in zip(numbers + hidden, proposal.rows, strict=True)],
    }


def _section(name: str, title: str, lead: str, entries: list[Markup]) -> Section | None:
    return section(name, title, lead, entry_list(entries)) if entries else None


def _counts_table(proposals: list[Proposal]) -> Markup:
    rows = [
        (element("a", text, href=f"#{name}"), f"{len(part):,}", f"{sum(len(each.rows) for each in part):,}")
        for name, text, is_new in (("known", "of the gallery", False), ("new", "new", True))
        if (part := [each for each in proposals if each.is_new == is_new])
    ]
    return table("Individuals", ["", "individuals", "photos"], rows, [1, 2])
