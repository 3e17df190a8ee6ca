"""S2SD against its definition, written sample by sample, and on its way through training."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from tests.losses import references
from tests.losses.batches import Batch, nasty_batches
from tests.losses.gradients import assert_near
from tests.losses.miner_references import multi_similarity as mined
from tests.refusals import refused_call
from tests.training.runs import assert_same_run, interrupted, trainer
from vicinal import distillation
from vicinal.data import ImageTransform
from vicinal.distillation import S2SD
from vicinal.losses import (
    CenterBasedLoss,
    CenterContrastiveLoss,
    ContrastiveLoss,
    CrossEntropyLoss,
    Loss,
    MultiSimilarityLoss,
    NormSoftmaxLoss,
    ProxyAnchorLoss,
    RecallAtKLoss,
)
from vicinal.memory import CrossBatchMemory
from vicinal.mixing import SiMix
from vicinal.models import Embedder
from vicinal.similarity.pair_source import PairSource
from vicinal.training import Recipe, resume, train
from vicinal.training.class_centers import read_centers
from vicinal.training.training_module import TrainingModule
from vicinal.utils.errors import InputError

BATCHES = {name: batch for name, batch in nasty_batches().items() if batch.references is None}
F = 6


def features_of(batch: Batch) -> Tensor:
    """A function of the embeddings, so that equal ones have equal features; some entries are far from 0."""
    x = batch.embeddings
    mix = torch.randn(x.shape[1], F, generator=torch.Generator().manual_seed(3), dtype=x.dtype)
    return (x @ mix) + (x @ mix.flip(0)).sin()


def made(loss: Loss, dims: tuple[int, ...] = (7, 9), **arguments: float) -> S2SD:
    torch.manual_seed(0)
    return S2SD(loss, dims, F, **{"feature_warmup": 0, **arguments}).double()


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=1, keepdim=True).clamp_min(1e-3)


def divergence(x: Tensor, target: Tensor, temperature: float) -> Tensor:
    """`temperature^2 KL` of the similarities of each sample, averaged over them; the target is a constant."""
    target = unit(target.detach())
    terms = []
    for i in range(len(x)):
        p = torch.softmax(torch.stack([unit(x)[i] @ y for y in unit(x)]) / temperature, 0)
        q = torch.softmax(torch.stack([target[i] @ y for y in target]) / temperature, 0)
        terms.append(sum(q[k] * (q[k].log() - p[k].log()) for k in range(len(x))))
    return temperature**2 * sum(terms) / len(terms)


def by_hand(
    loss: S2SD, batch: Batch, features: Tensor, temperature: float, weight: float, feature_weight: float
) -> Tensor:
    def base(x: Tensor) -> Tensor:
        anchors = references.anchors_of(Batch(x, batch.labels))
        return references.multi_similarity([mined(anchor) for anchor in anchors])

    total = base(batch.embeddings) / 2
    for first, _, last in loss.heads:
        target = torch.relu(features @ first.weight.T + first.bias) @ last.weight.T + last.bias
        total = total + base(target) / (2 * len(loss.heads))
        total = total + weight * divergence(batch.embeddings, target, temperature) / len(loss.heads)
    return total + feature_weight * divergence(batch.embeddings, features, temperature)


@pytest.mark.parametrize(
    ("temperature", "weight", "feature_weight"), [(1.0, 50.0, 50.0), (0.1, 3.0, 7.0)], ids=["default", "other"]
)
def test_value_and_gradients_are_the_definition(
    temperature: float, weight: float, feature_weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of embeddings, features and heads, in one tile and in several."""
    constants = {"temperature": temperature, "weight": weight, "feature_weight": feature_weight}
    for name, batch in BATCHES.items():
        loss, features = made(MultiSimilarityLoss(), **constants), features_of(batch)
        if name == "many classes":
            continue

        def formula(x: Tensor, labels: Tensor, *, features: Tensor, loss: S2SD = loss) -> Tensor:
            return by_hand(loss, Batch(x, labels), features, **constants)

        expected = value_and_gradients(formula, batch, features, loss)
        for rows in (100, 2):
            monkeypatch.setattr(distillation, "default_tile_rows", lambda *_, rows=rows: rows)
            got = value_and_gradients(loss, batch, features, loss)
            torch.testing.assert_close(
                got, expected, rtol=1e-8, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}"
            )


def value_and_gradients(formula: Callable[..., Tensor], batch: Batch, features: Tensor, loss: Loss) -> list[Tensor]:
    inputs = [batch.embeddings.clone().requires_grad_(), features.clone().requires_grad_()]
    value = formula(inputs[0], batch.labels, features=inputs[1])
    inputs += loss.parameters()
    return [value.detach(), *torch.autograd.grad(value, inputs, allow_unused=True, materialize_grads=True)]


