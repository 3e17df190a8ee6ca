"""What `benchmarks/` compares: the questions of `findings` are valid recipes, and `glyphs` are drawn."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from benchmarks.findings.question import QUESTIONS, Question
from benchmarks.glyphs import glyphs
from vicinal.data import Table
from vicinal.training import Recipe
from vicinal.workflows.tuning.study_recipe import Range, override, read_space

NUM_CLASSES = {"omniglot": 113, "grocery": 31, "emoji": 584, "grocery_imagenet": 31, "nyala": 107}
"""Of the training splits."""
NAMES = sorted(path.stem for path in QUESTIONS.glob("*.yaml"))
ELSEWHERE = [
    (name, dataset)
    for name in NAMES
    for dataset in yaml.safe_load((QUESTIONS / f"{name}.yaml").read_text(encoding="utf-8")).get("datasets", {})
]
"""Questions with entries for other datasets than their own."""


def settings_of(question):
    """Those of each method with a value of what is tuned, and of the first one under each condition."""
    first, *_ = question.methods.values()
    for condition in question.conditions.values():
        yield {**question.settings, **first.settings, **condition}
    for method in question.methods.values():
        space = read_space(method.search).items()
        tuned = {key: values.low if isinstance(values, Range) else values.given[0] for key, values in space}
        yield {**question.settings, **method.settings, **tuned}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dataset"), [*((name, None) for name in NAMES), *ELSEWHERE])
def test_each_method_is_a_recipe_with_what_is_tuned_and_under_each_condition(name, dataset):
    question = Question.read(name, dataset)
    assert question.reference in question.methods
    assert bool(question.trials) == any(method.search for method in question.methods.values())
    for settings in settings_of(question):
        recipe = Recipe.load(question.regime, [override(key, value) for key, value in settings.items()])
        assert recipe.create_loss() is not None
        settings = recipe.settings
        assert settings.batch_size <= NUM_CLASSES[question.dataset] * (
            settings.samples_per_class or settings.batch_size
        )


@pytest.mark.parametrize("name", NAMES)
def test_settings_that_another_question_tunes_are_those_of_the_same_loss(name):
    for own, method in Question.read(name).methods.items():
        if method.tuned_as is not None:
            question, _, other = method.tuned_as.partition("/")
            assert Question.read(question).methods[other].search, own


def test_all_methods_are_compared_to_the_one_that_is_named():
    given = Question.read("regularizer")
    assert given.methods["ROADMAP + regularizer"].reference == "ROADMAP"
    question = given.compared_to("NT-Xent")
    assert question.reference == "NT-Xent"
    assert {method.reference for method in question.methods.values()} == {None}
    with pytest.raises(SystemExit, match="reference 'unknown' must be one of"):
        question.compared_to("unknown")


def pixels(table: Table) -> np.ndarray:
    return np.stack([np.asarray(Image.open(path)) for path in table.paths])


def test_classes_images_and_splits(tmp_path: Path) -> None:
    table = glyphs(tmp_path, num_classes=20, samples_per_class=3, size=16)
    statistics = table.statistics()
    assert (statistics.num_images, statistics.num_classes, statistics.min_per_class) == (60, 20, 3)
    assert {split: part.num_classes for split, part in statistics.splits.items()} == {"train": 10, "val": 2, "test": 8}
    assert table.frame.groupby("label")["split"].nunique().max() == 1
    assert table.frame["label"][0] == "U+0030/DejaVuSans"
    assert table.frame["coarse"][0] == "U+0030"
    images = pixels(table)
    assert images.shape == (60, 16, 16)
    assert len(np.unique(images.reshape(60, -1), axis=0)) == 60
    assert images.mean() > 150  # black on white
    assert (images.reshape(60, -1).min(axis=1) < 120).all()
