"""How often Ray has repeated a task. Nothing heavy is imported here, since the count has a process of its own."""

from __future__ import annotations

from collections import Counter


class Attempts:
    """An actor that counts how often something was begun and not ended, since its process died.

    Ray repeats a task whose process died without end, and does not tell it so.
    """

    def __init__(self) -> None:
        self._begun: Counter[tuple[str, int]] = Counter()

    def begin(self, what: tuple[str, int]) -> int:
        """Which attempt this is, from 1."""
        self._begun[what] += 1
        return self._begun[what]

    def end(self, what: list[tuple[str, int]]) -> None:
        """Forget what was done."""
        for each in what:
            self._begun.pop(each, None)
