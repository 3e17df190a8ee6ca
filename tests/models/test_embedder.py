import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from PIL import Image

from tests.refusals import refused_call
from vicinal.data import ImageTransform
from vicinal.models import Embedder, execution
from vicinal.models.execution import used_precision
from vicinal.utils.errors import InputError

BACKBONES = ["test_resnet", "test_vit", "test_convnext", "test_efficientnet"]
IN_NEW_TIMM = [name for name in ["test_vit_relpos"] if timm.is_model(name)]
SMALL = ImageTransform(size=32)


def build(backbone="test_resnet", seed=0, **arguments):
    torch.manual_seed(seed)
    return Embedder(backbone, **{"dim": 8, "pretrained": False, "transform": SMALL, **arguments})


def images(number=6, channels=3):
    return torch.randn(number, channels, 32, 32, generator=torch.Generator().manual_seed(3))


def test_the_embedding_is_pooled_normalized_projected_and_of_length_one():
    model = build(pooling="gem", p=2.5, norm="layer").eval()
    maps = model.backbone(images())
    pooled = maps.clamp(min=1e-6).pow(2.5).mean((-2, -1)).pow(1 / 2.5)
    centred = pooled - pooled.mean(1, keepdim=True)
    normed = centred / (pooled.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    linear = model.head[1]
    expected = F.normalize(normed @ linear.weight.T + linear.bias)
    torch.testing.assert_close(model(images()), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model(images()).norm(dim=1), torch.ones(6))


@pytest.mark.parametrize("backbone", [*BACKBONES, "test_mambaout", "test_vit2", *IN_NEW_TIMM, "test_nfnet"])
@pytest.mark.parametrize("pooling", ["avg", "max", "gem", "avg+max", "token"])
def test_every_backbone_with_every_pooling(backbone, pooling):
    if pooling == "token" and backbone != "test_vit":
        refused_call(f"{backbone} has no class token", build, backbone, pooling=pooling)
        return
    vectors = build(backbone, pooling=pooling)(images(3))
    assert vectors.shape == (3, 8)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(3))
    vectors[:, 0].sum().backward()


def test_token_and_patches_of_a_transformer():
    token = build("test_vit", pooling="token", norm="none").eval()
    tokens = token.backbone(images())
    torch.testing.assert_close(token(images()), F.normalize(token.head(tokens[:, 0])))
    patches = build("test_vit", pooling="avg", norm="none").eval()
    tokens = patches.backbone(images())
    torch.testing.assert_close(patches(images()), F.normalize(patches.head(tokens[:, 1:].mean(1))))


def test_the_projector_is_used_in_training_only():
    model = build(projector=12, freeze_batch_norm="statistics")
    plain = model.head(model.pooling(model.backbone(images())))
    torch.testing.assert_close(model(images()), F.normalize(model.projector(plain)))
    torch.testing.assert_close(model.eval()(images()), F.normalize(plain))


def test_the_gradient_of_a_zero_embedding_is_bounded_and_not_zero():
    model = build(norm="none")
    torch.nn.init.zeros_(model.head[1].weight)
    torch.nn.init.zeros_(model.head[1].bias)
    embeddings = model(images())
    assert not embeddings.any()
    embeddings.sum().backward()
    gradient = model.head[1].bias.grad
    torch.testing.assert_close(gradient, torch.full_like(gradient, 1e3 * len(embeddings)))


def test_dropout_is_used_in_training_only():
    model = build(dropout=0.5, dim=64, freeze_batch_norm="statistics")
    dropped = (model(images()) == 0).float().mean()
    assert 0.3 < dropped < 0.7
    assert not (model.eval()(images()) == 0).any()


def statistics(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items() if "running" in name or "num_b" in name}


def train_steps(model, steps=4):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model.train()
        model(images())[:, 0].sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()


@pytest.mark.parametrize("backbone", ["test_resnet", "test_efficientnet"])
def test_frozen_batch_norm_keeps_its_statistics_through_training(backbone):
    frozen, free = build(backbone, freeze_batch_norm="statistics"), build(backbone)
    before = statistics(frozen)
    affine = {name: p.detach().clone() for name, p in frozen.named_parameters() if ".bn1." in name}
    assert len(before) > 10
    train_steps(frozen)
    train_steps(free)
    assert all(torch.equal(tensor, before[name]) for name, tensor in statistics(frozen).items())
    assert not all(torch.equal(tensor, before[name]) for name, tensor in statistics(free).items())
    assert any(not torch.equal(p, affine[name]) for name, p in frozen.named_parameters() if name in affine)


def test_frozen_batch_norm_uses_its_statistics_in_training():
    model = build(freeze_batch_norm="statistics")
    alone, together = model(images()[:1]), model(images())[:1]
    torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-5)
    assert model.training
    assert not any(module.training for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d))


def test_parameter_groups_hold_every_parameter_once():
    model = build(pooling="gem", learned_p=True, projector=4)
    groups = model.parameter_groups()
    assert list(groups) == ["backbone", "pooling", "head", "projector"]
    grouped = [id(parameter) for group in groups.values() for parameter in group]
    assert sorted(grouped) == sorted(id(parameter) for parameter in model.parameters())
    assert groups["pooling"] == [model.pooling.p]
    assert build().parameter_groups()["projector"] == build().parameter_groups()["pooling"] == []


