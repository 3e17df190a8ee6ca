import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.refiner_reference import PAPER, cross_attention, looked_at, neighborhoods, reference, trained
from tests.refusals import refused_call
from vicinal.models import ContextRefiner

SHAPES = [(6, 1, 1, 3), (6, 2, 3, 4), (8, 3, 4, 5), (12, 2, 12, 1), (10, 4, 5, 8)]  # dim, depth, heads, neighbors
VARIANTS: dict[str, dict[str, Any]] = {
    "the paper's": {},
    "defaults": {"residual_gate": True},
    "random and gated": {**PAPER, "residual_gate": True, "null_similarity": 0.2, "temperature": 2.0},
    "similarity alone": {"learn_temperature": False, "null_similarity": None, "residual_gate": False},
    "wide, with an MLP": {"inner_ratio": 1.5, "mlp_ratio": 0.5},
    "near neighbors only": {"residual_gate": True, "min_similarity": 0.6},
    "narrow and tied": {"inner_ratio": 0.5, "tie_weights": True, "mlp_ratio": 1.0},
}


def gradients(of: Tensor, refiner: ContextRefiner, *inputs: Tensor) -> list[Tensor]:
    direction = torch.randn(of.shape, generator=torch.Generator().manual_seed(2), dtype=of.dtype)
    return list(torch.autograd.grad((of * direction).sum(), [*inputs, *refiner.parameters()]))


OF_EVERY_SHAPE = ("the paper's", "defaults", "narrow and tied")
SHAPED = [(s, name) for s in SHAPES for name in VARIANTS if s in SHAPES[1::2] or name in OF_EVERY_SHAPE]
"""Every variant in two shapes, and every shape with three variants."""


