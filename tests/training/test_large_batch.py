"""In micro-batches a step gives the gradient of one graph over the whole batch, in memory that hardly grows with it."""

import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.losses.gradients import assert_near
from tests.processes import CollectiveCounter, run_groups
from vicinal.data import ImageTransform
from vicinal.losses import ContrastiveLoss, HistogramLoss, Loss, MarginLoss, MultiSimilarityLoss, NTXentLoss
from vicinal.memory import CrossBatchMemory
from vicinal.models import Embedder
from vicinal.training import embed_in_micro_batches
from vicinal.training.training_module import TrainingModule
from vicinal.utils import distributed
from vicinal.utils.errors import InputError

Embed = Callable[[Tensor], Tensor]

RANDOM: dict[str, Any] = {"dropout": 0.3, "backbone_args": {"drop_path_rate": 0.5}}
# Maps of one pixel, which 16 px would end in, get NaN gradients in bfloat16 now and then (torch 2.15, CPU).
IMAGES = torch.randn(10, 3, 32, 32, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 0, 1, 2, 1, 0, 2, 2, 3, 1])


def embedder(freeze_batch_norm: str = "statistics", **more: Any) -> Embedder:
    torch.manual_seed(0)
    transform = ImageTransform(size=32)
    return Embedder(
        "test_resnet", 8, pretrained=False, freeze_batch_norm=freeze_batch_norm, transform=transform, **more
    )


def with_graph(model: nn.Module, images: Tensor, micro_batch_size: int) -> Tensor:
    return torch.cat([model(part) for part in images.split(micro_batch_size)])


def value_and_gradients(
    embed: Embed, model: nn.Module, loss: nn.Module, scale: Embed = lambda value: value, **autocast: Any
) -> list[Tensor]:
    model.zero_grad()
    loss.zero_grad()
    torch.manual_seed(1)
    with torch.autocast("cpu", **autocast) if autocast else nullcontext():
        value = loss(embed(IMAGES), LABELS)
    scale(value).backward()
    return [value.detach(), *gradients(model), *gradients(loss)]


def gradients(module: nn.Module) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in module.parameters()]


def both_ways(
    model: nn.Module, loss: nn.Module, micro_batch_size: int, **more: Any
) -> tuple[list[Tensor], list[Tensor]]:
    ours = value_and_gradients(lambda x: embed_in_micro_batches(model, x, micro_batch_size), model, loss, **more)
    return ours, value_and_gradients(lambda x: with_graph(model, x, micro_batch_size), model, loss, **more)


@pytest.mark.parametrize("micro_batch_size", [1, 4, 10])
def test_dropout_and_stochastic_depth_are_the_same_in_both_passes(micro_batch_size: int) -> None:
    model = embedder(**RANDOM)
    ours, expected = both_ways(model, MultiSimilarityLoss(), micro_batch_size)
    assert_near(ours, expected, 1e-6)
    again = value_and_gradients(model, model, MultiSimilarityLoss())
    assert (ours[0] == again[0]) == (micro_batch_size >= 10)  # other micro-batches, other random numbers


@pytest.mark.parametrize("micro_batch_size", [1, 3, None])
def test_without_randomness_it_is_a_plain_step(micro_batch_size: int | None) -> None:
    model, loss = embedder().double(), MultiSimilarityLoss()
    ours = value_and_gradients(lambda x: embed_in_micro_batches(model, x.double(), micro_batch_size), model, loss)
    assert_near(ours, value_and_gradients(lambda x: model(x.double()), model, loss), 1e-12)


LOSSES: dict[str, Callable[[], Loss]] = {
    "multi-similarity": MultiSimilarityLoss,
    "beta learned, drawn": lambda: MarginLoss(nu=0.1),
    "beta per class": lambda: MarginLoss(num_classes=4, miner=None),
    "memory": lambda: CrossBatchMemory(ContrastiveLoss(), size=17),
    "sum": lambda: 0.5 * ContrastiveLoss() + 2 * MarginLoss() + 0.1 * HistogramLoss(bins=10),
}


