"""Generations of an index in a database: vectors of different models for the same images, of which one is searched."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from typing_extensions import Self

from vicinal.retrieval.index.remote.remote_engine import RemoteEngine, StaleGenerationError, batch_rows
from vicinal.retrieval.scores import UnitVectors
from vicinal.utils.arrays import Floats, Integers

OWN = ("generation", "dim", "model_fingerprint", "made_with", "calibration", "local_features")
"""The facts that every generation has of its own."""


class RemoteGeneration:
    """Vectors that may replace those of an index in a database; the engine is used for them alone.

    Images that are added meanwhile have none at first; an image that gets another vector in the index loses its own.
    """

    def __init__(self, engine: RemoteEngine, table: str, present: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        self.facts: dict[str, Any] = {name: own.get(name) for name in OWN}
        self._engine, self._table, self._present = engine, table, present
        engine.generation = self.facts["generation"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.close()

    @contextmanager
    def only_one(self) -> Iterator[None]:
        """A block in which no other process builds or upgrades the index, nor has since it was opened."""
        with self._engine.only_one(self._table):
            facts = self._call(self._engine.read_facts) or {}
            if any(facts.get(name) != self._present.get(name) for name in ("generation", "dim", "model_fingerprint")):
                raise StaleGenerationError(self._engine.url)
            self._present = facts
            yield

    def begin(self) -> None:
        """Make room for the vectors, unless an interrupted call did; those of a call with another model are dropped."""
        self._drop_others(self._present, self._present.get("previous") or {})
        facts = {**self._present, **self.facts, "previous": None}
        self._call(self._engine.begin, self._present.get("generation"), facts)
        if (local := self.facts["local_features"]) is not None:
            self._call(self._engine.create_codes, local["encoder"])

    def _drop_others(self, *keep: Mapping[str, Any]) -> None:
        """Drop the vectors and local features of all generations but this one and those of some facts."""
        kept_facts = [self.facts, *keep]
        self._call(self._engine.drop_generations, {each.get("generation") for each in kept_facts})
        if local := [each["local_features"] for each in kept_facts if each.get("local_features")]:
            self._call(self._engine.drop_codes, {each.get("encoder") for each in local})

    def missing(self) -> Iterator[tuple[Integers, list[str]]]:
        """Yield the ids of images without a vector, and what identifies their present vectors, a block at a time."""
        after: int | None = -1
        while after is not None:
            ids, versions, after = self._call(
                self._engine.missing, self._present.get("generation"), after, batch_rows(int(self._present["dim"]))
            )
            if len(ids):
                yield ids, versions

    def fill(self, ids: Integers, versions: Sequence[str], vectors: Floats) -> None:
        """Write vectors of images, except those whose present vector has changed meanwhile."""
        rows = UnitVectors(vectors, "vector").block(0, len(ids)).cpu().numpy()
        self._call(self._engine.fill, self._present.get("generation"), ids, versions, rows)

    def finish(self) -> None:
        self._engine.call(self._engine.finish, self._place, self.facts["dim"], self._present["kind"])

    def search(self, ids: Integers, k: int) -> Integers:
        """The ids of the neighbors of images by these vectors, int64 [n, k]; -1 where there are fewer."""
        found, size = np.full((len(ids), k), -1, np.int64), batch_rows(int(self.facts["dim"]))
        for start in range(0, len(ids), size):
            rows = self._engine.call(self._engine.fetch, self._place, ids[start : start + size], {}, True)
            if len(rows):
                facts = {**self._present, **self.facts}
                neighbors = self._engine.call(self._engine.search, self._place, rows.vectors, k, None, facts)
                found[np.searchsorted(ids, rows.ids)] = neighbors.ids
        return found

    def delete(self, ids: Integers) -> None:
        """Delete images, with the vectors of all generations."""
        for place in {self._table, self._place} if len(ids) else ():
            self._engine.call(self._engine.delete, place, ids)

    def switch(self, finish: Callable[[], object]) -> None:
        """Search these vectors from now on; `finish` makes the last ones while nobody else writes."""
        previous = {name: self._present.get(name) for name in OWN}
        self._call(self._engine.switch, {**self.facts, "previous": previous}, finish)
        self._drop_others(self._present)

    @property
    def _place(self) -> str:
        return self._engine.call(self._engine.place, self._table)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._engine.call(function, self._table, *arguments)


def generation_name(*identity: object) -> str:
    """The name of a generation: a hash of what its vectors depend on.

    Example:
        >>> generation_name("8c1f0e6f2a7b9d34", 512)
        'be7f52333be4c17d'
    """
    return hashlib.sha256(repr(identity).encode()).hexdigest()[:16]
