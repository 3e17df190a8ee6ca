"""The questions: one file per question, with its methods, the tuned settings and the conditions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

QUESTIONS = Path(__file__).parent / "questions"
REGIMES = Path(__file__).parent / "regimes"
FROM_IMAGENET = {"emoji": "emoji", "grocery_imagenet": "grocery", "nyala": "nyala"}
"""Regime -> dataset, of those whose runs start from weights of ImageNet."""

IMAGENET_RATE = 0.1
"""Factor of the learning rates that are searched: weights of ImageNet need smaller ones than those trained here."""

Settings = Mapping[str, Any]
"""Key of a setting of the recipe -> value."""


@dataclass(frozen=True)
class Method:
    """One of the methods that are compared.

    Args:
        settings: over those of the question.
        search: the tuned settings, as `vicinal tune` takes them.
        tuned_as: question and method whose tuned settings it takes instead, such as `losses/CCL`.
        reference: the method that it is compared to; None: that of the question.
    """

    settings: Settings = field(default_factory=dict)
    search: Settings = field(default_factory=dict)
    tuned_as: str | None = None
    reference: str | None = None


@dataclass(frozen=True)
class Question:
    """A comparison of methods.

    Args:
        name: of the file.
        settings: of all methods, over the regime.
        methods: name -> method.
        trials: number of trials of each search; 0 if nothing is tuned.
        reference: the method that the others are compared to; None: the first. A method may have its own.
        conditions: name -> settings over the tuned ones; each method is trained under each.
        training_images: whether training images are scored too, to see how much a method overfits.
        dataset: the name of a regime: omniglot or grocery, or from ImageNet weights emoji, grocery_imagenet or nyala.
        own_dataset: that of the file, in whose name it is kept.
        split: on whose classes the methods are scored: test, or val while choices are still made.
    """

    name: str
    settings: Settings
    methods: Mapping[str, Method]
    trials: int
    reference: str | None
    conditions: Mapping[str, Settings]
    training_images: bool = False
    dataset: str = "omniglot"
    own_dataset: str = "omniglot"
    split: str = "test"

    @property
    def folder(self) -> str:
        """The name of the folder of its runs."""
        return self.name if self.dataset == self.own_dataset else f"{self.name}_{self.dataset}"

    def compared_to(self, reference: str) -> Question:
        """The question with all methods compared to this one."""
        if reference not in self.methods:
            raise SystemExit(f"{self.name}: reference {reference!r} must be one of {list(self.methods)}")
        methods = {name: replace(method, reference=None) for name, method in self.methods.items()}
        return replace(self, reference=reference, methods=methods)

    @property
    def regime(self) -> Path:
        """The recipe that all methods have in common."""
        return REGIMES / f"{self.dataset}.yaml"

    @classmethod
    def read(cls, name: str, dataset: str | None = None) -> Question:
        """Read `questions/NAME.yaml`, to be asked on its own dataset or another; without trials nothing is searched.

        Its methods are its own and those of the question that it names in `methods_of`. `datasets` has what is
        different on another dataset: entries that take the place of the file's.
        """
        values = _values(name)
        own_dataset = values.get("dataset", "omniglot")
        dataset = dataset or own_dataset
        values = {**values, **values.get("datasets", {}).get(dataset, {})}
        others = _values(values["methods_of"]) if "methods_of" in values else {"methods": {}}
        given_methods = {**others["methods"], **values.get("methods", {})}
        trials, methods = values.get("trials", 0), {}
        search = values.get("search", {})
        if dataset in FROM_IMAGENET and dataset != own_dataset:
            search = _scaled(search, IMAGENET_RATE)
        for each, given in given_methods.items():
            method = Method(**(given or {}))
            if not trials:
                method = replace(method, search={})
            if method.tuned_as is None and search:
                method = replace(method, search={**search, **method.search})
            methods[each] = method
        conditions = {each: settings or {} for each, settings in values.get("conditions", {"": {}}).items()}
        reference = values.get("reference")
        settings, training = values.get("settings", {}), values.get("training_images", False)
        split = values.get("split", "test")
        return cls(name, settings, methods, trials, reference, conditions, training, dataset, own_dataset, split)


def _values(name: str) -> dict[str, Any]:
    return yaml.safe_load((QUESTIONS / f"{name}.yaml").read_text(encoding="utf-8"))


def _scaled(search: Settings, factor: float) -> Settings:
    """A search over other learning rates."""
    rates = {key: {kind: [factor * each for each in ends] for kind, ends in values.items()}
             for key, values in search.items() if key == "optimizer.lr"}  # fmt: skip
    return {**search, **rates}
