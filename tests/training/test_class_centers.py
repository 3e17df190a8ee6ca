"""Class centers of a run: creation, initial values, files, and resuming."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.refusals import refused_call
from tests.training.runs import trainer, weights
from vicinal.data import Table
from vicinal.losses import CenterLoss, MarginLoss, NormSoftmaxLoss, SoftTripleLoss
from vicinal.training import Recipe, resume, train
from vicinal.training.class_centers import (
    copy_centers_from_run,
    create_centers,
    losses_with_centers,
    read_centers,
    save_centers,
    set_centers_to_class_means,
)
from vicinal.training.training_data import load_training_table
from vicinal.utils.errors import InputError
from vicinal.utils.run_folder import RunFolder


def test_centers_are_made_for_classes_and_dimension_wherever_they_are_in_a_sum() -> None:
    loss = NormSoftmaxLoss() + 2 * SoftTripleLoss(centers_per_class=3) + MarginLoss()
    create_centers(loss, 5, 4)
    shapes = [list(part.centers.shape) for part in losses_with_centers(loss).values() if part.centers is not None]
    assert shapes == [[5, 4], [15, 4]]


def test_a_loss_made_for_other_classes_is_refused() -> None:
    with pytest.raises(InputError, match="has num_classes = 6, dim = 4, but the training split has 5 classes"):
        create_centers(NormSoftmaxLoss(6, 4), 5, 4)
    refused_call("num_classes = 6 does not fit; it must be 5", create_centers, NormSoftmaxLoss(6), 5, 4)


def test_class_means_are_the_directions_of_the_means() -> None:
    loss = NormSoftmaxLoss(2, 3)
    vectors = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], np.float32)
    set_centers_to_class_means(loss, vectors, np.array([0, 0, 1]))
    half = 0.5**0.5
    torch.testing.assert_close(loss.centers.detach(), torch.tensor([[half, half, 0.0], [0.0, 0.0, 1.0]]))


def test_known_classes_keep_their_centers_and_new_ones_get_new(tmp_path: Path, capsys) -> None:
    old, new = CenterLoss(3, 4) + SoftTripleLoss(3, 4, 2), CenterLoss(4, 4) + SoftTripleLoss(4, 4, 2)
    for parameter in old.parameters():
        torch.nn.init.normal_(parameter)
    untouched = {name: value.clone() for name, value in new.state_dict().items()}
    save_centers(RunFolder(tmp_path).centers, old, ["a", "b", 7])
    assert read_centers(RunFolder(tmp_path).centers).classes == ["a", "b", "7"]
    copy_centers_from_run(new, tmp_path, [7, "owl", "b", "newt"])
    assert "copied the centers of 2 classes" in capsys.readouterr().err
    before, after = old.state_dict(), new.state_dict()
    assert set(after) == {f"losses.0.{x}" for x in ("centers", "bias", "means")} | {"losses.1.centers"}
    for name, tensor in after.items():
        rows, of = tensor.view(4, -1), before[name].view(3, -1)
        torch.testing.assert_close(rows[[0, 2]], of[[2, 1]], rtol=0, atol=0)
        torch.testing.assert_close(rows[[1, 3]], untouched[name].view(4, -1)[[1, 3]], rtol=0, atol=0)


def test_centers_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = RunFolder(tmp_path).centers
    refused_call("no class centers at", copy_centers_from_run, NormSoftmaxLoss(3, 4), tmp_path, ["a", "b", "c"])
    save_centers(path, NormSoftmaxLoss(3, 8), ["a", "b", "c"])
    with pytest.raises(InputError, match="has no centers of this shape"):
        copy_centers_from_run(NormSoftmaxLoss(3, 4), tmp_path, ["a", "b", "c"])
    path.write_bytes(b"something else")
    refused_call("holds no class centers", copy_centers_from_run, NormSoftmaxLoss(3, 4), tmp_path, ["a", "b", "c"])


def test_a_run_writes_its_centers_and_the_next_takes_them_over(small: list[str], tmp_path: Path, capsys) -> None:
    settings = [*small, "--loss=CenterContrastiveLoss"]
    first = train(Recipe.load(overrides=[*settings, "--centers=class_means", "--epochs=1"]), tmp_path / "first")
    saved = read_centers(first.centers)
    table = Table.from_parquet(first.table).subset("train")
    assert saved.classes == [str(name) for name in table.classes]
    assert saved.tensors["centers"].shape == (len(table.classes), 1, 16)
    capsys.readouterr()
    second = trainer(settings, tmp_path / "second", f"--centers={first.path}", "--epochs=1")
    second.start()
    assert f"copied the centers of {len(table.classes)} classes" in capsys.readouterr().err
    torch.testing.assert_close(second.loss.centers.detach(), saved.tensors["centers"][:, 0], rtol=0, atol=0)
    with pytest.raises(InputError, match="has no centers of this shape"):
        train(Recipe.load(overrides=[*settings, f"--centers={first.path}", "--model.dim=8"]), tmp_path / "third")
    assert not (tmp_path / "third").exists()
    run = train(Recipe.load(overrides=[*settings, f"--centers={first.path}", "--epochs=1"]), tmp_path / "fourth")
    shutil.rmtree(first.path)
    before = weights(run)
    assert weights(resume(run.path)) == before


def test_impossible_settings_are_one_line(small: list[str], tmp_path: Path) -> None:
    for more, message in (
        (["--centers=class_means"], "the loss has no class centers"),
        (["--loss=NormSoftmaxLoss", "--centers=nowhere"], "no class centers at nowhere"),
        (["--loss=NormSoftmaxLoss", "--centers=class_means", "--model.projector=8"], "with a projector"),
        (["--loss=NormSoftmaxLoss", "--loss.num_classes=99"], "num_classes = 99 does not fit"),
        (["--loss=CenterLoss", "--centers=class_means"], "a loss that sees the norm"),
    ):
        refused_call(message, trainer, small, tmp_path / "run", *more)
        assert not (tmp_path / "run").exists()


def test_cross_entropy_sees_lengths_and_other_losses_do_not_change(small: list[str], tmp_path: Path) -> None:
    for loss, keeps in (("CrossEntropyLoss", True), ("NormSoftmaxLoss", False)):
        one = trainer(small, tmp_path / loss, f"--loss={loss}")
        assert one.embedder.normalize_in_training is not keeps
        lengths = one.embedder(torch.rand(4, 3, 16, 16)).norm(dim=1)
        assert torch.allclose(lengths, torch.ones(4)) is not keeps
        one.embedder.eval()
        assert torch.allclose(one.embedder(torch.rand(4, 3, 16, 16)).norm(dim=1), torch.ones(4))


def test_a_class_without_a_readable_image_has_no_center(small: list[str], photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    source = [f"--data.source={tmp_path / 'photos'}", "--data.on_error=skip", "--loss=NormSoftmaxLoss"]
    broken = load_training_table(Recipe.load(overrides=[*small, *source]).settings).subset("train").classes[0]
    for picture in (tmp_path / "photos" / str(broken)).iterdir():
        picture.write_bytes(b"broken")
    run = train(Recipe.load(overrides=[*small, *source, "--epochs=1"]), tmp_path / "run")
    saved = read_centers(run.centers)
    assert broken not in saved.classes
    assert len(saved.tensors["centers"]) == len(saved.classes)


def test_both_networks_of_co_teaching_start_from_class_means(small: list[str], tmp_path: Path) -> None:
    one = trainer(
        small,
        tmp_path / "run",
        "--loss=NormSoftmaxLoss",
        "--sample_selection.method=co-teaching",
        "--centers=class_means",
    )
    one.start()
    lengths = [loss.centers.detach().norm(dim=1) for loss in one.bare_module.losses]
    assert all(torch.allclose(length, torch.ones_like(length), atol=1e-5) for length in lengths)
