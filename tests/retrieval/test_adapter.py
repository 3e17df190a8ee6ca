"""LinearAdapter: Procrustes and ridge regression against SciPy and scikit-learn, files, and invalid input."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from scipy.linalg import orthogonal_procrustes
from sklearn.linear_model import Ridge

from tests.refusals import refused_call
from vicinal.retrieval import LinearAdapter, whitening
from vicinal.utils.errors import InputError


@pytest.fixture
def pair() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    old = rng.standard_normal((300, 6))
    return old, old @ rng.standard_normal((6, 6)) + 0.3 * rng.standard_normal((300, 6)) + 1


def test_procrustes_is_that_of_scipy(pair: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whitening, "BLOCK_ROWS", 7)
    adapter = LinearAdapter.fit(*pair)
    np.testing.assert_allclose(adapter.matrix, orthogonal_procrustes(*pair)[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(adapter.matrix @ adapter.matrix.T, np.eye(6), rtol=0, atol=1e-12)
    assert not adapter.offset.any()


@pytest.mark.parametrize("alpha", [1e-3, 1.0, 50.0])
def test_ridge_is_that_of_scikit_learn(
    pair: tuple[np.ndarray, np.ndarray], alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whitening, "BLOCK_ROWS", 7)
    old, new = pair[0], pair[1][:, :4]
    adapter, peer = LinearAdapter.fit(old, torch.from_numpy(new), "ridge", alpha), Ridge(alpha=alpha).fit(old, new)
    np.testing.assert_allclose(adapter.matrix, peer.coef_.T, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(adapter.offset, peer.intercept_, rtol=1e-9, atol=1e-12)
    expected = peer.predict(old)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(adapter.apply(old), expected, rtol=0, atol=1e-6)


def test_a_file_has_arrays_and_models(pair: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    adapter = LinearAdapter.fit(*pair, "ridge", models=("abc", None))
    adapter.save(tmp_path / "adapter.safetensors")
    loaded = LinearAdapter.load(tmp_path / "adapter.safetensors")
    assert loaded.fingerprint() == adapter.fingerprint()
    assert (loaded.source, loaded.target) == ("abc", None)
    loaded.check_model("abc"), loaded.check_model(None)
    refused_call("maps embeddings of abc, and these are of def", loaded.check_model, "def")


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    arrays = {"matrix": np.ones((2, 3)), "offset": np.ones(3)}
    for tensors, kind, message in (
        (arrays, "whitening", "not an adapter"),
        ({**arrays, "offset": np.ones(2)}, "adapter", "damaged"),
        ({**arrays, "matrix": np.full((2, 3), np.nan)}, "adapter", "damaged"),
        ({"matrix": np.ones((2, 3))}, "adapter", "damaged"),
    ):
        path.write_bytes(safetensors.numpy.save(tensors, {"format": f"vicinal-{kind}"}))
        refused_call(message, LinearAdapter.load, path)
    refused_call("an adapter is kept in a file ending in", LinearAdapter.load, tmp_path / "x.npy")


def test_invalid_input(pair: tuple[np.ndarray, np.ndarray]) -> None:
    old, new = pair
    for arguments, message in (
        ((old, new[:9]), "300 and 9 embeddings"),
        ((old, new[:, :4]), "procrustes needs equal dimensions, not 6 and 4; use ridge"),
        ((old, new, "lasso"), "method is 'lasso'"),
        *(((old, new, "ridge", alpha), f"alpha is {alpha}") for alpha in (0, np.inf)),
        ((old[:3], new[:3], "ridge", 1e-30), "alpha is 1e-30, too small"),
        ((old * np.nan, new), "vector 0 holds NaN"),
        ((old * 1e300, new * 1e300), "too large"),
    ):
        with pytest.raises(InputError, match=message), np.errstate(all="ignore"):
            LinearAdapter.fit(*arguments)
    with pytest.raises(InputError, match="vectors have 4 dimensions, the adapter was learned on 6"):
        LinearAdapter.fit(old, new).apply(new[:, :4])
