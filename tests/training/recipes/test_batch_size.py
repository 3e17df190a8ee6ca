"""The batch size that a recipe leaves to the data."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests.conftest import QUICK
from vicinal.data import Table
from vicinal.training import Recipe, resume, train
from vicinal.training.recipes.settings import TrainingSettings
from vicinal.training.training_data import create_sampler, fit_batches, load_training_table
from vicinal.utils.errors import InputError


def table_of(*sizes: int, coarse: int = 0) -> Table:
    """A table of classes with so many images, which are divided evenly among coarse classes."""
    labels = [number for number, size in enumerate(sizes) for _ in range(size)]
    more = {"coarse": [str(label % coarse) for label in labels]} if coarse else {}
    return Table(pd.DataFrame({"label": labels, **more}))


CASES = [  # settings, sizes of the classes -> batch size, samples per class
    ({}, 100 * [14], (128, 4)),
    ({}, 28 * [14], (112, 4)),
    ({}, 5 * [6], (20, 4)),
    ({}, 2 * [3], (6, 3)),
    ({}, 2 * [2], (4, 2)),
    ({}, 19 * [9] + [2, 1, 1], (76, 4)),  # the class of two images is left out, a twentieth
    ({}, 17 * [9] + 3 * [2], (40, 2)),
    ({"small_classes": "replace"}, 5 * [1] + 5 * [9], (40, 4)),
    ({"devices": 3}, 28 * [14], (108, 4)),
    ({"samples_per_class": 0}, 5 * [6], (30, 0)),
    ({"samples_per_class": 0, "devices": 4}, 5 * [6], (28, 0)),
    ({"samples_per_class": 0}, 99 * [6], (128, 0)),
    ({"samples_per_class": 5}, 99 * [6], (125, 5)),
    ({"samples_per_class": 5}, 3 * [6], (15, 5)),
    ({"batch_size": 6}, 5 * [6], (6, 3)),
    ({"batch_size": 64}, 99 * [6], (64, 4)),
]


@pytest.mark.parametrize(("settings", "sizes", "expected"), CASES)
def test_the_batch_is_as_large_as_possible(
    settings: dict[str, int], sizes: list[int], expected: tuple[int, int]
) -> None:
    assert fit_batches(TrainingSettings(**settings), table_of(*sizes)) == expected  # type: ignore[arg-type]
    alone = TrainingSettings(**{**settings, "devices": 1})  # type: ignore[arg-type]
    assert len(next(iter(create_sampler(alone, table_of(*sizes))))) == fit_batches(alone, table_of(*sizes)).batch_size


@pytest.mark.parametrize(("number", "devices", "expected"), [(2, 1, 48), (3, 1, 60), (3, 2, 48), (4, 1, 80)])
def test_a_batch_has_equally_many_classes_of_each_coarse_class(number: int, devices: int, expected: int) -> None:
    table = table_of(*[5] * 22, coarse=4)  # two coarse classes of 6 classes, two of 5
    settings = TrainingSettings(coarse_classes_per_batch=number, devices=devices)
    assert fit_batches(settings, table).batch_size == expected
    create_sampler(TrainingSettings(coarse_classes_per_batch=number), table)


def test_a_size_that_is_given_and_does_not_fit_is_an_error() -> None:
    with pytest.raises(InputError, match="that needs 32 classes, but there are 28"):
        create_sampler(TrainingSettings(batch_size=128), table_of(*28 * [14]))
    with pytest.raises(InputError, match="at least two classes with enough images"):
        create_sampler(TrainingSettings(), table_of(3, 1))


def test_a_folder_trains_without_a_flag_and_the_run_keeps_the_size(photos: Path, tmp_path: Path, capsys) -> None:
    quick = [f"--data.source={photos}", *QUICK, "--epochs=1"]
    recipe = Recipe.load(overrides=quick)
    run = train(recipe, tmp_path / "run")
    assert "30 training images of 5 classes: batch_size = 20, samples_per_class = 4" in capsys.readouterr().err
    own = Recipe.load(run.recipe).settings
    assert (own.batch_size, own.samples_per_class) == (20, 4)
    resume(tmp_path / "run", recipe)  # it leaves the size to the data, so it is the run's own
    with pytest.raises(InputError, match="batch_size = 8 differs from the run's own 20"):
        resume(tmp_path / "run", Recipe.load(overrides=[*quick, "--batch_size=8"]))


def test_the_size_suits_the_images_that_can_be_read_and_is_told_once(photos: Path, tmp_path: Path, capsys) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    source, skip = f"--data.source={tmp_path / 'photos'}", "--data.on_error=skip"
    recipe = Recipe.load(overrides=[source, skip, *QUICK, "--epochs=1"])
    broken = load_training_table(recipe.settings).subset("train").classes[0]
    for picture in (tmp_path / "photos" / str(broken)).iterdir():
        picture.write_bytes(b"broken")
    run = train(recipe, tmp_path / "run")
    (told,) = [line for line in capsys.readouterr().err.splitlines() if "chosen to suit" in line]
    assert told.endswith("24 training images of 4 classes: batch_size = 16, samples_per_class = 4")
    assert Recipe.load(run.recipe).settings.batch_size == 16


@pytest.mark.parametrize(
    ("backbone", "flags", "rates"),
    [
        ("test_resnet", (), (2e-4, 3e-4)),
        ("test_vit", (), (3e-5, 3e-5)),
        ("test_resnet", ("--optimizer.lr=0.0002",), (2e-4, 2e-4)),
    ],
)
def test_many_classes_raise_the_default_rate(backbone: str, flags: tuple[str, ...], rates: tuple[float, ...]) -> None:
    recipe = Recipe.load(overrides=[f"--model.backbone={backbone}", "--model.pretrained=false", *flags])
    assert tuple(recipe.fitted(table_of(*n * [6])).settings.optimizer.lr for n in (99, 100)) == rates
    left_out = table_of(*99 * [6], 1)  # the class of one image
    assert recipe.fitted(left_out).settings.optimizer.lr == rates[0]
