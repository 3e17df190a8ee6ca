"""PCA whitening against scikit-learn, and its documented properties."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from sklearn.decomposition import PCA

from tests.refusals import refused_call
from vicinal.retrieval import PCAWhitening, whitening
from vicinal.utils.errors import InputError


def cloud(rows: int = 200, dim: int = 12, seed: int = 0) -> np.ndarray:
    """Rotated vectors of unequal variance, far from the origin."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, dim)) * 1.5 ** -np.arange(dim) @ rng.standard_normal((dim, dim)) + 3


@pytest.mark.parametrize("dim", [None, 1, 5, 12])
@pytest.mark.parametrize("rows", [200, 5000])
def test_equals_scikit_learn(dim: int | None, rows: int) -> None:
    train, others = cloud(rows), cloud(40, seed=1)
    ours = PCAWhitening.fit(train, dim)
    theirs = PCA(dim, whiten=True, svd_solver="full").fit(train)
    np.testing.assert_allclose(ours.mean, theirs.mean_, rtol=1e-10)
    np.testing.assert_allclose(ours.explained_variance, theirs.explained_variance_, rtol=1e-9)
    signs = np.sign((ours.components * theirs.components_).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(ours.components, theirs.components_ * signs, atol=1e-7)
    wanted = theirs.transform(others) * signs.T
    np.testing.assert_allclose(ours.apply(others, normalize=False), wanted, rtol=1e-4, atol=1e-5)
    unit = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(ours.apply(others), unit, atol=1e-6)
    assert ours.apply(others).dtype == np.float32
    assert ours.dim == (dim or 12)


@pytest.mark.parametrize("shrinkage", [0.1, 0.7, 1.0])
def test_shrinkage_of_the_covariance(shrinkage: float) -> None:
    vectors = cloud()
    covariance = np.cov(vectors.T)
    shrunk = (1 - shrinkage) * covariance + shrinkage * np.trace(covariance) / 12 * np.eye(12)
    found = PCAWhitening.fit(vectors, shrinkage=shrinkage)
    np.testing.assert_allclose(found.components.T * found.explained_variance @ found.components, shrunk, atol=1e-9)
    whitened = found.apply(vectors, normalize=False)
    inverse = np.linalg.inv(shrunk)
    centred = vectors - vectors.mean(axis=0)
    np.testing.assert_allclose(whitened @ whitened.T, centred @ inverse @ centred.T, rtol=1e-3, atol=1e-3)


def test_fewer_vectors_than_dimensions_need_shrinkage() -> None:
    few = cloud(8)
    message = "in 5 of 12 directions the 8 vectors do not differ; use dim <= 7, more vectors, or shrinkage"
    refused_call(message, PCAWhitening.fit, few)
    assert PCAWhitening.fit(few, dim=7).dim == 7
    assert np.isfinite(PCAWhitening.fit(few, shrinkage=0.01).apply(cloud(3, seed=5))).all()
    refused_call("the 3 vectors are all equal", lambda: PCAWhitening.fit(np.ones((3, 4))))


def test_result_does_not_depend_on_array_type_and_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = cloud().astype(np.float32)
    whole = PCAWhitening.fit(vectors)
    wanted = whole.apply(vectors)
    np.testing.assert_array_equal(whole.apply(torch.from_numpy(vectors)), wanted)
    np.testing.assert_array_equal(PCAWhitening.fit(torch.from_numpy(vectors)).apply(vectors), wanted)
    half = vectors.astype(np.float16)
    np.testing.assert_array_equal(whole.apply(half), whole.apply(half.astype(np.float64)))
    monkeypatch.setattr(whitening, "BLOCK_ROWS", 7)
    np.testing.assert_allclose(PCAWhitening.fit(vectors).apply(vectors), wanted, atol=1e-6)


def test_no_digits_are_lost_far_from_the_origin() -> None:
    vectors = np.random.default_rng(0).standard_normal((300, 3)) * [1, 1e-2, 1e-3]
    near, far = PCAWhitening.fit(vectors), PCAWhitening.fit(vectors + 1e5)
    np.testing.assert_allclose(far.explained_variance, near.explained_variance, rtol=1e-6)


@pytest.mark.filterwarnings("error")
def test_very_large_and_very_small_numbers() -> None:
    near = PCAWhitening.fit(cloud())
    for size in (1e-140, 1e140):
        scaled = PCAWhitening.fit(cloud() * size)
        np.testing.assert_allclose(scaled.apply(cloud(seed=1) * size), near.apply(cloud(seed=1)), atol=1e-6)
    far = 1e300 * np.eye(12)
    np.testing.assert_allclose(near.apply(far), near.apply(far / 1e200), atol=1e-6)
    for size in (1e155, 1e200, 1e307):
        with pytest.raises(InputError, match="the vectors hold numbers too large to square; scale them to length 1"):
            PCAWhitening.fit(cloud() * size)
    for size in (1e-155, 1e-170):
        with pytest.raises(InputError, match="the 200 vectors are all equal, or differ by less than 1e-146"):
            PCAWhitening.fit((cloud() - 3) * size)
    with pytest.raises(InputError, match="vector 1 is too large to whiten"):
        near.apply(np.array([[0.0], [1e60]]) * np.ones(12), normalize=False)
    refused_call("vector 0 is too large to whiten", lambda: PCAWhitening.fit(cloud() * 1e-140).apply(far))


def test_saved_and_loaded_is_the_same(tmp_path: Path) -> None:
    found = PCAWhitening.fit(cloud(), dim=5, shrinkage=0.1)
    path = tmp_path / "new" / "whitening.safetensors"
    found.save(path)
    again = PCAWhitening.load(str(path))
    for name in ("mean", "components", "explained_variance"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
    assert again != found  # by identity, for arrays have no one truth
    np.testing.assert_array_equal(again.apply(cloud(seed=2)), found.apply(cloud(seed=2)))


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "whitening.safetensors"
    PCAWhitening.fit(cloud()).save(path)
    whole, tensors = path.read_bytes(), safetensors.numpy.load_file(path)
    mark = {"format": "vicinal-whitening"}
    cases = {
        "half": (whole[: len(whole) // 2], "not a complete"),
        "other": (safetensors.numpy.save(tensors), "its format is not 'vicinal-whitening'"),
        "missing": (safetensors.numpy.save({"mean": tensors["mean"]}, mark), "damaged"),
        "nan": (safetensors.numpy.save(tensors | {"mean": tensors["mean"] * np.nan}, mark), "damaged"),
    }
    for data, message in cases.values():
        path.write_bytes(data)
        refused_call(rf"whitening\.safetensors: .*{message}", PCAWhitening.load, path)
    refused_call(r"lost\.safetensors: no such file", PCAWhitening.load, tmp_path / "lost.safetensors")
    with pytest.raises(InputError, match=r"whitening\.npz: a whitening is kept in a file ending in \.safetensors"):
        PCAWhitening.fit(cloud()).save(tmp_path / "whitening.npz")


def test_bad_input() -> None:
    for arguments, message in (
        ({"dim": 0}, "dim is 0; it must be an integer from 1 to 12"),
        ({"shrinkage": 1.5}, r"shrinkage is 1\.5; it must be from 0 to 1"),
        ({"shrinkage": "0.1"}, r"shrinkage is '0\.1'; it must be from 0 to 1"),
    ):
        refused_call(message, PCAWhitening.fit, cloud(), **arguments)
    refused_call("1 vectors to learn a whitening from; at least two are needed", lambda: PCAWhitening.fit(cloud(1)))
    found = PCAWhitening.fit(cloud())
    refused_call("vectors have 3 dimensions, the whitening was learned on 12", lambda: found.apply(np.eye(3)))