@pytest.mark.parametrize("name", LOSSES)
def test_any_loss(name: str) -> None:
    """Over steps, since some losses remember."""
    model, ours, theirs = embedder(**RANDOM), LOSSES[name](), LOSSES[name]()
    for _ in range(3):
        got = value_and_gradients(lambda x: embed_in_micro_batches(model, x, 4), model, ours)
        assert_near(got, value_and_gradients(lambda x: with_graph(model, x, 4), model, theirs), 1e-6)


def test_images_get_their_gradient_too() -> None:
    model = embedder(**RANDOM)
    found = []
    for embed in (embed_in_micro_batches, with_graph):
        torch.manual_seed(1)
        x = IMAGES.clone().requires_grad_()
        found.append(torch.autograd.grad(MultiSimilarityLoss()(embed(model, x, 4), LABELS), x))
    assert_near(found[0], found[1], 1e-6)


def test_two_batches_in_one_loss() -> None:
    """What is repeated for one batch is not a business of the other, nor of a plain pass of the same model."""
    model = embedder(**RANDOM)

    def step(embed: Embed) -> list[Tensor]:
        def embed_three(x: Tensor) -> Tensor:
            return embed(x) + model(x.flip(0)) + embed(2 * x)

        return value_and_gradients(embed_three, model, MultiSimilarityLoss())

    ours = step(lambda x: embed_in_micro_batches(model, x, 4))
    assert_near(ours, step(lambda x: with_graph(model, x, 4)), 1e-6)


def test_without_gradients_it_only_embeds() -> None:
    model = embedder()
    with torch.no_grad():
        vectors = embed_in_micro_batches(model, IMAGES, 4)
    assert not vectors.requires_grad
    assert torch.equal(vectors, with_graph(model, IMAGES, 4))


class _Counting(nn.Module):
    """A layer that depends on buffers: one that is changed in place, and one that is replaced."""

    count: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.utils.parametrizations.spectral_norm(nn.Linear(3072, 8))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.scale = self.scale * 1.1
        return self.linear(x.flatten(1)) + self.count * self.scale