@pytest.mark.parametrize("backbone", ["test_resnet", "test_efficientnet"])
def test_batch_norm_frozen_as_a_whole_has_no_trained_parameters(backbone):
    model, other = build(backbone, freeze_batch_norm="all"), build(backbone)
    norms = [module for module in model.backbone.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    affine = [parameter for norm in norms for parameter in norm.parameters()]
    assert len(affine) == 2 * len(norms) > 10
    before, state = [parameter.clone() for parameter in affine], statistics(model)
    train_steps(model)
    assert all(torch.equal(a, b) for a, b in zip(before, affine, strict=True))
    assert all(torch.equal(tensor, state[name]) for name, tensor in statistics(model).items())
    trained = {id(parameter) for group in model.parameter_groups().values() for parameter in group}
    assert trained == {id(p) for p in model.parameters()} - {id(p) for p in affine}
    assert trained == {id(p) for p in model.parameters() if p.requires_grad}
    assert len(trained) + len(affine) == sum(len(group) for group in other.parameter_groups().values())


def test_embed_is_the_forward_pass_in_evaluation_mode():
    model = build(dropout=0.3, projector=4)
    vectors = model.embed(images(), batch_size=4, progress=False)
    assert vectors.dtype == np.float32
    with torch.no_grad():
        expected = model.eval()(images())
    np.testing.assert_allclose(vectors, expected.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)


def test_embed_leaves_every_mode_and_statistic_as_it_was():
    model = build()
    model.train()
    model.backbone.eval()
    before = statistics(model)
    modes = [module.training for module in model.modules()]
    model.embed(images(), progress=False)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(tensor, before[name]) for name, tensor in statistics(model).items())
    with pytest.raises(InputError):
        model.embed([Image.new("L", (9, 9)), torch.zeros(1)], progress=False)
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize("precision", ["bf16", "16"])
def test_embed_under_autocast(precision):
    model = build()
    vectors, exact = model.embed(images(), precision=precision, progress=False), model.embed(images(), progress=False)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(vectors, exact, atol=0.05)
    assert not np.array_equal(vectors, exact)
    assert np.array_equal(model.embed(images(), precision="32", progress=False), exact)  # the default on a CPU


def test_a_vector_that_is_not_finite_is_an_error():
    bad = images()
    bad[4] = torch.nan
    refused_call(r"embedding of image 4 is not finite \(1 of 6\)", lambda: build().embed(bad, progress=False))
    refused_call("precision is 'fp8'", lambda: build().embed(images(), precision="fp8"))


def test_fingerprint_follows_weights_and_config():
    prints = {build().fingerprint(), build(seed=1).fingerprint(), build(p=2.0).fingerprint()}
    prints.add(build(transform=ImageTransform(size=32, resize=36)).fingerprint())
    assert len(prints) == 4
    assert build().fingerprint() == build().fingerprint()
    model = build()
    with torch.no_grad():
        model.head[1].bias[0] += 1e-3
    assert model.fingerprint() not in prints


def test_invalid_values():
    for arguments, message in (
        ({"dim": 10**9}, "dim is 1000000000; it must be an integer from 1 to 65,536"),
        ({"dropout": "a"}, "dropout is 'a'; it must be a number from 0 to below 1"),
        ({"pooling": "gem", "p": "a"}, "p is 'a'; it must be a finite number from 0.001 to 10,000"),
        ({"pooling": "avg", "learned_p": True}, "'avg' has no exponent"),
        ({"pretrained": None}, "pretrained is None; give a weights file, true or false"),
        ({"norm": "batch"}, "norm: 'batch' is unknown; choose layer, layer_affine, l2 or none"),
        ({"freeze_batch_norm": True}, "freeze_batch_norm is True; choose none, statistics, all or auto"),
        ({"pooling": "sum"}, "pooling: 'sum' is unknown"),
        ({"backbone": "crossvit_9_240", "pooling": "gem"}, "crossvit_9_240 cannot be built without its pooling"),
    ):
        refused_call(message, build, **arguments)


def test_the_memory_format_is_chosen_by_the_backbone():
    for backbone, expected in (("test_resnet", "channels_last"), ("test_vit", "contiguous_format")):
        model = Embedder(backbone, dim=8, pretrained=False)
        assert str(model.memory_format) == f"torch.{expected}"
        convolutions = [parameter for parameter in model.backbone.parameters() if parameter.ndim == 4]
        assert all(weight.is_contiguous(memory_format=model.memory_format) for weight in convolutions)


def test_a_transform_may_be_given_by_its_settings():
    model = Embedder(
        "test_resnet", 8, pretrained=False, transform={"size": 32, "channels": 1, "mean": (0.5,), "std": (0.5,)}
    )
    assert (model.transform.size, model.transform.channels) == (32, 1)
    for given, message in (
        ({"sise": 32}, "transform: .*sise"),
        (32, "transform is int; give an ImageTransform or a dict"),
    ):
        refused_call(message, Embedder, "test_resnet", 8, pretrained=False, transform=given)


def test_auto_is_bfloat16_on_a_gpu_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for has, expected in ((True, "bf16"), (False, "32")):
        monkeypatch.setattr(execution, "gpu_has_bfloat16", lambda has=has: has)
        assert used_precision("auto", "cuda:1") == expected
        assert used_precision("auto", torch.device("cpu")) == "32"
        assert [used_precision(given, "cuda") for given in ("32", "bf16", "16")] == ["32", "bf16", "16"]