def test_a_second_derivative_is_refused_rather_than_wrong() -> None:
    batch = BATCHES["unequal classes"]
    x = batch.embeddings.clone().requires_grad_()
    target = PairSource.from_batch(features_of(batch), batch.labels)
    value = distillation.distillation(PairSource.from_batch(x, batch.labels), [target], 0.2)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(value, x, create_graph=True)


def test_features_are_distilled_after_their_warmup() -> None:
    batch = BATCHES["unequal classes"]
    loss = made(MultiSimilarityLoss(), feature_warmup=2)
    source = PairSource.from_batch(*batch[:2], features=features_of(batch))
    loss.eval()
    assert loss.parts(source)["feature distillation"] == 0  # evaluation is not counted
    loss.train()
    seen = [loss.parts(source)["feature distillation"].item() for _ in range(2)]
    restored = made(MultiSimilarityLoss(), feature_warmup=2)
    restored.load_state_dict(loss.state_dict())
    assert seen == [0, 0]
    assert restored.parts(source)["feature distillation"] == loss.parts(source)["feature distillation"] > 0
    none = made(MultiSimilarityLoss(), feature_weight=0.0)
    assert none.parts(source)["feature distillation"] == 0


@pytest.mark.parametrize(
    "kind", [NormSoftmaxLoss, CenterContrastiveLoss, CrossEntropyLoss, ProxyAnchorLoss], ids=lambda kind: kind.__name__
)
def test_every_head_has_centers_of_its_own(kind: type[CenterBasedLoss]) -> None:
    x, labels, features = torch.randn(8, 5), torch.arange(8) % 4, torch.randn(8, F)
    loss = S2SD(kind(4, 5), (7, 9), F)
    assert [head.centers.shape[1] for head in loss.head_losses] == [7, 9]
    value = loss(x, labels, features=features)
    value.backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in loss.parameters())


@pytest.mark.parametrize("inner", [lambda: SiMix(RecallAtKLoss()), lambda: CrossBatchMemory(ContrastiveLoss(), 20)])
def test_around_other_wrappers(inner) -> None:
    loss, batch = made(inner()), BATCHES["unequal classes"]
    for _ in range(2):
        x = batch.embeddings.clone().requires_grad_()
        loss(x, batch.labels, features=features_of(batch)).backward()
        assert x.grad.isfinite().all()
        assert x.grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_finite_for_every_finite_input(dtype: torch.dtype) -> None:
    autocast = torch.float16 if dtype == torch.float16 else torch.bfloat16
    for name, batch in BATCHES.items():
        for scale, of_features in ((1e-30, 1.0), (1.0, 0.0), (3e38, 1e4), (1.0, 1e15)):
            length, far = (min(each, torch.finfo(dtype).max) for each in (scale, of_features))
            x = (batch.embeddings / batch.embeddings.abs().max() * length).to(dtype).requires_grad_()
            features = features_of(batch)
            features = (features / features.abs().max() * far).to(dtype).requires_grad_()
            with torch.autocast("cpu", dtype=autocast):
                value = made(MultiSimilarityLoss(), temperature=0.01).float()(x, batch.labels, features=features)
            gradients = torch.autograd.grad(value, (x, features))
            assert value.dtype == torch.float32
            assert value.isfinite(), (name, scale)
            assert all(gradient.isfinite().all() and gradient.dtype == dtype for gradient in gradients), (name, scale)


def test_nothing_to_compare_is_zero() -> None:
    x, features = torch.zeros(0, 3, requires_grad=True), torch.zeros(0, F)
    value = made(MultiSimilarityLoss()).float()(x, torch.zeros(0, dtype=torch.int64), features=features)
    value.backward()
    assert value == 0


X, LABELS = torch.eye(4), torch.tensor([0, 0, 1, 1])


