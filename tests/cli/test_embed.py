"""`vicinal embed` and `vicinal whiten`."""

from pathlib import Path

import numpy as np
import pandas as pd

from tests.conftest import output, refused
from vicinal.data import load_embeddings, read_fingerprint
from vicinal.models import ContextRefiner
from vicinal.retrieval import PCAWhitening, refine


def test_embed_writes_vectors_with_paths_and_labels(run: Path, photos: Path, tmp_path: Path, capsys) -> None:
    flags = ["--precision", "bf16", "--batch-size", "5"]
    output(capsys, "embed", photos, "--model", run, "--out", tmp_path / "v.npy", *flags)
    vectors, table = np.load(tmp_path / "v.npy"), pd.read_csv(tmp_path / "v.table.csv")
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    assert table["label"][0] == "class0"
    assert Path(table["path"][0]).is_file()


def test_embeddings_are_refined_and_their_fingerprint_says_so(run: Path, refiner: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "refined.parquet"
    output(capsys, "embed", run, "--split", "test", "--refiner", refiner, "--out", out)
    output(capsys, "embed", run, "--split", "test", "--out", tmp_path / "plain.parquet")
    refined, plain = load_embeddings(out)[0], load_embeddings(tmp_path / "plain.parquet")[0]
    np.testing.assert_allclose(refined, refine(ContextRefiner.from_pretrained(refiner), plain), atol=1e-6)
    model = read_fingerprint(tmp_path / "plain.parquet")
    assert read_fingerprint(out) == f"{model}+{ContextRefiner.from_pretrained(refiner).fingerprint()}"
    said = refused(capsys, "evaluate", out, "--refiner", refiner)  # they are refined already
    assert "was trained for embeddings of the model" in said


def test_whiten_learns_a_whitening_for_other_verbs(run: Path, tmp_path: Path, capsys) -> None:
    whitening, out = tmp_path / "w.safetensors", tmp_path / "v.parquet"
    flags = ["--split", "train", "--dim", "4", "--shrinkage", "0.1"]
    assert output(capsys, "whiten", run, *flags, "--out", whitening).strip() == str(whitening)
    output(capsys, "embed", run, "--whitening", whitening, "--out", out)
    output(capsys, "embed", run, "--out", tmp_path / "plain.parquet")
    expected = PCAWhitening.load(whitening).apply(load_embeddings(tmp_path / "plain.parquet")[0])
    np.testing.assert_allclose(load_embeddings(out)[0], expected, atol=1e-6)
    assert expected.shape[1] == 4
