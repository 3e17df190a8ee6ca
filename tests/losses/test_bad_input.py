"""Every loss with nasty input: an error of one line, or a finite value; never an error of torch or Python."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.losses.every_loss import DIM, EVERY_LOSS, KINDS
from vicinal import mining
from vicinal.losses import CenterBasedLoss, ContrastiveLoss, CrossEntropyLoss, Loss, NormSoftmaxLoss, WeightedSum
from vicinal.memory import CrossBatchMemory
from vicinal.mining import HardestMiner, Miner
from vicinal.mixing import SiMix
from vicinal.similarity import PairSource
from vicinal.utils.errors import InputError
from vicinal.weighting import EqualWeights, LossWeights, WeightedPairLoss

X = torch.randn(8, DIM, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
SAME = Y[:, None] == Y

REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "a list of embeddings": ((X.tolist(), Y), r"^embeddings must be a tensor, not list; convert it"),
    "an array of embeddings": ((X.numpy(), Y), r"^embeddings must be a tensor, not ndarray"),
    "no embeddings": ((None, Y), r"^embeddings must be a tensor, not NoneType"),
    "embeddings of 1 dimension": ((X[0], Y), r"^embeddings must be float \[n, d\], not torch.float32 \[8\]$"),
    "embeddings of 3 dimensions": ((X[None], Y), r"^embeddings must be float \[n, d\]"),
    "embeddings without entries": ((X[:, :0], Y), r"^embeddings must be float \[n, d\]"),
    "integer embeddings": ((X.long(), Y), r"^embeddings must be float \[n, d\], not torch.int64"),
    "complex embeddings": ((X.to(torch.complex64), Y), r"^embeddings must be float \[n, d\]"),
    "sparse embeddings": ((X.to_sparse(), Y), r"^embeddings must be a dense tensor, not torch.sparse_coo$"),
    "embeddings on meta": ((X.to("meta"), Y), r"^embeddings must be a dense tensor, not on the device meta"),
    "a list of labels": ((X, Y.tolist()), r"^labels must be a tensor, not list; convert it with torch.as_tensor$"),
    "an array of labels": ((X, Y.numpy()), r"^labels must be a tensor, not ndarray"),
    "text as labels": ((X, ["a"] * 8), r"^labels must be a tensor, not list"),
    "one number as labels": ((X, 3), r"^labels must be a tensor, not int"),
    "no labels": ((X,), r"^labels must be int \[8\], one for each row of embeddings, not None$"),
    "float labels": ((X, Y.float()), r"^labels must be int \[8\]"),
    "labels of 2 dimensions": ((X, Y[:, None]), r"^labels must be int \[8\]"),
    "labels of 0 dimensions": ((X, torch.tensor(3)), r"^labels must be int \[8\]"),
    "too few labels": ((X, Y[:3]), r"^labels must be int \[8\]"),
    "sparse labels": ((X, Y.to_sparse()), r"^labels must be a dense tensor"),
    "labels on meta": ((X, Y.to("meta")), r"^labels must be a dense tensor, not on the device meta"),
    "a list of references": ((X, Y, X.tolist(), Y), r"^references must be a tensor, not list"),
    "a list of their labels": ((X, Y, X, Y.tolist()), r"^reference_labels must be a tensor, not list"),
    "references on meta": ((X, Y, X.to("meta"), Y), r"^references must be a dense tensor"),
    "text as offset": ((X, Y, X, Y, "0"), r"^offset = '0' must be a whole number, or None$"),
    "a float as offset": ((X, Y, X, Y, 0.0), r"^offset = 0.0 must be a whole number"),
}
REFUSED_PAIRS: dict[str, tuple[dict[str, Any], str]] = {
    "a list as mask": ({"positive": SAME.tolist()}, r"^positive must be a tensor, not list"),
    "numbers as mask": ({"positive": SAME.long()}, r"^positive must be bool \[8, 8\]"),
    "a mask on meta": ({"positive": SAME.to("meta")}, r"^positive must be a dense tensor"),
    "a list as negative mask": ({"positive": SAME, "negative": (~SAME).tolist()}, r"^negative must be a tensor"),
    "text as relation": ({"relation": "same"}, r"^relation must be a function of two tensors of labels, not str$"),
}
BAD_RELATIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "nothing": (lambda a, b: None, r"^the result of relation must be a tensor, not NoneType"),
    "another shape": (lambda a, b: SAME[:2], r"^relation must return bool \[8, 8\], not torch.bool \[2, 8\]$"),
    "numbers": (lambda a, b: SAME.long(), r"^relation must return bool \[8, 8\], not torch.int64"),
    "a tensor on meta": (lambda a, b: SAME.to("meta"), r"^the result of relation must be a dense tensor"),
}


@pytest.mark.parametrize("name", EVERY_LOSS)
def test_refused_in_one_line(name: str) -> None:
    loss = EVERY_LOSS[name]()
    for case, (arguments, message) in REFUSED.items():
        with pytest.raises(InputError, match=message) as error:
            loss(*arguments)
        assert "\n" not in str(error.value), case
    for pairs, message in REFUSED_PAIRS.values():
        with pytest.raises(InputError, match=message):
            loss(X, Y, **pairs)


@pytest.mark.parametrize("case", BAD_RELATIONS)
def test_relations_that_return_something_else(case: str) -> None:
    relation, message = BAD_RELATIONS[case]
    with pytest.raises(InputError, match=message):
        ContrastiveLoss()(X, Y, relation=relation)


@pytest.mark.parametrize("name", EVERY_LOSS)
def test_labels_of_every_integer_type(name: str) -> None:
    """Also the unsigned ones, for which torch has few operations."""
    for dtype in (torch.int8, torch.int16, torch.int32, torch.uint8, torch.uint16, torch.uint32, torch.uint64):
        values = []
        for labels in (Y, Y.to(dtype)):
            torch.manual_seed(0)
            loss = EVERY_LOSS[name]()
            values.append(loss(X, labels))
            if loss.supports_references and name != "CrossBatchMemory":
                values[-1] = values[-1] + EVERY_LOSS[name]()(X, labels, X, labels, 0)
        assert torch.equal(*values)


def test_labels_above_the_largest_int64_are_labels_too() -> None:
    large = torch.tensor([2**64 - 1, 2**64 - 1, 2**63, 2**63, 7, 7, 0, 0], dtype=torch.uint64)
    assert torch.equal(ContrastiveLoss()(X, large), ContrastiveLoss()(X, Y))
    with pytest.raises(InputError, match=r"^NormSoftmaxLoss: labels from .* are not all in 0 \.\.\. 3"):
        NormSoftmaxLoss(4, DIM)(X, large)


def test_a_loss_on_another_device_than_the_embeddings() -> None:
    message = r"^CrossEntropyLoss: centers is on meta and the embeddings on cpu; move the loss"
    loss = CrossEntropyLoss(4, DIM).to("meta")
    with pytest.raises(InputError, match=message):
        loss(X, Y)
    with pytest.raises(InputError, match=message):
        loss.anchor_values(PairSource.from_batch(X, Y))


# Arguments ------------------------------------------------------------------------------------------------------------

VALUES = [
    "x",
    [1],
    {},
    None,
    10**400,
    1e400,
    math.nan,
    -1,
    0.5,
    2.5,
    True,
    torch.ones(1),
    10**30,
    1e300,
    1e-300,
    object,
]
MINERS = {name: value for name, value in vars(mining).items() if inspect.isclass(value) and issubclass(value, Miner)}
OTHERS = {kind.__name__: kind for kind in (CrossBatchMemory, SiMix, WeightedPairLoss, LossWeights, WeightedSum)}
CLASSES: dict[str, type] = {
    **KINDS,
    **{name: kind for name, kind in MINERS.items() if not inspect.isabstract(kind)},
    **OTHERS,
}
NEEDED: dict[str, Any] = {
    "loss": ContrastiveLoss(),
    "size": 10,
    "rule": EqualWeights(),
    "losses": [ContrastiveLoss()],
    "weights": [1.0],
    "miners": [HardestMiner()],
    "first": HardestMiner(),
    "second": HardestMiner(),
}


@pytest.mark.parametrize("name", CLASSES)
def test_arguments_are_refused_or_give_a_finite_loss(name: str) -> None:
    kind = CLASSES[name]
    parameters = inspect.signature(kind).parameters
    needed = {key: NEEDED[key] for key, each in parameters.items() if each.default is each.empty}
    if issubclass(kind, CenterBasedLoss):
        needed = {"num_classes": 4, "dim": DIM}
    messages = []
    for key in parameters:
        for value in VALUES:
            try:
                made = kind(**{**needed, key: value})
                result = made(X, Y) if isinstance(made, Loss) else torch.zeros(())
            except InputError as error:
                messages.append(str(error))
            else:
                assert result.isfinite(), (key, value)
    assert all(len(message) < 300 and "\n" not in message for message in messages)
