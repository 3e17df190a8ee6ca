import numpy as np
import pytest
import torch

from tests.models.refiner_reference import PAPER
from tests.models.test_model_folder import change
from tests.refusals import refused_call
from vicinal.data import ImageTransform
from vicinal.models import ContextRefiner, Embedder
from vicinal.utils.errors import InputError

FINGERPRINT = "0123456789abcdef"


def build(seed=0, dim=8, depth=3, num_heads=2, neighbors=4, **arguments):
    torch.manual_seed(seed)
    refiner = ContextRefiner(dim, depth, num_heads, neighbors, **arguments)
    with torch.no_grad():
        for block in refiner.blocks:
            block.output.normal_()
            if block.gate is not None:
                block.gate.fill_(1.0)
    refiner.model_fingerprint = FINGERPRINT
    return refiner.eval()


def refined(refiner):
    generator = torch.Generator().manual_seed(3)
    dtype = next(refiner.parameters()).dtype
    embeddings, context = torch.randn(5, 8, generator=generator), torch.randn(5, 4, 8, generator=generator)
    with torch.no_grad():
        return refiner(embeddings.to(dtype), context.to(dtype))


@pytest.fixture
def folder(tmp_path):
    build().save_pretrained(tmp_path / "refiner")
    return tmp_path / "refiner"


def saved_embedder(folder):
    Embedder("test_resnet", dim=8, pretrained=False, transform=ImageTransform(size=16)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("arguments", "dtype"),
    [
        ({}, torch.float32),
        ({"depth": 1, "num_heads": 8, "neighbors": 0, "context": "self"}, torch.float64),
        ({"dropout": 0.25, **PAPER}, torch.bfloat16),
        ({"inner_ratio": 1.5, "mlp_ratio": 0.5, "tie_weights": True}, torch.float32),
    ],
)
def test_a_loaded_refiner_refines_the_same_bit_for_bit(tmp_path, arguments, dtype):
    refiner = build(**arguments).to(dtype)
    recipe, metrics = {"loss": "MultiSimilarityLoss", "seed": 1}, {"val": {"recall@1": 0.75}}
    refiner.save_pretrained(tmp_path / "refiner", recipe=recipe, metrics=metrics)
    state = torch.random.get_rng_state()
    loaded = ContextRefiner.from_pretrained(tmp_path / "refiner")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(refined(loaded), refined(refiner))
    for name in ("dim", "depth", "num_heads", "neighbors", "dropout", "context", "model_fingerprint"):
        assert getattr(loaded, name) == getattr(refiner, name)
    assert (loaded.recipe, loaded.metrics) == (recipe, metrics)
    assert loaded.fingerprint() == refiner.fingerprint()
    assert not loaded.training
    loaded.save_pretrained(tmp_path / "again")
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "refiner" / file).read_bytes()


def test_the_cards_python_runs(folder):
    block = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    names = {"vectors": np.eye(8, dtype=np.float32)}
    exec(block.replace("path/to/this/folder", str(folder)), names)
    assert names["refined"].shape == (8, 8)


def test_fingerprints_tell_refiners_apart():
    fingerprint = build().fingerprint()
    assert len(fingerprint) == 16
    assert build().fingerprint() == fingerprint
    others = [build(seed=1), build(neighbors=5), build(num_heads=4), build(context="self"), build().truncate(2)]
    others += [build(temperature=10.0), build(tie_weights=True)]
    assert len({fingerprint, *(other.fingerprint() for other in others)}) == 8


def test_only_embeddings_of_its_model():
    refiner = build()
    refiner.check_model(FINGERPRINT)
    refiner.check_model(None)
    for each in (refiner, refiner.truncate(1)):
        with pytest.raises(InputError, match=f"trained for embeddings of the model {FINGERPRINT}, not of fedc"):
            each.check_model("fedcba9876543210")
    refiner.model_fingerprint = None
    refiner.check_model("fedcba9876543210")


def test_a_refiner_replaces_a_refiner_only(tmp_path, folder):
    build(seed=1).save_pretrained(folder)
    assert ContextRefiner.from_pretrained(folder).fingerprint() == build(seed=1).fingerprint()
    embedder = saved_embedder(tmp_path / "embedder")
    with pytest.raises(InputError, match=r"cannot save a context refiner to .*: it holds an embedder; give a folder"):
        build().save_pretrained(embedder)
    refused_call(r"cannot save an embedder to .*: it holds a context refiner; give a folder", saved_embedder, folder)
    assert Embedder.from_pretrained(embedder).dim == 8
    assert ContextRefiner.from_pretrained(folder).fingerprint() == build(seed=1).fingerprint()


def test_each_kind_is_refused_where_the_other_is_wanted(tmp_path, folder):
    embedder, message = saved_embedder(tmp_path / "embedder"), "is a context refiner, not an embedder; give it with --r"
    refused_call("is an embedder, not a context refiner; give it with -", ContextRefiner.from_pretrained, embedder)
    refused_call(message, Embedder.from_pretrained, folder)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"format": "pytorch"}, r'not the config of a Vicinal model \("format" is not "vicinal-refiner"\)'),
        ({"depth": 2}, r"has the unknown tensor blocks\.2\.\w+ and 6 more"),
        ({"depth": 10**9}, r"depth: 1000000000 is too large; at most 1,000"),
        ({"num_heads": 3}, r"config\.json: ContextRefiner: num_heads = 3 must divide dim = 8"),
        ({"mlp_ratio": 1.0}, r"lacks tensor blocks\.0\.mlp\.hidden and 5 more"),
    ],
)
def test_hostile_configs(folder, values, message):
    change(folder, **values)
    refused_call(message, ContextRefiner.from_pretrained, folder)


def test_a_large_network_takes_no_memory_before_its_weights_are_checked(folder):
    change(folder, dim=65_536, depth=20, num_heads=16_384)  # 1.4 TB
    refused_call("lacks tensor", ContextRefiner.from_pretrained, folder)
