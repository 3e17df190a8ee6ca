import json
import os
import shutil

import huggingface_hub
import numpy as np
import pytest
import torch
import yaml

from tests.models import folders
from tests.models.folders import change
from tests.models.refiner_reference import PAPER
from vicinal.data.images.transforms import ImageTransform
from vicinal.models import ContextRefiner, Embedder
from vicinal.utils.errors import InputError

FINGERPRINT = "0123456789abcdef"


def build(seed=0, dim=8, depth=3, num_heads=2, neighbors=4, **arguments):
    """A refiner that is not the identity."""
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


def refused(source, message):
    folders.refused(ContextRefiner, source, message)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"depth": 1, "num_heads": 8, "neighbors": 0},
        {"dropout": 0.25, **PAPER},
        {"inner_ratio": 1.5, "mlp_ratio": 0.5, "tie_weights": True},
    ],
)
@pytest.mark.parametrize("context", ["neighbors", "self"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_loaded_refiner_refines_the_same_bit_for_bit(tmp_path, arguments, context, dtype):
    refiner = build(context=context, **arguments).to(dtype)
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


def test_what_the_folder_holds(tmp_path):
    refiner = build()
    refiner.save_pretrained(tmp_path / "birds", recipe={"loss": "MultiSimilarityLoss"}, metrics={"recall@1": 0.875})
    assert sorted(os.listdir(tmp_path / "birds")) == ["README.md", "config.json", "model.safetensors"]
    assert json.loads((tmp_path / "birds/config.json").read_text()) == {
        "format": "vicinal-refiner",
        "version": 1,
        "dim": 8,
        "depth": 3,
        "num_heads": 2,
        "neighbors": 4,
        "dropout": 0.0,
        "context": "neighbors",
        "attention_start": "similarity",
        "temperature": 20.0,
        "learn_temperature": True,
        "null_similarity": 0.7,
        "residual_gate": True,
        "inner_ratio": 1.0,
        "mlp_ratio": 0.0,
        "tie_weights": False,
        "min_similarity": None,
        "model_fingerprint": FINGERPRINT,
        "recipe": {"loss": "MultiSimilarityLoss"},
        "metrics": {"recall@1": 0.875},
    }
    _, front, text = (tmp_path / "birds/README.md").read_text().split("---\n", 2)
    card = yaml.safe_load(front)
    assert (card["library_name"], card["pipeline_tag"]) == ("vicinal", "feature-extraction")
    assert "context-refiner" in card["tags"]
    assert card["model-index"][0]["results"][0]["metrics"][0] == {"type": "recall@1", "value": 0.875}
    for line in (
        "# birds",
        f"| for embeddings of | the model with fingerprint `{FINGERPRINT}` |",
        "| blocks | 3, with 2 heads |",
        "| attends to | the 4 nearest neighbors, or to none of them |",
        f"| parameters | {sum(each.numel() for each in refiner.parameters())} |",
        "vicinal evaluate run --refiner path/to/this/folder",
        "| recall@1 | 0.8750 |",
        "loss: MultiSimilarityLoss",
    ):
        assert line in text.splitlines()


def test_the_cards_python_runs(folder):
    block = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    names = {"vectors": np.eye(8, dtype=np.float32)}
    exec(block.replace("path/to/this/folder", str(folder)), names)
    assert names["refined"].shape == (8, 8)


def test_cards_of_refiners_without_model_or_neighbors(tmp_path):
    refiner = build(context="self")
    refiner.model_fingerprint = None
    refiner.save_pretrained(tmp_path / "refiner")
    card = (tmp_path / "refiner/README.md").read_text()
    assert "| for embeddings of | a model that was not recorded |" in card
    assert "| attends to | the embedding itself, not its neighbors |" in card
    assert ContextRefiner.from_pretrained(tmp_path / "refiner").model_fingerprint is None


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


def test_numbers_from_numpy_are_saved(tmp_path):
    refiner = ContextRefiner(np.int64(8), num_heads=np.int64(2), dropout=np.float32(0.5))
    refiner.save_pretrained(tmp_path / "refiner")
    assert ContextRefiner.from_pretrained(tmp_path / "refiner").fingerprint() == refiner.fingerprint()


def test_what_cannot_be_loaded_is_not_saved(tmp_path):
    with pytest.raises(InputError, match="depth = 1001 is too large; use at most 1,000"):
        ContextRefiner(1, depth=1001, num_heads=1)
    with pytest.raises(InputError, match="neighbors = 16385 is too large; use at most 16,384"):
        build(neighbors=16_385)
    with pytest.raises(InputError, match="must be JSON values"):
        build().save_pretrained(tmp_path / "recipe", recipe={"when": object()})
    assert not list(tmp_path.iterdir())


def test_a_refiner_replaces_a_refiner_only(tmp_path, folder):
    build(seed=1).save_pretrained(folder)
    assert ContextRefiner.from_pretrained(folder).fingerprint() == build(seed=1).fingerprint()
    embedder = saved_embedder(tmp_path / "embedder")
    with pytest.raises(InputError, match=r"cannot save a context refiner to .*: it holds an embedder; give a folder"):
        build().save_pretrained(embedder)
    with pytest.raises(InputError, match=r"cannot save an embedder to .*: it holds a context refiner; give a folder"):
        saved_embedder(folder)
    assert Embedder.from_pretrained(embedder).dim == 8
    assert ContextRefiner.from_pretrained(folder).fingerprint() == build(seed=1).fingerprint()


def test_each_kind_is_refused_where_the_other_is_wanted(tmp_path, folder):
    refused(saved_embedder(tmp_path / "embedder"), "is an embedder, not a context refiner; give it with --model, or")
    folders.refused(Embedder, folder, "is a context refiner, not an embedder; give it with --refiner, or load it with")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"format": "pytorch"}, r'not the config of a Vicinal model \("format" is not "vicinal-refiner"\)'),
        ({"backbone": "resnet50"}, r"unknown key 'backbone'; the keys are dim, depth, num_heads, neighbors"),
        ({"num_heads": "DELETE"}, r"config\.json: num_heads is missing"),
        ({"depth": 2.0}, r"depth is 2\.0; it must be int"),
        ({"dim": 10**15}, r"dim: 1000000000000000 is too large; at most 65,536"),
        ({"dim": 65536}, r"model\.safetensors: blocks\.0\.\w+ has shape \(8, 8\); config\.json calls for \(65536"),
        ({"depth": 2}, r"has the unknown tensor blocks\.2\.\w+ and 6 more"),
        ({"depth": 10**9}, r"depth: 1000000000 is too large; at most 1,000"),
        ({"num_heads": 3}, r"config\.json: ContextRefiner: num_heads = 3 must divide dim = 8"),
        ({"num_heads": 10**9}, r"num_heads: 1000000000 is too large; at most 16,384"),
        ({"neighbors": 10**9}, r"neighbors: 1000000000 is too large; at most 16,384"),
        ({"learn_temperature": False}, r"has the unknown tensor blocks\.0\.log_temperature and 2 more"),
        ({"mlp_ratio": 1.0}, r"lacks tensor blocks\.0\.mlp\.hidden and 5 more"),
    ],
)
def test_hostile_configs(folder, values, message):
    change(folder, **values)
    refused(folder, message)