@pytest.mark.filterwarnings("ignore:batch normalization")
@pytest.mark.parametrize(
    "make", [lambda: embedder(freeze_batch_norm="none"), _Counting], ids=["batch norm", "counting"]
)
def test_buffers_take_part_and_end_as_after_one_pass(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = make()
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ours = value_and_gradients(lambda x: embed_in_micro_batches(model, x, 4), model, MultiSimilarityLoss())
    ended = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.load_state_dict(start)
    assert_near(ours, value_and_gradients(lambda x: with_graph(model, x, 4), model, MultiSimilarityLoss()), 1e-6)
    assert any(not torch.equal(start[name], buffer) for name, buffer in ended.items() if name in start)
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(ended[name], buffer, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("make", [lambda: embedder(**RANDOM), _Counting], ids=["random", "counting"])
def test_gradients_that_are_asked_for_and_asked_for_again(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, loss = make(), MultiSimilarityLoss()
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(1)
    value = loss(embed_in_micro_batches(model, IMAGES, 4), LABELS)
    found = [torch.autograd.grad(value, list(model.parameters()), retain_graph=True) for _ in range(2)]
    model.load_state_dict(start)
    expected = value_and_gradients(lambda x: with_graph(model, x, 4), model, loss)[1:]
    for gradient in found:
        assert_near(gradient, expected, 1e-6)


def test_the_backward_pass_leaves_the_generator_as_it_was() -> None:
    model = embedder(**RANDOM)
    value = MultiSimilarityLoss()(embed_in_micro_batches(model, IMAGES, 4), LABELS)
    torch.rand(1)
    state = torch.get_rng_state()
    value.backward()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_images_come_from_the_cpu_part_by_part() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(3072, 8)).cuda()
    seen = []
    model.register_forward_pre_hook(lambda _, arguments: seen.append((arguments[0].device.type, len(arguments[0]))))
    found = []
    for embed in (lambda x: embed_in_micro_batches(model, x, 4), lambda x: with_graph(model, x.cuda(), 4)):
        model.zero_grad()
        torch.manual_seed(1)
        MultiSimilarityLoss()(embed(IMAGES), LABELS.cuda()).backward()
        found.append(gradients(model))
    assert seen[:6] == 2 * [("cuda", 4), ("cuda", 4), ("cuda", 2)]
    assert_near(found[0], found[1], 1e-5)


@pytest.mark.parametrize("which", ["images", "weights"])
def test_what_the_second_pass_needs_must_not_be_changed_before_it(which: str) -> None:
    model, images = embedder(), IMAGES.clone()
    value = MultiSimilarityLoss()(embed_in_micro_batches(model, images, 4), LABELS)
    with torch.no_grad():
        (images if which == "images" else model.head[1].weight).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


def test_both_passes_have_the_same_precision() -> None:
    model, loss = embedder(**RANDOM), MultiSimilarityLoss()
    # With the cache, which casts a weight once for the whole graph, its gradients are added up in half precision.
    ours, expected = both_ways(model, loss, 4, dtype=torch.bfloat16, cache_enabled=False)
    assert_near(ours, expected, 1e-6)
    precise, _ = both_ways(model, loss, 4)
    assert not torch.equal(ours[0], precise[0])
    assert ours[0].dtype == torch.float32


def test_the_loss_is_scaled_once() -> None:
    model, loss = embedder(**RANDOM), MarginLoss(miner=None)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    ours, expected = both_ways(model, loss, 4, dtype=torch.float16, cache_enabled=False, scale=scaler.scale)
    assert_near(ours, expected, 1e-6)
    unscaled, _ = both_ways(model, loss, 4)
    assert_near([gradient / 1024 for gradient in ours[1:]], unscaled[1:], 0.05)


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of all tensors that were made in this context and are still alive; views of images are not."""

    def __init__(self, images: Tensor) -> None:
        super().__init__()
        self.images = images
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else None
            if storage is not None and storage.data_ptr() != self.images.data_ptr():
                self.alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.alive = {key: (ref, size) for key, (ref, size) in self.alive.items() if not ref.expired()}
        self.peak = max(self.peak, sum(size for _, size in self.alive.values()))
        return result


class _ClassToken(nn.Module):
    """Embeddings that are a small part of what the network makes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.flatten(1, 2))[:, 0]


def peak_of_a_step(embed: Callable[[nn.Module, Tensor, int], Tensor], model: nn.Module, batch_size: int) -> int:
    images = torch.randn(batch_size, 3, 32, 32)
    model.zero_grad()
    with PeakMemory(images) as memory:
        embed(model, images, 4).square().sum().backward()
    return memory.peak


@pytest.mark.parametrize(
    "make",
    [_ClassToken, pytest.param(lambda: embedder(**RANDOM), marks=pytest.mark.slow)],
    ids=["class token", "ResNet"],
)
def test_only_embeddings_grow_with_the_batch(make: Callable[[], nn.Module]) -> None:
    model = make()
    small, large = (peak_of_a_step(embed_in_micro_batches, model, batch) for batch in (12, 60))
    of_embeddings = 4 * model(IMAGES).shape[1]
    assert large - small <= 4 * 48 * of_embeddings  # embeddings and their gradients, at most two of each at once
    small, large = (peak_of_a_step(with_graph, model, batch) for batch in (12, 60))
    assert large - small > 48 * 100 * of_embeddings


def test_batch_norm_in_training_is_warned_of_once() -> None:
    model = embedder(freeze_batch_norm="none")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        embed_in_micro_batches(embedder(freeze_batch_norm="statistics"), IMAGES, 4)
        embed_in_micro_batches(model, IMAGES, 10)
        embed_in_micro_batches(model.eval(), IMAGES, 4)
    with pytest.warns(UserWarning, match=r"sees 4 images at a time and not all 10: .*freeze it") as caught:
        embed_in_micro_batches(model.train(), IMAGES, 4)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        embed_in_micro_batches(model, IMAGES, 4)
    with pytest.warns(UserWarning, match="batch normalization"):
        embed_in_micro_batches(
            nn.Sequential(nn.Flatten(), nn.BatchNorm1d(3072, track_running_stats=False)).eval(), IMAGES, 4
        )


def test_what_is_refused() -> None:
    for size in (0, -1, 2.0, True, "4"):
        with pytest.raises(InputError, match=r"micro_batch_size = .* must be a whole number, at least 1"):
            embed_in_micro_batches(embedder(), IMAGES, size)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"the model must give a tensor \[m, d\], not a tuple"):
        embed_in_micro_batches(nn.LSTM(3, 3), torch.randn(4, 3), 2)


