"""Center-based losses over processes: all centers on each of them, or each with those of a part of the classes."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from tests.conftest import free_port
from tests.losses.batches import Batch
from tests.losses.center_cases import BATCHES, CASES, SHARDED
from tests.losses.gradients import value_and_gradients
from vicinal.losses import CenterBasedLoss, NormSoftmaxLoss
from vicinal.similarity import center_sum
from vicinal.similarity.pair_source import PairSource
from vicinal.utils import distributed
from vicinal.utils.errors import InputError

CLASSES = {"shuffled": 7, "singletons": 5, "many classes": 13}
"""Batches, with odd numbers of classes: shards of unequal sizes."""
CLOSE = {"rtol": 1e-9, "atol": 1e-12}


def run(world: int, folder: Path, block: int | None) -> list[dict[Any, Any]]:
    """The results of each process, with blocks of so many similarities."""
    port = free_port()
    mp.spawn(_process, (world, port, folder, block), nprocs=world)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(world)]


@pytest.mark.slow
@pytest.mark.parametrize(("world", "block"), [(2, None), (3, 20)])
def test_shards(world: int, block: int | None, tmp_path: Path) -> None:
    """Also in blocks of few anchors, which processes with shards of unequal sizes must go over in step."""
    _check_shards(run(world, tmp_path, block))


def _named(*names: str) -> Any:
    return lambda text: f"{', '.join(names)}: {text}"


def _check_shards(found: list[dict[Any, Any]]) -> None:
    """The same value on all; the mean over processes of gradients by embeddings; each shard's gradient by itself.

    Of a batch in parts, and of one that each process has the whole of, as after a gather.
    """
    for case in SHARDED:
        for name, classes in CLASSES.items():
            values, grad_embeddings, by_shards = zip(*(of["sharded", case, name] for of in found), strict=True)
            assert len({value.item() for value in values}) == 1
            got = [values[0], torch.cat(grad_embeddings) / len(found), torch.cat(by_shards)]
            torch.testing.assert_close(got, CASES[case].values(BATCHES[name], classes), **CLOSE, msg=_named(case, name))
            same = [of["same", case, name] for of in found]
            assert len({value.item() for value, *_ in same}) == 1
            got = [same[0][0], sum(by_x for _, by_x, _ in same) / len(found), torch.cat([of[2] for of in same])]
            torch.testing.assert_close(got, CASES[case].values(BATCHES[name], classes), **CLOSE, msg=_named(case, name))
            values = torch.cat([of["values", case, name] for of in found])
            loss = CASES[case].loss(classes, BATCHES[name].embeddings.shape[1]).double()
            torch.testing.assert_close(values, loss.anchor_values(PairSource.from_batch(*BATCHES[name][:2])), **CLOSE)
            _check_sample(case, name, classes, [of["sampled", case, name] for of in found])
    _check_states(found)


def _check_sample(case: str, name: str, classes: int, parts: list[list[Tensor]]) -> None:
    """Each process draws among its own classes; together it is the loss of all that were drawn."""
    batch, (values, grad_embeddings, by_shards) = BATCHES[name], zip(*parts, strict=True)
    grad_centers = torch.cat(by_shards)
    ids = grad_centers.any(dim=1).nonzero()[:, 0]
    if case == "CCL, stopped":  # where others have no gradient
        return
    smaller = CASES[case].loss(len(ids), batch.embeddings.shape[1]).double()
    smaller.centers.data = CASES[case].loss(classes, batch.embeddings.shape[1]).double().centers.data[ids].clone()
    of_sample = batch._replace(labels=torch.searchsorted(ids, batch.labels))
    got = [values[0], torch.cat(grad_embeddings) / len(parts), grad_centers[ids]]
    expected = value_and_gradients(smaller, of_sample, [smaller.centers])
    torch.testing.assert_close(got, expected, **CLOSE, msg=_named(case, name, "sampled"))


def _check_states(found: list[dict[Any, Any]]) -> None:
    whole = _centers()
    sizes = [len(of["shard"]) for of in found]
    assert sizes == ([4, 3] if len(found) == 2 else [3, 3, 1])
    assert torch.equal(torch.cat([of["shard"] for of in found]), whole)
    for of in found:
        assert torch.equal(of["state"]["centers"], whole)
        loss = NormSoftmaxLoss()
        loss.load_state_dict(of["state"])
        assert torch.equal(loss.centers.detach(), whole)
        for name in ("loaded", "loaded without numbers", "set"):
            assert torch.equal(of[name], of["shard"]), name
        assert of["refused"] == [
            f"NormSoftmaxLoss: {len(found) - 1} classes cannot be divided among {len(found)} processes so that each "
            "has some; leave sharded out",
            "NormSoftmaxLoss: sharded centers must be created after the processes were connected",
        ]
        assert of["nothing"] == 0


# In each process ------------------------------------------------------------------------------------------------------


def _process(rank: int, world: int, port: int, folder: Path, block: int | None) -> None:
    torch.set_num_threads(1)
    if block is not None:
        center_sum.tile_elements, center_sum.BLOCK_ROWS = lambda device: block, 1
    early = NormSoftmaxLoss(7, 5, sharded=True)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    found: dict[Any, Any] = {}
    for name, classes in CLASSES.items():
        mine = _part(BATCHES[name], rank, world)
        for case in SHARDED:
            of = CASES[case], classes, mine.embeddings.shape[1]
            found["sharded", case, name] = _values(_sharded(*of), mine)
            found["values", case, name] = _sharded(*of).anchor_values(PairSource.from_distributed_batch(*mine[:2]))
            found["same", case, name] = _values(_sharded(*of), BATCHES[name], gathered=True)
            found["sampled", case, name] = _values(_sharded(*of, sample_rate=0.5), mine)
    found |= _states() | {"refused": _refused(early, world), "nothing": _nothing()}
    torch.save(found, folder / f"{rank}.pt")
    distributed.barrier()
    dist.destroy_process_group()


def _part(batch: Batch, rank: int, world: int) -> Batch:
    size = len(batch.labels) // world
    mine = slice(rank * size, (rank + 1) * size)
    return Batch(batch.embeddings[mine], batch.labels[mine])


def _sharded(case: Any, classes: int, dim: int, **more: Any) -> CenterBasedLoss:
    return case.loss(classes, dim, sharded=True, **more).double()


def _values(loss: CenterBasedLoss, mine: Batch, gathered: bool = False) -> list[Tensor]:
    def of_mine(x: Tensor, labels: Tensor) -> Tensor:
        source = PairSource.from_batch(x, labels) if gathered else PairSource.from_distributed_batch(x, labels)
        return sum(loss.parts(source).values())

    return value_and_gradients(of_mine, mine, list(loss.parameters()))


def _centers() -> Tensor:
    """Of the classes of the tests of states."""
    return torch.cat([torch.eye(5), -torch.eye(5)[:2]])


def _states() -> dict[str, Any]:
    """States that went to and fro, and the centers of this process afterwards."""
    loss, whole = NormSoftmaxLoss(7, 5, sharded=True), NormSoftmaxLoss(7, 5)
    loss.set_centers(torch.arange(7).flip(0), _centers().flip(0))
    whole.set_centers(torch.arange(7), _centers())
    found = {"set": loss.centers.detach(), "state": dict(loss.state_dict())}
    for name, numbers in (("loaded", (7, 5)), ("loaded without numbers", ())):
        other = NormSoftmaxLoss(*numbers, sharded=True)
        other.load_state_dict(whole.state_dict())
        assert torch.equal(other.all_centers(), _centers())
        found[name] = other.centers.detach()
    size = -(-7 // distributed.world_size())
    first = distributed.rank() * size
    return {**found, "shard": _centers()[first : first + size]}


def _refused(early: CenterBasedLoss, world: int) -> list[str]:
    x, labels = torch.randn(4, 5), torch.arange(4)
    messages = []
    for call in (
        lambda: NormSoftmaxLoss(world - 1, 5, sharded=True),
        lambda: early.parts(PairSource.from_distributed_batch(x, labels)),
    ):
        try:
            call()
        except InputError as error:
            messages.append(str(error))
    return messages


def _nothing() -> float:
    loss, x = NormSoftmaxLoss(7, 5, sharded=True), torch.zeros(0, 5, requires_grad=True)
    value = loss.parts(PairSource.from_distributed_batch(x, torch.zeros(0, dtype=torch.int64)))["NormSoftmaxLoss"]
    value.backward()
    assert not loss.centers.grad.any()
    return value.item()
