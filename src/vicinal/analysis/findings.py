"""All possible problems of a set of images, found at once, and as one table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from vicinal.analysis.clustering import MIN_SIZE, Clusters, clusters
from vicinal.analysis.duplicates import MIN_PIXEL_SIMILARITY, MIN_SIMILARITY, duplicate_groups, exact_duplicates
from vicinal.analysis.mislabeled import confident_label_errors
from vicinal.analysis.neighbors import QueryNeighbors, query_neighbors
from vicinal.analysis.outliers import MIN_FACTOR, ImageFacts, class_sizes, outliers
from vicinal.data.groups import capture_time
from vicinal.data.table import Table
from vicinal.retrieval.scores import Array, check_rows
from vicinal.utils.arguments import check_positive_integer
from vicinal.utils.arrays import Integers

NUM_NEIGHBORS = 10
MIN_SIMILARITY_ALONE = 0.995  # of embeddings, where no pixels can be compared
MIN_CLASS_SIZE = 2
ROWS = ("row", "nearest", "representative")  # columns that hold rows of the table
COLUMNS = ("finding", "group", "row", "path", "label", "score", "message", "suggestion", "suggested_label",
           "decision", "new_label")  # fmt: skip

TEXTS = ("message", "suggestion", "suggested_label", "decision", "new_label")


@dataclass(frozen=True, eq=False)
class Findings:
    """Possible problems of a set of images; every row number in it is a row of the table.

    Attributes:
        table: the images.
        broken: images that cannot be read: `row`, `error`.
        exact_duplicates: as of :func:`exact_duplicates`.
        near_duplicates: as of :func:`duplicate_groups`, without groups of equal files alone; with `is_burst`, whether
            the images of the group were taken at different times, as their EXIF data say: a series, not copies.
        label_errors: as of :func:`confident_label_errors`; empty without labels.
        outliers: as of :func:`outliers`.
        uninformative: as of :class:`ImageFacts`.
        clusters: as of :func:`clusters`; the assignments of rows without an embedding are -1.
        class_sizes: as of :func:`class_sizes`; empty without labels.
        neighbors: of all images that have an embedding; their rows are those of `embedded_rows`.
        embedded_rows: int64 [n], rows of the table that have an embedding.
    """

    table: Table
    broken: pd.DataFrame
    exact_duplicates: pd.DataFrame
    near_duplicates: pd.DataFrame
    label_errors: pd.DataFrame
    outliers: pd.DataFrame
    uninformative: pd.DataFrame
    clusters: Clusters
    class_sizes: pd.DataFrame
    neighbors: QueryNeighbors
    embedded_rows: Integers

    @property
    def counts(self) -> dict[str, int]:
        """The number of findings of each kind. Duplicates are counted as groups; clusters and classes as such."""
        summary = self.clusters.summary
        return {
            "broken": len(self.broken),
            "exact_duplicate": self.exact_duplicates["group"].nunique(),
            "near_duplicate": self.near_duplicates["group"].nunique(),
            "label_error": len(self.label_errors),
            "outlier": len(self.outliers),
            "uninformative": len(self.uninformative),
            "new_class": int(summary["is_candidate"].sum()),
            "small_class": int((self.class_sizes["num_images"] < MIN_CLASS_SIZE).sum()),
        }

    def to_frame(self) -> pd.DataFrame:
        """All findings about images, one row per image and finding, ready for decisions.

        Returns:
            Columns: `finding`, a name of `counts`; `group` of duplicates and clusters, else missing; `row`; `path`,
            followed by the bounding box of rows that have one, and `label`, if the table has them; `score`, whose
            meaning depends on the finding; `message`; `suggestion` (`drop`, `relabel` or empty) with `suggested_label`;
            `decision` and `new_label`, which are empty:
            :func:`~vicinal.data.apply_decisions` reads them.
        """
        parts = [
            _finding_frame(self.broken, "broken", "error", suggestion="drop", message=self.broken["error"]),
            _duplicates_part(self.exact_duplicates, "exact_duplicate", "drop"),
            _duplicates_part(self.near_duplicates, "near_duplicate", ""),
            _finding_frame(self.label_errors, "label_error", "self_confidence", suggestion="relabel")
            .assign(suggested_label=self.label_errors["suggested_label"].astype(str)),
            _finding_frame(self.outliers, "outlier", "outlier_factor"),
            _finding_frame(self.uninformative, "uninformative", "entropy"),
            self._clusters_part(),
            self._small_classes_part(),
        ]  # fmt: skip
        frame = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
        rows = frame["row"].to_numpy(dtype=np.int64)
        if self.table.has("path"):
            frame["path"] = np.array(self.table.image_keys, dtype=object)[rows]
        if self.table.has("label"):
            frame["label"] = self.table.frame["label"].to_numpy()[rows]
        kept = [name for name in COLUMNS if name in frame or name not in ("path", "label")]
        frame = frame.reindex(columns=kept).astype({"group": "Int64", **dict.fromkeys(TEXTS, object)})
        return frame.fillna(dict.fromkeys(TEXTS, ""))

    def _clusters_part(self) -> pd.DataFrame:
        candidates = self.clusters.summary.query("is_candidate")
        rows = np.flatnonzero(np.isin(self.clusters.assignments, candidates["cluster"]))
        sizes = candidates.set_index("cluster")["num_images"]
        frame = pd.DataFrame({"row": rows, "group": self.clusters.assignments[rows]})
        frame["size"] = frame["group"].map(sizes)
        return _finding_frame(frame.sort_values(["group", "row"], ignore_index=True), "new_class", "size")

    def _small_classes_part(self) -> pd.DataFrame:
        sizes = self.table.class_counts[self.table.labels] if self.table.has("label") else np.empty(0)
        rows = np.flatnonzero(sizes < MIN_CLASS_SIZE)
        return _finding_frame(pd.DataFrame({"row": rows, "size": sizes[rows]}), "small_class", "size")


def find_problems(
    embeddings: Array,
    table: Table,
    facts: ImageFacts | None = None,
    *,
    embedded_rows: Integers | None = None,
    num_neighbors: int = NUM_NEIGHBORS,
    min_similarity: float | None = None,
    min_pixel_similarity: float = MIN_PIXEL_SIMILARITY,
    min_outlier_factor: float = MIN_FACTOR,
    num_clusters: int | None = None,
    min_cluster_size: int = MIN_SIZE,
    seed: int = 0,
) -> Findings:
    """Find possible problems of images, with labels or without.

    Every image is compared with every other one; columns such as `is_query` and `group` are ignored.

    Args:
        embeddings: float [n, dim].
        table: the images.
        facts: of the same table, as :func:`image_facts` returns them; None: pixels are not examined, and near
            duplicates are found by embeddings alone.
        embedded_rows: int64 [n], the rows of the table that have an embedding, ascending; None: all.
        num_neighbors: of each image, by which label errors and outliers are detected.
        min_similarity: the least cosine similarity of near duplicates; None takes 0.95, and 0.995 without facts.
        min_pixel_similarity: the least correlation of their pixels.
        min_outlier_factor: the least local outlier factor of outliers.
        num_clusters: of k-means; None takes HDBSCAN, see :func:`clusters`.
        min_cluster_size: the least number of images of a cluster of HDBSCAN.
        seed: of k-means.

    Raises:
        InputError: embeddings, table and facts do not belong together, or there is only one embedding.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> embeddings = np.repeat(np.eye(2), 8, axis=0) + rng.normal(0, 0.05, (16, 2))
        >>> table = Table(pd.DataFrame({"label": ["cat"] * 7 + ["dog"] * 9}))
        >>> find_problems(embeddings, table, num_neighbors=5).label_errors[["row", "suggested_label"]]
           row suggested_label
        0    7             cat
    """
    check_positive_integer(find_problems, num_neighbors=num_neighbors)
    rows = np.arange(len(table)) if embedded_rows is None else embedded_rows
    part = table.take(rows)
    check_rows(embeddings, part)
    if facts is not None:
        check_rows(facts.thumbnails, table)
    plain = Table(part.frame[[name for name in ("path", "label") if name in part.frame]].reset_index(drop=True))
    neighbors = query_neighbors(embeddings, plain, num_neighbors)
    if min_similarity is None:
        min_similarity = MIN_SIMILARITY_ALONE if facts is None else MIN_SIMILARITY
    thumbnails = None if facts is None else facts.thumbnails[rows]
    near = duplicate_groups(embeddings, part, min_similarity, thumbnails, min_pixel_similarity)
    exact = near[:0] if facts is None else exact_duplicates(table)
    found = clusters(embeddings, part, num_clusters, min_cluster_size, seed)
    assignments = np.full(len(table), -1)
    assignments[rows] = found.assignments
    empty = pd.DataFrame({"row": np.array([], dtype=np.int64)})
    return Findings(
        table=table,
        broken=empty.assign(error="") if facts is None else facts.broken,
        exact_duplicates=exact,
        near_duplicates=_with_bursts(_drop_exact_groups(_with_table_rows(near, rows), exact, len(table)), table),
        label_errors=_with_table_rows(_label_errors(neighbors), rows),
        outliers=_with_table_rows(outliers(neighbors, min_outlier_factor), rows),
        uninformative=empty.assign(entropy=0.0) if facts is None else facts.uninformative,
        clusters=Clusters(assignments, _with_table_rows(found.summary, rows)),
        class_sizes=class_sizes(table) if table.has("label") else pd.DataFrame({"label": [], "num_images": []}),
        neighbors=neighbors,
        embedded_rows=rows,
    )


def _with_table_rows(frame: pd.DataFrame, rows: Integers) -> pd.DataFrame:
    """A frame about the embedded images, with rows of the whole table."""
    return frame.assign(**{name: rows[frame[name].to_numpy(dtype=np.int64)] for name in ROWS if name in frame})


def _drop_exact_groups(near: pd.DataFrame, exact: pd.DataFrame, num_rows: int) -> pd.DataFrame:
    """The groups that consist of more than copies of one file, renumbered."""
    files = np.arange(num_rows)
    files[exact["row"]] = exact.groupby("group")["row"].transform("min")
    num_files = pd.Series(files[near["row"]]).groupby(near["group"]).transform("nunique").to_numpy()
    kept = near[num_files > 1].reset_index(drop=True)
    return kept.assign(group=pd.factorize(kept["group"])[0])


def _with_bursts(near: pd.DataFrame, table: Table) -> pd.DataFrame:
    times = pd.Series(
        [capture_time(table.paths[row]) if table.has("path") else None for row in near["row"]], dtype=float
    )
    return near.assign(is_burst=times.groupby(near["group"].to_numpy()).transform("nunique") > 1)


def _label_errors(neighbors: QueryNeighbors) -> pd.DataFrame:
    if neighbors.table.has("label") and neighbors.with_positives().queries.size:
        return confident_label_errors(neighbors)
    columns = ("row", "label", "suggested_label", "self_confidence", "probability")
    return pd.DataFrame({name: [] for name in columns})


def _finding_frame(frame: pd.DataFrame, finding: str, score: str, **columns: object) -> pd.DataFrame:
    scores = frame[score] if finding != "broken" else np.nan
    kept = frame[[name for name in ("row", "group") if name in frame]]
    return kept.assign(finding=finding, score=scores, **columns)


def _duplicates_part(frame: pd.DataFrame, finding: str, suggestion: str) -> pd.DataFrame:
    """Groups of duplicates; all but the first image of a group of one label may be dropped."""
    part = _finding_frame(frame, finding, "similarity")
    can_drop = frame.duplicated("group") & ~frame["is_contradiction"]
    words = {"is_leak": "in several splits", "is_contradiction": "with different labels",
             "is_burst": "taken at different times"}  # fmt: skip
    frame = frame.assign(is_burst=frame.get("is_burst", False))
    message = [
        ", ".join(words[name] for name in words if flags[name]) for flags in frame[list(words)].to_dict("records")
    ]
    return part.assign(suggestion=np.where(can_drop, suggestion, ""), message=message)
