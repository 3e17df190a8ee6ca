"""Forward correction in runs: matrices from files and from the model of another run, and what is refused."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from tests.refusals import refused_call
from tests.training.runs import assert_same_run, interrupted
from vicinal.correction import estimate_transition
from vicinal.data import ImageDataset
from vicinal.models import Embedder
from vicinal.training import Recipe, resume, train
from vicinal.training.checkpoint import load_checkpoint
from vicinal.training.class_centers import read_centers
from vicinal.training.training_data import load_training_table
from vicinal.training.transition import class_probabilities, read_transition
from vicinal.utils.run_folder import RunFolder

NOISE = ["--data.noise.random_labels=0.3", "--epochs=2"]
CPU = torch.device("cpu")


def correction(loss: str) -> str:
    return f"--loss={{class_path: ForwardCorrection, init_args: {{loss: {loss}}}}}"


def matrix_of(run: RunFolder) -> torch.Tensor:
    return load_checkpoint(run.last)["module"]["loss._extra_state"]["transition"]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> RunFolder:
    """A run on noisy labels, with class probabilities."""
    from tests.conftest import SMALL

    settings = [f"--data.source={photos}", *SMALL, *NOISE, "--loss=CrossEntropyLoss", "--model.projector=12"]
    return train(Recipe.load(overrides=settings), tmp_path_factory.mktemp("first") / "run")


@pytest.mark.slow
def test_the_matrix_is_estimated_from_class_probabilities(first: RunFolder, small: list[str], tmp_path: Path) -> None:
    words = [*NOISE, correction("NormSoftmaxLoss"), f"--transition.source={first.path}", "--transition.quantile=0.9"]
    recipe = Recipe.load(overrides=[*small, *words])
    straight = train(recipe, tmp_path / "straight")
    table = load_training_table(recipe.settings).subset("train")
    model, centers = Embedder.from_pretrained(first.model), read_centers(first.centers)
    assert centers.classes == [str(name) for name in table.classes]
    images = ImageDataset(table, model.transform)
    with torch.no_grad():
        features = model.pooling(
            model.backbone(torch.stack([model.transform.test()(images.read(i)) for i in range(len(table))]))
        )
        vectors = model.projector(model.head(features))
    logits = vectors @ centers.tensors["centers"][:, 0].T + centers.tensors["bias"][:, 0]
    expected = logits.double().softmax(dim=1)
    torch.testing.assert_close(class_probabilities(first.path, images, CPU).double(), expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(matrix_of(straight).double(), estimate_transition(expected, 0.9), atol=1e-6, rtol=1e-5)
    resumed = resume(interrupted([*small, *words], tmp_path / "run", 2).path)
    assert_same_run(resumed, straight)
    assert torch.equal(matrix_of(resumed), matrix_of(straight))


def test_probabilities_of_normalized_losses_are_of_centers(first: RunFolder, small: list[str], tmp_path: Path) -> None:
    """And classes may be numbered in another order than in that run."""
    recipe = Recipe.load(overrides=[*small, *NOISE, "--loss=CosFaceLoss", "--loss.scale=9", "--epochs=1"])
    run = train(recipe, tmp_path / "run")
    images = ImageDataset(load_training_table(recipe.settings).subset("train"), recipe.settings.transform)
    vectors = torch.from_numpy(Embedder.from_pretrained(run.model).embed(images, progress=False))
    expected = (9 * vectors @ normalize(read_centers(run.centers).tensors["centers"][:, 0]).T).softmax(dim=1)
    torch.testing.assert_close(class_probabilities(run.path, images, CPU), expected, atol=1e-5, rtol=1e-4)


def test_a_file_names_confusions_and_their_probabilities(tmp_path: Path, small: list[str]) -> None:
    path = tmp_path / "confusions.csv"
    path.write_text("label,confused_with,probability\ncat,lynx,0.3\nlynx,cat,0.1\ncat,5,0.1\n")
    expected = np.array([[1, 0, 0, 0], [0.1, 0.6, 0.3, 0], [0, 0.1, 0.9, 0], [0, 0, 0, 1]])
    np.testing.assert_allclose(read_transition(path, [5, "cat", "lynx", "owl"]).numpy(), expected)
    path.write_text("label,confused_with,probability\nclass3,class5,0.4\n")
    classes = "--data.classes={train: [class5, class3, class1, class2], val: [class4, class6]}"
    more = [correction("CrossEntropyLoss"), f"--transition.source={path}", "--epochs=1", classes]
    run = train(Recipe.load(overrides=[*small, *more]), tmp_path / "run")
    names = read_centers(run.centers).classes
    given = torch.eye(4)
    given[names.index("class3"), names.index("class3")], given[names.index("class3"), names.index("class5")] = 0.6, 0.4
    torch.testing.assert_close(matrix_of(run), given)


def test_a_noise_rate_needs_no_matrix_and_goes_with_co_teaching(small: list[str], tmp_path: Path) -> None:
    more = ["--loss.noise_rate=0.3", "--sample_selection.method=co-teaching", "--epochs=1"]
    run = train(Recipe.load(overrides=[*small, correction("CrossEntropyLoss"), *more]), tmp_path / "run")
    assert "ForwardCorrection (peer)" in run.log.read_text().splitlines()[0]
    assert matrix_of(run) is None


def test_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "confusions.csv"
    for lines, message in (
        (["label,other", "a,b"], "the columns are label, other; they must be label, confused_with, probability"),
        (["a,x,0.1"], "line 2: 'x' is not a training class, such as 'a'"),
        (["a,b,0.1", "a,b,0.1"], "line 3: a is confused with b twice, or with itself"),
        (["a,a,0.1"], "line 2: a is confused with a twice, or with itself"),
        (["a,b,often"], "line 2: probability is 'often'; it must be a number from 0 to 1"),
        (["a,b,nan"], "line 2: probability is 'nan'"),
        (["a,b,0.6", "a,c,0.5"], "the probabilities of a sum to 1.1; it must be at most 1"),
    ):
        header = [] if lines[0].startswith("label") else ["label,confused_with,probability"]
        path.write_text("\n".join([*header, *lines]) + "\n")
        refused_call(message, read_transition, path, ["a", "b", "c"])


def test_impossible_sources_are_refused_before_a_run(first: RunFolder, small: list[str], tmp_path: Path) -> None:
    corrected = correction("CrossEntropyLoss")
    for name in ("corrected", "anchor"):
        shutil.copytree(first.path, tmp_path / name)
    Recipe.load(overrides=[*small, *NOISE, corrected, "--loss.noise_rate=0.3"]).save(tmp_path / "corrected/recipe.yaml")
    Recipe.load(overrides=[*small, *NOISE, "--loss=ProxyAnchorLoss"]).save(tmp_path / "anchor/recipe.yaml")
    shutil.copytree(first.path, tmp_path / "unfinished", ignore=lambda *_: ["model"])
    (tmp_path / "empty").mkdir()
    for more, message in (
        ([corrected], "ForwardCorrection needs a noise_rate, or a matrix by transition.source"),
        (["--loss=CrossEntropyLoss", f"--transition.source={first.path}"], "is for the loss ForwardCorrection without"),
        ([corrected, "--loss.noise_rate=0.1", f"--transition.source={first.path}"], "is for the loss ForwardCorrectio"),
        ([corrected, f"--transition.source={tmp_path / 'none.csv'}"], "none.csv"),
        ([corrected, f"--transition.source={tmp_path / 'empty'}"], "no class centers at"),
        ([corrected, f"--transition.source={tmp_path / 'corrected'}"], "its loss is corrected itself; give a run"),
        ([corrected, f"--transition.source={tmp_path / 'anchor'}"], "ProxyAnchorLoss none has them"),
        ([corrected, f"--transition.source={tmp_path / 'unfinished'}"], "the run has no finished model"),
        ([corrected, f"--transition.source={first.path}", "--seed=1"], "is not a training class of both runs"),
    ):
        refused_call(message, train, Recipe.load(overrides=[*small, *NOISE, *more]), tmp_path / "run")
        assert not (tmp_path / "run").exists()
