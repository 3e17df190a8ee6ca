import pytest
import torch

from vicinal.models.pooling import AvgMaxPool, AvgPool, ClassToken, GeM, MaxPool, build_pooling, to_feature_maps
from vicinal.utils.errors import InputError


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


def test_a_fixed_exponent_is_no_weight_and_a_learned_one_is():
    assert not GeM().state_dict()
    assert list(GeM(learned=True).state_dict()) == ["p"]


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


def test_by_name():
    kinds = {"avg": AvgPool, "max": MaxPool, "gem": GeM, "avg+max": AvgMaxPool, "token": ClassToken}
    for name, kind in kinds.items():
        assert type(build_pooling(name)) is kind


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "sum"}, "choose avg, max, gem"),
        ({"name": "avg", "learned_p": True}, "'avg' has no exponent"),
        ({"name": "gem", "p": 0.0}, "p is 0.0"),
        ({"name": "gem", "p": float("nan")}, "p is nan"),
    ],
)
def test_invalid_poolings(arguments, message):
    with pytest.raises(InputError, match=message):
        build_pooling(**arguments)