def test_the_largest_that_is_allowed_takes_no_memory(folder):
    change(folder, dim=65_536, depth=1_000, num_heads=16_384)  # 69 TB
    refused(folder, "asks for a network of more than 542 tensors")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "refiner.pt", "model.pkl"])
def test_pickles_are_never_opened(folder, name, monkeypatch):
    (folder / "model.safetensors").unlink()
    torch.save(build().state_dict(), folder / name)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("opened a pickle"))
    refused(folder, f"{name} is a pickle, which could run code and is never opened")


def test_what_is_uploaded_is_the_saved_folder(tmp_path, folder, monkeypatch):
    def upload(self, repo_id, folder_path, commit_message):
        shutil.copytree(folder_path, tmp_path / "uploaded")
        return f"https://huggingface.co/{repo_id}/commit/1"

    address = huggingface_hub.RepoUrl("https://huggingface.co/me/refiner")
    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", lambda *_, **__: address)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload)
    assert build().push_to_hub("me/refiner") == "https://huggingface.co/me/refiner/commit/1"
    assert sorted(os.listdir(tmp_path / "uploaded")) == sorted(os.listdir(folder))
    for file in os.listdir(folder):
        expected = (folder / file).read_bytes().replace(b"path/to/this/folder", b"me/refiner")  # on the card
        assert (tmp_path / "uploaded" / file).read_bytes() == expected
