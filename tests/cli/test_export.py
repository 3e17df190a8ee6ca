"""`vicinal export`, and verbs that take an exported model in the place of a run."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import output, refused
from vicinal.cli.main import main
from vicinal.data import load_vectors
from vicinal.export import OnnxEmbedder
from vicinal.models import Embedder


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run, exported in 8 bits, by its own splits, and uploaded with the words in `uploaded.json`."""
    folder = tmp_path_factory.mktemp("exported")

    def upload(self: Embedder, name: str, private: bool, onnx: Path) -> None:
        (folder / "uploaded.json").write_text(json.dumps([name, private, str(onnx)]))

    words = ["export", str(run), "--out", str(folder / "model.onnx"), "--int8", "--tolerance", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vicinal.export.parity.SPEED_SECONDS", 0.0)
        patch.setattr(Embedder, "push_to_hub", upload)
        assert main([*words, "--push_to_hub", "me/birds", "--private"]) == 0
    return folder / "model.onnx"


def test_a_run_is_checked_and_calibrated_by_its_own_splits_and_uploaded(exported: Path, run: Path) -> None:
    assert json.loads((exported.parent / "uploaded.json").read_text()) == ["me/birds", True, str(exported)]
    report = json.loads(exported.with_suffix(".parity.json").read_text())
    assert (report["settings"]["precision"], report["settings"]["tolerance"]) == ("int8", 1)
    assert report["fingerprint"] == Embedder.from_pretrained(run / "model").fingerprint()
    assert 0 < report["vectors"]["num_images"] < 48  # of the validation split
    assert report["metrics"] is not None
    assert exported.stat().st_size < 0.5 * (run / "model" / "model.safetensors").stat().st_size


def test_an_exported_model_embeds_indexes_and_searches(
    exported: Path, photos: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output(capsys, "embed", photos, "--model", exported, "--out", tmp_path / "vectors.parquet")
    expected = OnnxEmbedder(exported).embed(sorted(photos.rglob("*.png")))
    np.testing.assert_allclose(load_vectors(tmp_path / "vectors.parquet"), expected, atol=1e-5)
    output(capsys, "index", "build", tmp_path / "index", photos, "--model", exported)
    picture = photos / "class3" / "2.png"
    for flags in ([], ["--model", run]):  # the fingerprint is that of the run
        found = json.loads(output(capsys, "search", tmp_path / "index", picture, "-k", 1, "--json", *flags))
        assert found[0]["matches"][0]["path"] == str(picture)
    compared = output(capsys, "evaluate", exported, run, "--images", photos, "--compare", "--json")
    assert {row["model"] for row in json.loads(compared)["results"]} == {str(exported), str(run)}
    flags = ["--model", str(exported), "--scales", "1", "2", "--out", str(tmp_path / "scales.npy")]
    assert "is an exported model, which has its own; leave out --scales" in refused(capsys, "embed", photos, *flags)


def test_a_gallery_of_another_model_is_refused(run: Path, refiner: Path, photos: Path, tmp_path: Path, capsys) -> None:
    from tests.export.conftest import build

    build(dim=16).save_pretrained(tmp_path / "other")
    output(capsys, "embed", photos, "--model", tmp_path / "other", "--out", tmp_path / "other.parquet")
    flags = ["--out", tmp_path / "refined.onnx", "--refiner", refiner, "--gallery", tmp_path / "other.parquet"]
    assert "the refiner needs embeddings of the model" in refused(capsys, "export", run, *flags)
    assert "the refiner was trained" in refused(capsys, "export", tmp_path / "other", *flags)
    assert "has no rows in the split tset" in refused(capsys, "export", run, *flags[:2], "--split", "tset")
    assert not (tmp_path / "refined.onnx").exists()