STEPS = 2


def steps(
    system: TrainingModule, model: nn.Module, mine: slice, accumulate_grad_batches: bool
) -> dict[str, list[Tensor]]:
    """Some steps of training, each of one batch, or of two whose gradients are added up."""
    optimizer = torch.optim.SGD(system.parameters(), lr=0.1)
    found: dict[str, list[Tensor]] = {"loss": [], "gradient": []}
    for step in range(STEPS):
        for last in (False, True) if accumulate_grad_batches else (True,):
            images = torch.randn(10, 3, 32, 32, generator=torch.Generator().manual_seed(2 * step + last)).double()
            wait = isinstance(model, DistributedDataParallel) and not last
            with model.no_sync() if wait else nullcontext():
                value = torch.stack(list(model(images[mine], LABELS.roll(step)[mine]).values())).sum()
                value.backward()
            found["loss"].append(distributed.all_reduce_mean(value.detach()))
        found["gradient"] += gradients(system)
        optimizer.step()
        optimizer.zero_grad()
    return found


CASES = [(name, *how) for name in LOSSES for how in ((False, False), (True, False), (True, True))]
"""Loss, whether gradients are accumulated, whether the backbone is frozen."""


def system(case: tuple[str, bool, bool], micro_batch_size: int | None) -> TrainingModule:
    made = TrainingModule(embedder(), LOSSES[case[0]](), micro_batch_size).double()
    made.embedder.backbone.requires_grad_(not case[2])
    return made


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    """With as many messages as a plain step."""
    first, second = run_groups(_process, (2,), tmp_path)[2]
    for case in CASES:
        plain = system(case, None)
        expected = steps(plain, plain, slice(None), case[1])
        for got in (first[case], second[case]):
            assert_near(got["loss"], expected["loss"], 1e-9)
            assert_near(got["gradient"], expected["gradient"], 1e-9)
        assert first[case]["loss"] == second[case]["loss"], case  # the very same number
    for result in (first, second):
        assert result["messages"][0] == result["messages"][1] != {}
        assert "inside the module that DistributedDataParallel wraps" in result["wrapped"]


def _process(rank: int, _: int) -> dict[Any, Any]:
    mine = slice(5 * rank, 5 * rank + 5)
    result: dict[Any, Any] = {"messages": [_messages(size, mine) for size in (None, 2)]}
    for case in CASES:
        ours = system(case, micro_batch_size=2)
        wrapped = DistributedDataParallel(ours, find_unused_parameters=case[2])
        result[case] = steps(ours, wrapped, mine, case[1])
    try:
        embed_in_micro_batches(wrapped, IMAGES, 2)
    except InputError as error:
        result["wrapped"] = str(error)
    return result


def _messages(micro_batch_size: int | None, mine: slice) -> dict[str, int]:
    """All that steps send: the bytes of each operation."""
    ours = system(("beta per class", False, False), micro_batch_size)
    wrapped = DistributedDataParallel(ours)
    steps(ours, wrapped, mine, accumulate_grad_batches=True)  # buckets are arranged after the first step
    with CollectiveCounter() as counter:
        steps(ours, wrapped, mine, accumulate_grad_batches=True)
    sizes: Counter[str] = Counter()
    for name, size in counter.messages:
        sizes[name] += size
    return dict(sizes)


def test_modes_changed_before_the_backward_pass_do_not_matter() -> None:
    """Between the two passes a model may be put into evaluation, which must change nothing."""
    gradients = []
    for evaluated_between in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 4))
        embeddings = embed_in_micro_batches(model, torch.randn(12, 6), 5)
        model.train(not evaluated_between)
        NTXentLoss()(embeddings, torch.arange(12) // 2).backward()
        assert model[1].training is not evaluated_between
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)