def test_mistakes() -> None:
    for make, message in (
        (lambda: S2SD(3), "^S2SD: loss must be a loss other than S2SD, not 3"),
        (lambda: S2SD(S2SD(ContrastiveLoss())), "^S2SD: loss must be a loss other than S2SD"),
        (lambda: S2SD(ContrastiveLoss(), dims=[]), "^S2SD: dims = .* at least one$"),
        (lambda: S2SD(ContrastiveLoss(), dims=8), "^S2SD: dims is 8; give a list of dimensions"),
        (lambda: S2SD(ContrastiveLoss(), dims=[8, 0]), r"^S2SD: dims = \[8, 0\] must be whole numbers from 1 to"),
        (lambda: S2SD(ContrastiveLoss(), dims=[10**7]), "whole numbers from 1 to 65,536"),
        (lambda: S2SD(ContrastiveLoss(), in_features=0), "^S2SD: in_features = 0 must be at least 1"),
        (lambda: S2SD(ContrastiveLoss(), temperature=0.0), "^S2SD: temperature = 0.0 must be positive"),
        (lambda: S2SD(ContrastiveLoss(), weight=-1.0), "^S2SD: weight = -1.0 must be at least 0"),
        (lambda: S2SD(ContrastiveLoss(), feature_warmup=1.5), "^S2SD: feature_warmup = 1.5 must be a whole number"),
        (lambda: S2SD(ContrastiveLoss(), [8])(X, LABELS, features=X), "^S2SD: in_features is missing; only a recipe"),
        (lambda: S2SD(ContrastiveLoss(), [8], 4)(X, LABELS), "^S2SD: the features .* are missing"),
        (lambda: S2SD(ContrastiveLoss(), [8], 3)(X, LABELS, features=X), "^S2SD: features have 4 dimensions, not 3"),
        (lambda: S2SD(ContrastiveLoss(), [8], 4)(X, LABELS, features=X[:3]), r"^features must be float \[4, f\]"),
        (lambda: S2SD(ContrastiveLoss(), [8], 4)(X, LABELS, features=[1]), "^features must be a tensor, not list"),
        (lambda: S2SD(ContrastiveLoss(), [8], 4)(X, LABELS, X, LABELS, features=X), "^S2SD: references have no featur"),
        (lambda: S2SD(ContrastiveLoss(), [8], 4).create_heads(5), "^S2SD: in_features = 4 does not fit; it must be 5"),
        (lambda: CrossBatchMemory(S2SD(ContrastiveLoss()), 8), "^CrossBatchMemory: S2SD cannot compare with a memory"),
        (lambda: SiMix(S2SD(ContrastiveLoss())), "not S2SD$"),
    ):
        refused_call(message, make)


def module(micro_batch_size: int | None) -> TrainingModule:
    torch.manual_seed(0)
    embedder = Embedder(
        "test_resnet",
        8,
        pretrained=False,
        freeze_batch_norm="statistics",
        transform=ImageTransform(size=32),
        dropout=0.2,
    )
    loss = S2SD(MultiSimilarityLoss(miner=None), dims=[12, 16], feature_warmup=0) + ContrastiveLoss()
    return TrainingModule(embedder, loss, micro_batch_size).double()


def step(made: TrainingModule) -> list[Tensor]:
    images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.manual_seed(1)
    value = torch.stack(list(made(images, torch.arange(8) // 2).values())).sum()
    value.backward()
    return [value.detach(), *(parameter.grad for parameter in made.parameters())]


def test_micro_batches_change_nothing() -> None:
    """The gradient of features and embeddings goes through one second pass."""
    embedder = module(None).embedder
    assert embedder.features_in_training
    whole, micro = module(None), module(3)
    for made in (whole, micro):
        made.embedder.head[2].p = 0.0  # other micro-batches draw other random numbers
    assert_near(step(micro), step(whole), 1e-10)
    assert all(parameter.grad.any() for parameter in micro.loss.losses[0].heads.parameters())


def test_features_are_those_that_the_head_gets() -> None:
    embedder = module(None).embedder.float()
    images = torch.randn(4, 3, 32, 32)
    embedder.head[2].p = 0.0
    vectors, features = embedder.split_output(embedder(images))
    assert vectors.shape == (4, 8)
    assert features.shape == (4, embedder.num_features)
    torch.testing.assert_close(nn.functional.normalize(embedder.head(features)), vectors)
    assert embedder.eval()(images).shape == (4, 8)


def test_selected_samples_and_other_features_are_refused(small: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^sample_selection: a loss that uses features"):
        trainer([*small, *S2SD_SETTINGS], tmp_path, "--sample_selection.method=prism")
    with pytest.raises(InputError, match=r"^S2SD: in_features = 3 does not fit; it must be "):
        trainer([*small, *S2SD_SETTINGS], tmp_path, "--loss.in_features=3")


S2SD_SETTINGS = ["--loss=S2SD", "--loss.loss=NormSoftmaxLoss", "--loss.dims=[12, 16]", "--loss.feature_warmup=2"]


def test_a_run_resumes_and_leaves_the_heads_out_of_the_model(small: list[str], tmp_path: Path) -> None:
    settings = [*small, *S2SD_SETTINGS]
    whole = train(Recipe.load(overrides=settings), tmp_path / "whole")
    assert_same_run(resume(interrupted(settings, tmp_path / "stopped", 3).path), whole)
    log = pd.read_csv(whole.log)
    assert {"NormSoftmaxLoss", "NormSoftmaxLoss (heads)", "distillation", "feature distillation"} < set(log)
    assert (log["feature distillation"][:2] == 0).all()
    assert (log["feature distillation"][2:] > 0).all()
    assert not any("heads" in name for name in Embedder.from_pretrained(whole.model).state_dict())
    assert list(read_centers(whole.centers).tensors) == ["loss.centers"]
