"""The head of an embedder: its normalizations, no linear layer, and one that begins as a whitening."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.models import test_embedder
from tests.models.test_embedder import images
from tests.refusals import refused_call
from vicinal.models import Embedder
from vicinal.models.head import AvgMaxPool, AvgPool, ClassToken, GeM, MaxPool, to_feature_maps
from vicinal.retrieval import PCAWhitening
from vicinal.utils.errors import InputError

WIDTH = 96  # of test_resnet


def build(seed: int = 0, **arguments: Any) -> Embedder:
    return test_embedder.build(seed=seed, **arguments).eval()


def pooled(model: Embedder, x: Tensor) -> Tensor:
    return model.pooling(model.backbone(x))


def test_affine_layer_norm_has_weight_and_bias_that_are_trained() -> None:
    model = build(norm="layer_affine")
    weight, bias = model.head[0].parameters()
    with torch.no_grad():
        weight.uniform_(0.5, 2)
        bias.uniform_(-1, 1)
    features = pooled(model, images())
    centered = features - features.mean(1, keepdim=True)
    normed = centered / (features.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt() * weight + bias
    torch.testing.assert_close(model(images()), F.normalize(model.head[1](normed)))
    model.train()(images())[:, 0].sum().backward()
    assert weight.grad is not None
    assert weight.grad.any()
    assert {id(weight), id(bias)} < {id(parameter) for parameter in model.parameter_groups()["head"]}
    assert not list(build(norm="layer").head[0].parameters())


def test_a_hidden_layer_makes_the_head_an_mlp(tmp_path: Path) -> None:
    model = build(hidden=12, norm="layer")
    features = pooled(model, images())
    first, _, last = model.head[1]
    hidden = F.relu(F.linear(F.layer_norm(features, [WIDTH]), first.weight, first.bias))
    torch.testing.assert_close(model(images()), F.normalize(F.linear(hidden, last.weight, last.bias)))
    torch.testing.assert_close(model(features), model(images()))
    model.save_pretrained(tmp_path / "model")
    torch.testing.assert_close(Embedder.from_pretrained(tmp_path / "model")(images()), model(images()))
    PCAWhitening.fit(np.random.default_rng(0).standard_normal((500, WIDTH)), 8).save(tmp_path / "w.safetensors")
    whitening = tmp_path / "w.safetensors"
    refused_call("head_whitening needs one linear layer; leave out hidden", build, hidden=12, head_whitening=whitening)
    refused_call("hidden is 12; it must be left out without dim", build, hidden=12, dim=None)
    refused_call("hidden is 0; it must be an integer from 1", build, hidden=0)


def test_without_linear_layer_embeddings_are_the_pooled_features(tmp_path: Path) -> None:
    model = build(dim=None, norm="none")
    assert model.dim == model.train_output_dim == WIDTH
    torch.testing.assert_close(model(images()), F.normalize(pooled(model, images())))
    model.save_pretrained(tmp_path / "model")
    assert Embedder.from_pretrained(tmp_path / "model").dim == WIDTH
    assert "None" not in (tmp_path / "model" / "README.md").read_text()


@pytest.mark.parametrize(("norm", "dim"), [("l2", WIDTH), ("none", WIDTH), ("none", 5)])
def test_a_head_that_begins_as_a_whitening_is_the_whitening(norm: str, dim: int, tmp_path: Path) -> None:
    """Of embeddings of the same backbone without head, which are of length 1; with norm "none" of longer vectors."""
    features = build(dim=None, norm="none")
    with torch.no_grad():
        train, x = (pooled(features, images(number)).numpy() for number in (300, 6))
    if norm == "l2":
        train, x = features.embed(images(300), progress=False), features.embed(images(6), progress=False)
    whitening = PCAWhitening.fit(train, dim, shrinkage=0.01)
    whitening.save(tmp_path / "whitening.safetensors")
    model = build(dim=dim, norm=norm, head_whitening=tmp_path / "whitening.safetensors")
    np.testing.assert_allclose(model.embed(images(6), progress=False), whitening.apply(x), atol=2e-5)
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "whitening.safetensors").unlink()  # a saved model has the weights themselves
    assert Embedder.from_pretrained(tmp_path / "model").fingerprint() == model.fingerprint()


def test_a_whitening_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "whitening.safetensors"
    PCAWhitening.fit(np.random.default_rng(0).standard_normal((50, 12)), 8).save(path)
    refused_call("maps 12 dimensions to 8, and the linear layer 96 to 8; learn it on", build, head_whitening=path)
    with pytest.raises(InputError, match="head_whitening needs a linear layer, which the model does not have; set dim"):
        build(dim=None, head_whitening=path)
    path.write_bytes(b"nothing")
    refused_call(r"head_whitening: .*not a complete .safetensors file", build, head_whitening=path)
    refused_call(
        r"a whitening is kept in a file ending in .safetensors", build, head_whitening=tmp_path / "whitening.npy"
    )


def slow_gem(maps, p, eps=1e-6):
    result = torch.zeros(maps.shape[:2], dtype=maps.dtype)
    for i, image in enumerate(maps):
        for c, channel in enumerate(image):
            powers = [max(float(value), eps) ** p for value in channel.flatten()]
            result[i, c] = (sum(powers) / len(powers)) ** (1 / p)
    return result


@pytest.fixture
def maps():
    return torch.randn(3, 4, 5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("p", [1.0, 3.0, 4.7])
def test_gem_is_its_formula(maps, p):
    torch.testing.assert_close(GeM(p)(maps), slow_gem(maps, p), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("learned", [False, True])
def test_gem_gradient(maps, learned):
    pool = GeM(3.0, learned).double()
    positive = maps.abs().add(0.1).requires_grad_()
    assert torch.autograd.gradcheck(pool, positive)
    if learned:
        pool(positive).sum().backward()
        step = 1e-6
        with torch.no_grad():
            slope = (slow_gem(positive, 3 + step).sum() - slow_gem(positive, 3 - step).sum()) / (2 * step)
        assert float(pool.p.grad) == pytest.approx(float(slope), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 5e4])
def test_gem_in_half_precision(maps, dtype, scale):
    half = (maps.sigmoid() * scale).to(dtype)
    pooled = GeM(3.0)(half)
    assert pooled.dtype == dtype
    assert pooled.isfinite().all()
    torch.testing.assert_close(pooled.double(), slow_gem(half.double(), 3.0), rtol=1e-2, atol=1e-6)


def test_gem_under_autocast_and_of_huge_values():
    huge = torch.full((1, 1, 2, 2), 1e30, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        pooled = GeM(3.0)(huge)
    assert pooled.item() == pytest.approx(1e30)
    pooled.sum().backward()
    torch.testing.assert_close(huge.grad, torch.full((1, 1, 2, 2), 0.25))


@pytest.mark.parametrize("value", [0.0, -1e30])
def test_gem_of_dead_maps_is_finite(value):
    dead = torch.full((1, 1, 2, 2), value, requires_grad=True)
    pooled = GeM(3.0, learned=True)(dead)
    pooled.sum().backward()
    assert pooled.isfinite().all()
    assert dead.grad.isfinite().all()


def test_the_others(maps):
    flat = maps.flatten(2)
    assert torch.equal(MaxPool()(maps), flat.max(-1).values)
    torch.testing.assert_close(AvgPool()(maps), flat.mean(-1))
    torch.testing.assert_close(AvgMaxPool()(maps), flat.mean(-1) + flat.max(-1).values)
    tokens = torch.randn(2, 5, 3)
    assert torch.equal(ClassToken()(tokens), tokens[:, 0])


def test_maps_of_every_layout(maps):
    assert torch.equal(to_feature_maps(maps, 4), maps)
    assert torch.equal(to_feature_maps(maps.permute(0, 2, 3, 1), 4, channels_last=True), maps)
    tokens = torch.randn(2, 7, 3)
    patches = to_feature_maps(tokens, 3, num_prefix_tokens=2)
    torch.testing.assert_close(AvgPool()(patches), tokens[:, 2:].mean(1))
