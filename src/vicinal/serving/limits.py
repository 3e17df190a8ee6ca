"""The limits of the service: of one request, of waiting requests, and for the writing of vector files."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from vicinal.utils.arguments import check_nonnegative, check_positive, check_positive_integer


@dataclass(frozen=True)
class Limits:
    """The limits of a service; a request beyond one of them is answered by an error that names it.

    Args:
        max_body_mb: megabytes of a request's body, counted while it arrives.
        max_pixels: pixels of an image, read from its header before it is decoded.
        max_k: matches per query.
        max_filter: characters of a condition.
        max_filter_terms: comparisons and listed values of a condition.
        max_columns: columns of an added item, and of the index.
        max_candidates: nearest items among which the best of each group are found, or the margin of a calibration.
        max_delete: items that one request deletes.
        max_rerank: items of an index whose matches are re-ranked, which compares all of them.
        max_queue: requests in progress or waiting at a time; further ones are refused (429).
        max_queue_mb: total megabytes of their bodies.
        max_batch: images that are embedded together, and queries that are searched together.
        max_wait_ms: milliseconds that a request may wait for others to be embedded with, while the model is idle.
        request_seconds: seconds until an unanswered request fails (504).
        decode_workers: processes that decode images.
        decode_memory_mb: megabytes that a decoding process may allocate.
        save_changes: added items after which new vector files are written, if they are 5 % of all; until then their
            vectors are in the database alone.
        save_seconds: seconds after which they are written if there are any.

    Raises:
        InputError: a limit is not a number, or is invalid.

    Example:
        >>> Limits(max_k=50).to_dict()["max_k"]
        50
    """

    max_body_mb: float = 20.0
    max_pixels: int = 50_000_000
    max_k: int = 1_000
    max_filter: int = 1_000
    max_filter_terms: int = 30
    max_columns: int = 100
    max_candidates: int = 10_000
    max_delete: int = 10_000
    max_rerank: int = 20_000
    max_queue: int = 256
    max_queue_mb: float = 512.0
    max_batch: int = 32
    max_wait_ms: float = 4.0
    request_seconds: float = 30.0
    decode_workers: int = 2
    decode_memory_mb: float = 1_024.0
    save_changes: int = 1_000
    save_seconds: float = 3_600.0

    def __post_init__(self) -> None:
        for name, value in self.to_dict().items():
            if name == "max_wait_ms":
                check_nonnegative(self, **{name: value})
            elif isinstance(getattr(type(self), name), int):
                check_positive_integer(self, **{name: value})
            else:
                check_positive(self, **{name: value})

    @property
    def max_body(self) -> int:
        """Bytes of a request's body."""
        return int(self.max_body_mb * 2**20)

    def to_dict(self) -> dict[str, Any]:
        """All limits by their names, ready for JSON."""
        return asdict(self)