@pytest.mark.parametrize(("shape", "variant"), SHAPED)
def test_value_and_gradient_of_every_variant(shape: tuple[int, int, int, int], variant: str) -> None:
    dim, depth, num_heads, k = shape
    refiner = trained(dim, depth, num_heads, **VARIANTS[variant])
    assert len(list(refiner.parameters())) % (1 if refiner.tie_weights else depth) == 0
    embeddings, context = (x.requires_grad_() for x in neighborhoods(4, k, dim))
    mask = torch.ones(4, k, dtype=torch.bool)
    mask[1, 1:], mask[2] = False, False
    for given in (None, mask):
        found = refiner.forward_intermediates(embeddings, context, given)
        wanted = reference(refiner, embeddings, context, given)
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-12)
        assert (found[-1] - embeddings).norm(dim=1).mean() > 0.05  # it does something
        of_ours, of_theirs = (gradients(of, refiner, embeddings, context) for of in (found, wanted))
        torch.testing.assert_close(of_ours, of_theirs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_new_refiner_is_the_identity(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    embeddings, context = (x.to(dtype) for x in neighborhoods(200, 8, 64))
    refiner = ContextRefiner(64).to(dtype).eval()
    for seen in refiner.forward_intermediates(embeddings, context):
        torch.testing.assert_close(seen, embeddings, rtol=0, atol=2 * torch.finfo(dtype).eps)
    assert all(weight.any() for block in refiner.blocks for weight in (block.query, block.key, block.value))


def test_number_of_parameters() -> None:
    for settings, matrices, more in (
        (PAPER, 32, 0),
        ({}, 32, 8 * 3),  # gate, temperature, null neighbor
        ({**PAPER, "inner_ratio": 1.5}, 48, 0),  # 12.6 million
        ({**PAPER, "mlp_ratio": 1.0}, 48, 0),
        ({**PAPER, "tie_weights": True}, 4, 0),
    ):
        refiner = ContextRefiner(512, **settings)
        assert sum(parameter.numel() for parameter in refiner.parameters()) == matrices * 512**2 + more, settings


@pytest.mark.parametrize("num_heads", [1, 2])
@pytest.mark.parametrize("inner_ratio", [1.0, 2.0])
def test_attention_starts_as_a_softmax_of_similarities(num_heads: int, inner_ratio: float) -> None:
    settings = {"temperature": 7.0, "null_similarity": None, "inner_ratio": inner_ratio}
    refiner = ContextRefiner(8, 1, num_heads, **settings).double().eval()
    embeddings, context = neighborhoods(6, 5, 8)
    block = refiner.blocks[0]
    queries = block._queries_in_context_space(embeddings)
    logits = 7 * block.scale * (queries @ context.transpose(1, 2)).mean(dim=1)
    cosines = torch.einsum("nd,nkd->nk", embeddings, context)
    torch.testing.assert_close(logits, 7 * cosines)
    if num_heads == 1:
        torch.testing.assert_close(refiner.attention_weights(embeddings, context)[0], (7 * cosines).softmax(dim=1))


def test_a_gated_update_starts_as_the_mean_of_the_neighbors() -> None:
    refiner = ContextRefiner(8, 1, null_similarity=None).double().eval()
    embeddings, context = neighborhoods(6, 5, 8)
    with torch.no_grad():
        refiner.blocks[0].gate.fill_(0.5)
    mean = (refiner.attention_weights(embeddings, context)[0, :, :, None] * context).sum(dim=1)
    wanted = torch.nn.functional.normalize(embeddings + 0.5 * mean, dim=1)
    torch.testing.assert_close(refiner(embeddings, context), wanted)


def test_a_null_neighbor_refuses_those_that_are_far() -> None:
    refiner = ContextRefiner(8, 1, temperature=50.0, null_similarity=0.5).double().eval()
    embeddings = torch.eye(8, dtype=torch.float64)[:1]
    for similarity, least, most in ((0.9, 0.99, 1.0), (0.5, 0.6, 0.7), (0.1, 0.0, 0.01)):
        neighbor = similarity * embeddings + math.sqrt(1 - similarity**2) * torch.eye(8, dtype=torch.float64)[1:2]
        attention = refiner.attention_weights(embeddings, neighbor.expand(2, 8)[None]).sum().item()
        assert least <= attention <= most, similarity


def test_a_minimum_of_similarity_ignores_neighbors_that_are_far() -> None:
    refiner = trained(8, 2, 2, min_similarity=0.5)
    embeddings = torch.eye(8, dtype=torch.float64)[:1]
    similarities = torch.tensor([0.9, 0.51, 0.49, -0.2], dtype=torch.float64)[:, None]
    context = similarities * embeddings + (1 - similarities**2).sqrt() * torch.eye(8, dtype=torch.float64)[1:5]
    weights = refiner.attention_weights(embeddings, context[None])
    assert (weights[:, 0, :2] > 0).all()
    assert not weights[:, 0, 2:].any()
    torch.testing.assert_close(refiner(embeddings, context[None]), refiner(embeddings, context[None, :2]))
    assert torch.equal(refiner(embeddings, context[None, 2:]), embeddings)


@pytest.mark.parametrize("variant", VARIANTS)
def test_updates_are_scaled(variant: str) -> None:
    refiner = trained(8, 2, 2, **VARIANTS[variant])
    embeddings, context = neighborhoods(5, 4, 8)

    def updates() -> list[Tensor]:
        return [
            cross_attention(refiner.blocks[0], e, list(around)) for e, around in zip(embeddings, context, strict=True)
        ]

    wanted = [0.3 * update for update in updates()]
    refiner.scale_updates(0.3)
    torch.testing.assert_close(updates(), wanted)
    refiner.scale_updates(0)
    torch.testing.assert_close(refiner(embeddings, context), embeddings)
    for wrong in (-1, math.inf, "much"):
        refused_call("of the updates must be 0 or more", refiner.scale_updates, wrong)


def test_the_output_of_any_depth() -> None:
    refiner = trained(8, 5, 2)
    embeddings, context = neighborhoods(30, 4, 8)
    mask = torch.rand(30, 4, generator=torch.Generator().manual_seed(0)) < 0.6
    for given in (None, mask):
        seen = refiner.forward_intermediates(embeddings, context, given)
        assert seen.shape == (6, 30, 8)
        for depth in range(6):
            early = refiner(embeddings, context, depth, given)
            assert torch.equal(early, seen[depth])
            if depth:
                assert torch.equal(refiner.truncate(depth)(embeddings, context, mask=given), early)
                assert refiner.truncate(depth).depth == depth
        assert torch.equal(refiner(embeddings, context, mask=given), seen[-1])
        assert (seen[1:] - seen[:-1]).abs().amax(dim=(1, 2)).min() > 0.01  # every block has its own say


@pytest.mark.parametrize("mode", [True, False])
def test_an_embedding_without_neighbors_stays(mode: bool) -> None:
    refiner = trained(8, 4, 4, dropout=0.3).train(mode)
    embeddings, context = neighborhoods(12, 5, 8)
    mask = (torch.arange(12) % 3 > 0)[:, None].expand(12, 5)
    seen = refiner.forward_intermediates(embeddings.requires_grad_(), context, mask)
    torch.testing.assert_close(seen[:, ::3], embeddings[::3].expand(5, -1, -1), rtol=0, atol=1e-15)
    assert (seen[-1] - embeddings)[1::3].norm(dim=1).min() > 0.1
    assert all(gradient.isfinite().all() for gradient in gradients(seen, refiner, embeddings))
    assert not refiner.attention_weights(embeddings, context, mask)[:, ::3].any()


@pytest.mark.parametrize("with_mask", [True, False])
def test_no_neighbors_at_all_is_the_identity(with_mask: bool) -> None:
    refiner = trained(8, 4, 4)
    embeddings, _ = neighborhoods(12, 5, 8)
    context, mask = embeddings.new_empty(12, 0, 8), torch.ones(12, 0, dtype=torch.bool) if with_mask else None
    torch.testing.assert_close(refiner(embeddings, context, mask=mask), embeddings, rtol=0, atol=1e-15)
    assert refiner.attention_weights(embeddings, context, mask).shape == (4, 12, 0)
    assert refiner.forward_intermediates(embeddings, context, mask).shape == (5, 12, 8)


@pytest.mark.parametrize(("dim", "depth", "num_heads", "k"), SHAPES)
def test_attention_is_that_of_the_paper(dim: int, depth: int, num_heads: int, k: int) -> None:
    refiner = trained(dim, depth, num_heads)
    embeddings, context = neighborhoods(6, k, dim)
    mask = torch.rand(6, k, generator=torch.Generator().manual_seed(0)) < 0.6
    mask[:, 0] = True
    for given in (None, mask):
        looks = refiner.attention_weights(embeddings, context, given)
        assert looks.shape == (depth, 6, k)
        torch.testing.assert_close(looks.sum(dim=2), torch.ones(depth, 6, dtype=torch.float64))
        seen = reference(refiner, embeddings, context, given)
        for t, block in enumerate(refiner.blocks):
            for i in range(6):
                around = range(k) if given is None else given[i].nonzero().flatten().tolist()
                each = [
                    looked_at(block, seen[t, i], [context[i, j] for j in around], head) for head in range(num_heads)
                ]
                wanted = torch.zeros(k, dtype=torch.float64)
                wanted[list(around)] = torch.stack([torch.stack(weights) for weights in each]).mean(dim=0).detach()
                torch.testing.assert_close(looks[t, i], wanted, rtol=1e-10, atol=1e-12)


def test_every_matrix_learns_though_the_output_starts_at_0() -> None:
    torch.manual_seed(0)
    refiner, before = ContextRefiner(8, depth=3, num_heads=2), ContextRefiner(8, depth=3, num_heads=2)
    before.load_state_dict(refiner.state_dict())
    embeddings, context = (x.float() for x in neighborhoods(16, 4, 8))
    optimizer = torch.optim.SGD(refiner.parameters(), lr=1.0)
    for _ in range(2):
        optimizer.zero_grad()
        (refiner(embeddings, context) @ embeddings[0]).sum().backward()
        optimizer.step()
    for (name, now), then in zip(refiner.named_parameters(), before.parameters(), strict=True):
        assert not torch.equal(now, then), name


def test_dropout_is_in_training_only() -> None:
    plain, refiner = trained(32, 3, 2), trained(32, 3, 2, dropout=0.4)
    embeddings, context = neighborhoods(50, 5, 32)
    wanted = plain(embeddings, context)
    assert torch.equal(refiner(embeddings, context), wanted)
    first, second = (refiner.train()(embeddings, context) for _ in range(2))
    assert not torch.equal(first, second)
    torch.testing.assert_close(plain.train()(embeddings, context), wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_finite_and_near(dtype: torch.dtype) -> None:
    wide = trained(64, 8, 8)
    embeddings, context = neighborhoods(40, 8, 64)
    mask = torch.rand(40, 8, generator=torch.Generator().manual_seed(0)) < 0.6
    mask[0] = False
    wanted, refiner = wide(embeddings, context, mask=mask).detach(), wide.float().train()
    with torch.autocast("cpu", dtype=dtype):
        inputs = embeddings.float().requires_grad_()
        found = refiner(inputs, context.float(), mask=mask)
        assert found.isfinite().all()
        assert refiner.attention_weights(inputs, context.float(), mask).isfinite().all()
        (found.float() @ torch.ones(64)).sum().backward()
    assert inputs.grad is not None
    assert all(p.grad is not None and p.grad.isfinite().all() for p in refiner.parameters())
    assert inputs.grad.isfinite().all()
    tolerance = 0.02 if dtype is torch.float16 else 0.15
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=tolerance)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("with_mask", [True, False])
def test_compiles_whole(with_mask: bool) -> None:
    refiner = trained(8, 2, 2).float()
    embeddings, context = (x.float().requires_grad_() for x in neighborhoods(12, 5, 8))
    mask = torch.rand(12, 5, generator=torch.Generator().manual_seed(0)) < 0.6 if with_mask else None
    compiled = torch.compile(refiner, fullgraph=True)
    found, wanted = (each(embeddings, context, mask=mask) for each in (compiled, refiner))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    of_compiled, of_plain = (gradients(of, refiner, embeddings, context) for of in (found, wanted))
    torch.testing.assert_close(of_compiled, of_plain, rtol=1e-4, atol=1e-5)


def test_bad_arguments() -> None:
    for arguments, message in (
        ({"dim": 0}, "dim = 0 must be at least 1"),
        ({"depth": 2.5}, "depth = 2.5 must be at least 1, a whole number"),
        ({"num_heads": 3}, "num_heads = 3 must divide dim = 8"),
        ({"neighbors": -1}, "neighbors = -1 must be a whole number from 0 up"),
        ({"dropout": 1.0}, "dropout = 1.0 must be from 0 to below 1"),
        ({"context": "all"}, "context = 'all' must be neighbors or self"),
        ({"attention_start": "zero"}, "attention_start = 'zero' must be similarity or random"),
        ({"temperature": 0}, "temperature = 0 must be from 1e-6 to 1e6"),
        ({"null_similarity": 1.5}, "null_similarity = 1.5 must be a cosine similarity, from -1 to 1"),
        ({"inner_ratio": 0}, "inner_ratio = 0 must be above 0 and at most 64"),
        ({"mlp_ratio": math.nan}, "mlp_ratio = nan must be from 0 to 64"),
        ({"min_similarity": 1.0}, "min_similarity = 1.0 must be from -1 to below 1, or None"),
        ({"tie_weights": 1}, "tie_weights = 1 must be True or False"),
    ):
        refused_call(f"^ContextRefiner: {message}", ContextRefiner, **{"dim": 8, "num_heads": 2, **arguments})


def test_bad_calls() -> None:
    refiner = ContextRefiner(8, depth=2, num_heads=2)
    for dim, more, message in (
        (7, {}, "embeddings [5, 7] and context [5, 3, 8] must be [n, 8] and [n, k, 8]"),
        (8, {"depth": 3}, "depth = 3 is out of range; use 0 to 2"),
        (8, {"mask": torch.ones(5, 2).bool()}, "mask is torch.bool [5, 2]; it must be torch.bool [5, 3]"),
    ):
        refused_call(re.escape(message), refiner, torch.ones(5, dim), torch.ones(5, 3, 8), **more)


def test_the_gradient_of_a_zero_embedding_is_bounded():
    """Its refinement is zero too, as long as the output matrix is zero."""
    torch.manual_seed(0)
    refiner = ContextRefiner(8, depth=2, num_heads=2).train()
    context = torch.nn.functional.normalize(torch.randn(3, 4, 8), dim=2)
    refiner(torch.zeros(3, 8), context).sum().backward()
    norms = [parameter.grad.norm().item() for parameter in refiner.parameters() if parameter.grad is not None]
    assert 0 < max(norms) < 1e8  # 1e3 for each of the two blocks, where torch's own normalization has 1e12
