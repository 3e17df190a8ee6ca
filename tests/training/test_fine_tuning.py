"""Fine-tuning of large models: what is trained, what checkpoints hold, and that savings change no result."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from tests.refusals import refused_call
from tests.training.runs import gradients, trainer, weights
from vicinal.models import Embedder
from vicinal.training import Recipe, resume, train
from vicinal.training.checkpoint import load_checkpoint

VIT = ["--model.backbone=test_vit", "--model.pooling=token", "--transform.size=32"]
LORA = [*VIT, "--fine_tuning.method=lora", "--fine_tuning.rank=2"]
CHECKPOINTING = "--gradient_checkpointing=true"
SGD = ["--optimizer.name=sgd", "--optimizer.lr=1", "--schedule.name=constant"]
FROZEN = {
    "lora": LORA,
    "last_blocks": [*VIT, "--fine_tuning.method=last_blocks"],
    "biases_norms": [*VIT, "--fine_tuning.method=biases_norms"],
    "convolutions": ["--fine_tuning.method=lora", "--fine_tuning.dropout=0.2"],
    "average": ["--ema_decay=0.9"],
}


@pytest.fixture
def vit(small: list[str]) -> list[str]:
    return [*small, "--epochs=2", "--steps_per_epoch=2"]


@pytest.mark.parametrize("method", ["lora", *(pytest.param(each, marks=pytest.mark.slow) for each in [*FROZEN][1:])])
def test_resuming_is_exact_and_checkpoints_hold_what_is_trained(vit: list[str], tmp_path: Path, method: str) -> None:
    if "lora" in " ".join(FROZEN[method]):
        pytest.importorskip("peft")
    recipe = Recipe.load(overrides=[*vit, *FROZEN[method]])
    whole = train(recipe, tmp_path / "whole")
    part = trainer([*vit, *FROZEN[method]], tmp_path / "part")
    part.start()
    with part.watching():
        part.validate()
        part.train_epoch()
        part.finish_epoch()
    part.log.close()
    resume(part.run.path)
    assert weights(part.run) == weights(whole)
    own = load_checkpoint(whole.last)
    names = {name for name, parameter in part.bare_module.named_parameters() if parameter.requires_grad}
    assert names <= own["module"].keys()
    assert not {name for name, p in part.bare_module.named_parameters() if not p.requires_grad} & own["module"].keys()
    assert load_checkpoint(whole.best)["module"].keys() == own["module"].keys()
    if "average" not in method:
        assert len(own["optimizer"]["state"]) == len(names)
        model = Embedder.from_pretrained(whole.model)
        kept = dict(part.embedder.backbone.named_parameters())
        frozen = [name for name, value in kept.items() if not value.requires_grad and "base_layer" not in name]
        loaded = dict(model.backbone.named_parameters())
        assert frozen
        assert all(torch.equal(kept[name], loaded[name]) for name in frozen)
        assert model.config == Embedder(**recipe.model, transform=recipe.settings.transform).config


def test_other_frozen_weights_are_noticed(vit: list[str], tmp_path: Path) -> None:
    settings = [*vit, *FROZEN["biases_norms"]]
    one = trainer(settings, tmp_path / "run")
    one.start()
    one.save()
    one.log.close()
    other = trainer(settings, tmp_path / "run")
    with torch.no_grad():
        other.embedder.backbone.pos_embed.add_(1)
    refused_call(r"last.pt: the frozen weights differ from those at the start of the run", other.start)


def test_the_average_is_evaluated_and_saved(vit: list[str], tmp_path: Path) -> None:
    """By the formula, from the weights after each step; with a validation that is best at the end, and without one."""
    one = trainer(vit, tmp_path / "run", "--ema_decay=0.25", "--data.fractions={train: 0.7, test: 0.3}")
    seen: list[dict[str, Tensor]] = []
    step = one.engine.step

    def recorded() -> None:
        step()
        seen.append({name: value.clone() for name, value in one.embedder.state_dict().items()})

    one.start()
    expected = {name: value.clone() for name, value in one.embedder.state_dict().items()}
    one.engine.step = recorded
    one.fit()
    assert len(seen) == 4
    for number, state in enumerate(seen, start=1):
        decay = min(0.25, (1 + number) / (10 + number))
        for name, value in state.items():
            expected[name] = decay * expected[name] + (1 - decay) * value if value.is_floating_point() else value
    assert not one.run.best.exists()
    model = Embedder.from_pretrained(one.run.model)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, expected[name])
    assert not torch.allclose(model.head[1].weight, seen[-1]["head.1.weight"])


def test_what_is_best_is_the_average(vit: list[str], tmp_path: Path) -> None:
    one = trainer(vit, tmp_path / "run", "--ema_decay=0.9")
    evaluated = []
    evaluate = one._evaluate

    def recorded() -> dict[str, float]:
        evaluated.append(one.embedder.head[1].weight.detach().clone())
        return {**evaluate(), "mAP@R": float(len(evaluated))}

    one._evaluate = recorded
    one.fit()
    last = load_checkpoint(one.run.last)
    name = "embedder.head.1.weight"
    assert torch.equal(evaluated[-1], last["average"][name])
    assert torch.equal(load_checkpoint(one.run.best)["module"][name], last["average"][name])
    assert torch.equal(Embedder.from_pretrained(one.run.model).head[1].weight, last["average"][name])
    assert not torch.equal(last["module"][name], last["average"][name])


@pytest.mark.parametrize(
    ("base", "saving"),
    [
        (VIT, CHECKPOINTING),
        (LORA, CHECKPOINTING),
        pytest.param([*VIT, "--model.backbone_args={drop_path_rate: 0.3}"], CHECKPOINTING, marks=pytest.mark.slow),
        (["--model.freeze_batch_norm=statistics"], CHECKPOINTING),
        pytest.param([*VIT, "--micro_batch_size=3"], CHECKPOINTING, marks=pytest.mark.slow),
        (VIT, "--optimizer.fused=true"),
        pytest.param([], "--optimizer.fused=true", marks=pytest.mark.slow),
    ],
)
def test_savings_change_no_gradient(vit: list[str], tmp_path: Path, base: list[str], saving: str) -> None:
    if base == LORA:
        pytest.importorskip("peft")
    plain = gradients(trainer([*vit, *SGD, *base], tmp_path / "plain"))
    assert max(step.abs().max() for step in plain) > 1e-3
    for a, b in zip(plain, gradients(trainer([*vit, *SGD, *base, saving], tmp_path / "saving")), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_checkpointing_keeps_fewer_activations(vit: list[str], tmp_path: Path) -> None:
    kept = []
    for value in ("false", "true"):
        one = trainer([*vit, *VIT, f"--gradient_checkpointing={value}"], tmp_path / value)
        sizes: list[int] = []
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t
        )
        with hooks:
            one.embedder(torch.randn(8, 3, 32, 32))
        kept.append(sum(sizes))
    assert kept[1] < 0.5 * kept[0]


@pytest.mark.slow
def test_a_compiled_backbone_is_the_same(vit: list[str], tmp_path: Path) -> None:
    plain = gradients(trainer([*vit, *SGD, *VIT], tmp_path / "plain"))
    one = trainer([*vit, *SGD, *VIT, "--compile=true"], tmp_path / "compiled")
    for a, b in zip(plain, gradients(one), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    assert "backbone.cls_token" in one.embedder.state_dict()
    images = torch.randn(3, 3, 32, 32)
    one.embedder.save_pretrained(tmp_path / "model")
    expected = Embedder.from_pretrained(tmp_path / "model").embed(images, progress=False)
    np.testing.assert_allclose(one.embedder.embed(images, progress=False), expected, atol=1e-5)


def test_compiling_needs_a_compiler(vit: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpp_builder

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", lambda: (_ for _ in ()).throw(RuntimeError("no g++")))
    refused_call(r"compile = true needs a compiler, .* no g\+\+", trainer, [*vit, "--compile=true"], tmp_path / "run")


def test_learning_rates_decay_by_layer(vit: list[str], tmp_path: Path) -> None:
    more = ["--optimizer.layer_decay=0.5", "--optimizer.lr_factors.head=10", "--schedule.name=constant"]
    one = trainer([*vit, *VIT], tmp_path / "run", *more)
    one.engine.set_learning_rates(epoch=0.0, step=0, num_steps=4)
    rates = {id(p): group["lr"] for group in one.engine.optimizer.param_groups for p in group["params"]}
    backbone = one.embedder.backbone
    expected = {f"blocks.{i}.mlp.fc1.weight": 0.001 * 0.5 ** (6 - i) for i in range(6)}
    expected |= {"cls_token": 0.001 * 0.5**7, "patch_embed.proj.weight": 0.001 * 0.5**7, "norm.weight": 0.0005}
    assert {name: rates[id(backbone.get_parameter(name))] for name in expected} == pytest.approx(expected)
    assert rates[id(one.embedder.head[1].weight)] == pytest.approx(0.01)
    assert len(rates) == len(list(one.embedder.parameters()))
    one.fit()
    log = pd.read_csv(one.run.log)
    assert log["lr backbone"].tolist() == pytest.approx([0.0005] * 4)  # of the last block
    assert len([name for name in log if name.startswith("lr ")]) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([*LORA, "--fine_tuning.targets=[atn.qkv]"], r"fine_tuning: LoRA: targets: test_vit has no layer 'atn.qkv';"),
        (["--fine_tuning.method=last_blocks", "--fine_tuning.blocks=5"], r"fine_tuning: blocks is 5; .* from 1 to 4"),
        (["--gradient_checkpointing=true"], r"gradient_checkpointing = true passes .* set model.freeze_batch_norm to"),
        (
            ["--model.backbone=googlenet", "--optimizer.layer_decay=0.5"],
            r"optimizer.layer_decay = 0.5: googlenet has no group",
        ),
        (
            ["--model.backbone=googlenet", "--model.freeze_batch_norm=all", "--gradient_checkpointing=true"],
            r"gradient_checkpointing = true: googlenet does not support it",
        ),
    ],
)
def test_backbones_that_do_not_allow_it(small: list[str], tmp_path: Path, settings: list[str], message: str) -> None:
    if "lora" in " ".join(settings):
        pytest.importorskip("peft")
    refused_call(message, train, Recipe.load(overrides=[*small, *settings]), tmp_path / "run")
    assert not (tmp_path / "run").exists()
