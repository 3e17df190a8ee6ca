"""The questions: a file each, with the methods that are compared, what is tuned, and what varies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

QUESTIONS = Path(__file__).parent / "questions"
Settings = Mapping[str, Any]
"""Key of a setting of the recipe -> value."""


@dataclass(frozen=True)
class Method:
    """One of the methods that are compared.

    Args:
        settings: over those of the question.
        search: what is tuned for it, as `vicinal tune` takes it.
        tuned_as: question and method whose tuned settings it takes instead, such as `losses/CCL`.
    """

    settings: Settings = field(default_factory=dict)
    search: Settings = field(default_factory=dict)
    tuned_as: str | None = None


@dataclass(frozen=True)
class Question:
    """A comparison of methods.

    Args:
        name: of the file.
        settings: of all methods, over the regime.
        methods: name -> method.
        trials: number of trials of each search; 0 if nothing is tuned.
        reference: the method that the others are compared to; None: the first.
        conditions: name -> settings over the tuned ones; each method is trained under each.
        training_images: whether training images are scored too, to see how much a method overfits.
    """

    name: str
    settings: Settings
    methods: Mapping[str, Method]
    trials: int
    reference: str | None
    conditions: Mapping[str, Settings]
    training_images: bool = False

    @classmethod
    def read(cls, name: str) -> Question:
        """Read `questions/NAME.yaml`."""
        values = yaml.safe_load((QUESTIONS / f"{name}.yaml").read_text(encoding="utf-8"))
        search, methods = values.get("search", {}), {}
        for each, given in values["methods"].items():
            method = Method(**(given or {}))
            if method.tuned_as is None and search:
                method = Method(method.settings, {**search, **method.search})
            methods[each] = method
        conditions = {each: settings or {} for each, settings in values.get("conditions", {"": {}}).items()}
        trials, reference = values.get("trials", 0), values.get("reference")
        training = values.get("training_images", False)
        return cls(name, values.get("settings", {}), methods, trials, reference, conditions, training)
