"""The order of a backbone's layers, and training only some of them."""

import pytest
import timm
import torch
from timm.optim import param_groups_layer_decay

from tests.refusals import refused_call
from vicinal.data import ImageTransform
from vicinal.models import Embedder, train_biases_and_norms, train_last_blocks
from vicinal.models.backbones import layer_depths


def embedder(backbone: str = "test_vit", **more: object) -> Embedder:
    size = 160 if "vit" in backbone else 32
    return Embedder(backbone, dim=8, pretrained=False, transform=ImageTransform(size=size), **more)  # type: ignore[arg-type]


def trained(model: Embedder) -> set[str]:
    return {name for name, parameter in model.backbone.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("name", ["test_vit", "test_resnet", "test_convnext", "vit_tiny_patch16_224", "test_byobnet"])
def test_depths_decay_learning_rates_as_timm_does(name: str) -> None:
    """With its classifier, which has the factor 1; without one, timm itself would decay each block once less."""
    model = timm.create_model(name, num_classes=10)
    factors = {
        id(parameter): group["lr_scale"]
        for group in param_groups_layer_decay(model, layer_decay=0.5)
        for parameter in group["params"]
    }
    expected = {name: factors[id(parameter)] for name, parameter in model.named_parameters()}
    assert {name: 0.5**depth for name, depth in layer_depths(model).items()} == expected
    without = layer_depths(timm.create_model(name, num_classes=0))
    assert {name: 0.5**depth for name, depth in without.items()} == {name: expected[name] for name in without}


def test_the_last_blocks_are_trained() -> None:
    model = embedder()
    train_last_blocks(model, 2)
    assert {name.rpartition("blocks.")[2][0] for name in trained(model)} == {"4", "5", "n"}
    assert {"norm.weight", "norm.bias"} < trained(model)
    assert all(parameter.requires_grad for parameter in model.head.parameters())
    model(torch.randn(2, 3, 160, 160)).sum().backward()
    assert {name for name, p in model.backbone.named_parameters() if p.grad is not None} == trained(model)
    groups = model.parameter_groups()
    assert len(groups["backbone"]) == len(trained(model))
    model = embedder("test_resnet", freeze_batch_norm="all")
    train_last_blocks(model, 1)
    assert {name.partition(".")[0] for name in trained(model)} == {"layer4"}
    assert not [name for name in trained(model) if ".bn" in name]


def test_batch_normalization_of_frozen_blocks_stays() -> None:
    model = embedder("test_resnet")
    train_last_blocks(model, 1)
    before = {name: buffer.clone() for name, buffer in model.backbone.named_buffers()}
    model.train()(torch.randn(4, 3, 32, 32))
    moved = {name for name, buffer in model.backbone.named_buffers() if not torch.equal(buffer, before[name])}
    assert {name.partition(".")[0] for name in moved} == {"layer4"}


def test_biases_and_norms_are_trained() -> None:
    model = embedder("test_resnet")
    train_biases_and_norms(model)
    norms = [module for module in model.backbone.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert trained(model) == {name for name, p in model.backbone.named_parameters() if p.ndim == 1}
    assert len(trained(model)) == 2 * len(norms)
    assert all(norm.training for norm in norms)


def test_invalid_numbers_of_blocks_are_refused() -> None:
    model, message = embedder(), "blocks is 0; it must be an integer from 1 to 6, the blocks of test_vit"
    refused_call(message, train_last_blocks, model, 0)
    refused_call("blocks is 7; .* 1 to 6", train_last_blocks, model, 7)
