import errno
import json
import os
import shutil
import struct
from functools import partial
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import safetensors.torch
import timm
import torch
import yaml

from tests.models import test_embedder
from tests.models.test_embedder import images
from tests.refusals import refused_call
from vicinal.data import ImageTransform
from vicinal.models import Embedder, model_folder
from vicinal.utils.errors import InputError

TRANSFORM = ImageTransform(size=32, resize=40, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), scale=(0.16, 1.0))
build = partial(test_embedder.build, transform=TRANSFORM)


def change(folder, **values):
    """Set keys of the config; the value DELETE takes one out."""
    config = json.loads((folder / "config.json").read_text())
    config.update(values)
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value != "DELETE"}))


def rewrite(folder, edit):
    """Edit the tensors by name in place."""
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    edit(tensors)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")


@pytest.fixture
def folder(tmp_path):
    build().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


CASES = [
    ("test_resnet", {"pooling": "gem", "learned_p": True, "projector": 12, "freeze_batch_norm": "all"}),
    ("test_resnet", {"norm": "layer_affine", "freeze_batch_norm": "statistics"}),
    ("test_resnet", {"dim": None, "norm": "l2", "projector": 12}),
    ("test_resnet", {"pooling": "max", "norm": "none", "backbone_args": {"channels": [4, 4, 8, 8]}}),
    ("test_vit", {"pooling": "token", "norm": "none"}),
    ("test_vit", {"pooling": "avg+max", "dropout": 0.2}),
    ("test_convnext", {"pooling": "avg", "p": 2.0}),
    ("test_efficientnet", {"pooling": "gem", "p": 2.0}),
    ("test_mambaout", {"pooling": "avg+max"}),
    *([("test_vit_relpos", {"pooling": "max"})] if timm.is_model("test_vit_relpos") else []),  # not in old versions
]


@pytest.mark.parametrize(("backbone", "arguments"), CASES)
def test_a_loaded_model_gives_the_same_vectors_bit_for_bit(tmp_path, backbone, arguments):
    model = build(backbone, **arguments)
    model(images())[:, 0].sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 0.1 * parameter.grad
    recipe, metrics = {"optimizer": {"lr": 1e-4}, "seed": 1}, {"test": {"recall@1": 0.75}}
    model.save_pretrained(tmp_path / "model", recipe=recipe, metrics=metrics)
    state = torch.random.get_rng_state()
    loaded = Embedder.from_pretrained(tmp_path / "model")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert np.array_equal(loaded.embed(images(), progress=False), model.embed(images(), progress=False))
    assert loaded.fingerprint() == model.fingerprint()
    assert (loaded.transform, loaded.config) == (model.transform, model.config)
    assert (loaded.recipe, loaded.metrics) == (recipe, metrics)
    assert not loaded.training
    loaded.save_pretrained(tmp_path / "again")
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "model" / file).read_bytes()


def test_what_the_folder_holds(tmp_path):
    model = build()
    model.save_pretrained(tmp_path / "birds", recipe={"loss": "MultiSimilarityLoss"}, metrics={"recall@1": 0.875})
    assert sorted(os.listdir(tmp_path / "birds")) == ["README.md", "config.json", "model.safetensors"]
    config = json.loads((tmp_path / "birds/config.json").read_text())
    assert (config["format"], config["version"], config["backbone"]) == ("vicinal-embedder", 1, "test_resnet")
    assert config["transform"]["mean"] == [0.1, 0.2, 0.3]
    _, front, text = (tmp_path / "birds/README.md").read_text().split("---\n", 2)
    card = yaml.safe_load(front)
    assert (card["library_name"], card["model-index"][0]["name"]) == ("vicinal", "birds")
    assert card["model-index"][0]["results"][0]["metrics"][0] == {"type": "recall@1", "value": 0.875}
    assert "| recall@1 | 0.8750 |" in text
    assert "loss: MultiSimilarityLoss" in text


def test_loading_and_saving_do_not_need_contiguous_or_distinct_tensors(tmp_path):
    model = build().to(memory_format=torch.channels_last)
    model.backbone.bn1.bias = model.backbone.bn1.weight
    model.save_pretrained(tmp_path / "model")
    loaded = Embedder.from_pretrained(tmp_path / "model")
    assert torch.equal(loaded.backbone.bn1.bias, model.backbone.bn1.weight)


def test_saving_replaces_a_model_and_nothing_else(tmp_path, folder):
    build(seed=1).save_pretrained(folder)
    assert Embedder.from_pretrained(folder).fingerprint() == build(seed=1).fingerprint()
    (folder / "notes.txt").write_text("mine")
    refused_call(r"it holds notes\.txt", lambda: build().save_pretrained(folder))
    project = tmp_path / "project"
    project.mkdir()
    (project / "README.md").write_text("mine")
    refused_call(r"it holds README\.md", lambda: build().save_pretrained(project))
    refused_call("it is a file", lambda: build().save_pretrained(folder / "config.json"))
    (tmp_path / "empty").mkdir()
    build().save_pretrained(tmp_path / "empty")


@pytest.mark.parametrize("config", ['{"architectures": ["BertModel"]}', '{"format": "other"}', "[]", "no JSON", None])
def test_models_of_others_are_not_replaced(folder, config):
    (folder / "config.json").unlink()
    if config is not None:
        (folder / "config.json").write_text(config)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    refused_call(r"cannot save a model to .*; give a folder of its own", build(seed=1).save_pretrained, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_the_dtype_of_the_weights_is_kept(tmp_path, dtype):
    model = build(pooling="gem", learned_p=True, projector=4).to(dtype).eval()
    model.save_pretrained(tmp_path / "model")
    loaded = Embedder.from_pretrained(tmp_path / "model")
    assert {parameter.dtype for parameter in loaded.parameters()} == {dtype}
    assert loaded.fingerprint() == model.fingerprint()
    assert np.array_equal(loaded.embed(images(), progress=False), model.embed(images(), progress=False))


def test_weights_of_different_dtypes_are_refused(tmp_path, folder):
    model = build()
    model.head.to(torch.bfloat16)
    with pytest.raises(
        InputError, match=r"weights of different dtypes \(.* is torch\.float32, head\..* is torch\.bfloat16\)"
    ):
        model.save_pretrained(tmp_path / "mixed")
    assert not (tmp_path / "mixed").exists()
    safetensors.torch.save_file(
        {k: v.contiguous() for k, v in model.state_dict().items()}, folder / "model.safetensors"
    )
    refused_call(r"model\.safetensors: weights of different dtypes", Embedder.from_pretrained, folder)


@pytest.mark.parametrize("values", [{"loss": float("nan")}, {"when": object()}])
def test_recipes_that_are_not_json(tmp_path, values):
    refused_call("must be JSON values", lambda: build().save_pretrained(tmp_path / "model", metrics=values))
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "README.md"])
def test_a_full_disk_leaves_the_former_model(tmp_path, folder, monkeypatch, file):
    def full(path, data):
        if Path(path).name == file:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(path, data)

    write = model_folder.write_bytes
    monkeypatch.setattr(model_folder, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        build(seed=1).save_pretrained(folder)
    assert Embedder.from_pretrained(folder).fingerprint() == build().fingerprint()
    assert os.listdir(tmp_path) == ["model"]


HOSTILE_CONFIGS = [
    ({"format": "pytorch"}, r"not the config of a Vicinal model"),
    ({"version": 2}, r"version is 2; this Vicinal reads version 1"),
    ({"color": "red"}, r"unknown key 'color'"),
    ({"dim": "DELETE"}, r"dim is missing"),
    ({"dim": 10**15}, r"dim is 1000000000000000; it must be an integer"),
    ({"dim": 65536}, r"model\.safetensors: head\.1\.weight has shape \(8, 96\); config\.json calls for"),
    ({"projector": 5}, r"model\.safetensors: lacks tensor projector\.bias and 1 more"),
    ({"freeze_batch_norm": True}, r"freeze_batch_norm is True; it must be str"),
    ({"pooling": "token"}, r"test_resnet has no class token"),
    ({"backbone": "test_vit"}, r"model\.safetensors: lacks tensor backbone\.blocks"),
    ({"backbone_args": {"channels": [10**12, 8, 8, 8]}}, r"backbone_args: 1000000000000 is too large"),
    ({"transform": {}}, r"config\.json: transform: size is missing"),
    ({"transform": {"size": 32, "evil": 1}}, r"unknown key 'evil'"),
    ({"transform": {"size": 10**9}}, r"transform: 1000000000 is too large"),
    ({"metrics": [1]}, r"metrics is \[1\]"),
]
OTHER_CONFIGS = (b"", b"{", b"\xff\xfe", b"[" * 100_000, b"3", b"null", b"[]", b"{}", b'{"format": "vicinal-embedder"}')
HEADER = json.dumps({"head.1.bias": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}).encode()
OTHER_TENSORS = [
    (lambda tensors: tensors.pop("head.1.bias"), r"lacks tensor head\.1\.bias;"),
    (lambda tensors: tensors.update(evil=torch.zeros(1)), r"has the unknown tensor evil;"),
    (lambda tensors: tensors.update({"head.1.bias": torch.zeros(9)}), r"head\.1\.bias has shape \(9,\)"),
    (lambda tensors: tensors.update({"head.1.bias": torch.zeros(8).int()}), r"head\.1\.bias is of type"),
]


def written(name, change_bytes):
    return lambda folder: (folder / name).write_bytes(change_bytes((folder / name).read_bytes()))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        *((partial(change, **values), message) for values, message in HOSTILE_CONFIGS),
        *((written("config.json", lambda _, text=text: text), r"config\.json") for text in OTHER_CONFIGS),
        *((written("model.safetensors", lambda data, length=length: data[:length]),
           r"model\.safetensors: not a complete safetensors file") for length in (0, 4, 100, 5000, -1)),
        *((partial(rewrite, edit=edit), r"model\.safetensors: " + message) for edit, message in OTHER_TENSORS),
        (written("model.safetensors", lambda _: struct.pack("<Q", len(HEADER)) + HEADER), "not a complete safetensors"),
    ],
)  # fmt: skip
def test_damaged_and_hostile_folders(folder, edit, message):
    edit(folder)
    refused_call(message, Embedder.from_pretrained, folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pkl"])
def test_pickles_are_never_opened(folder, name, monkeypatch):
    state = build().state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / name)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("opened a pickle"))
    refused_call(f"{name} is a pickle, which could run code and is never opened", Embedder.from_pretrained, folder)


def test_no_model_there(tmp_path, folder):
    refused_call("no such folder .*nothing", Embedder.from_pretrained, tmp_path / "nothing")
    refused_call("no such folder nothing", Embedder.from_pretrained, "nothing")
    refused_call("is a file", Embedder.from_pretrained, folder / "config.json")
    (tmp_path / "empty").mkdir()
    refused_call(r"has no config\.json", Embedder.from_pretrained, tmp_path / "empty")
    refused_call(
        "no folder someone/model-that-is-nowhere here, and none from the hub",
        Embedder.from_pretrained,
        "someone/model-that-is-nowhere",
    )


def test_loading_from_the_hub_reads_three_files_only(folder, monkeypatch):
    def download(name, revision, allow_patterns):
        assert (name, revision) == ("someone/birds", "v1")
        assert sorted(allow_patterns) == ["README.md", "config.json", "model.safetensors"]
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert Embedder.from_pretrained("someone/birds", revision="v1").fingerprint() == build().fingerprint()


@pytest.fixture
def uploaded(tmp_path, monkeypatch):
    def create(self, repo_id, private, exist_ok):
        assert (repo_id, private, exist_ok) == ("me/model", True, True)
        return huggingface_hub.RepoUrl("https://huggingface.co/me/model")

    def upload(self, repo_id, folder_path, commit_message):
        shutil.copytree(folder_path, tmp_path / "uploaded")
        return f"https://huggingface.co/{repo_id}/commit/1"

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload)
    return tmp_path / "uploaded"


def test_what_is_uploaded_is_the_saved_folder(folder, uploaded):
    assert build().push_to_hub("me/model", private=True) == "https://huggingface.co/me/model/commit/1"
    assert sorted(os.listdir(uploaded)) == sorted(os.listdir(folder))
    for file in os.listdir(folder):
        expected = (folder / file).read_bytes().replace(b"path/to/this/folder", b"me/model")  # on the card
        assert (uploaded / file).read_bytes() == expected


def test_an_upload_that_fails():
    refused_call("cannot upload to 'me/model'", lambda: build().push_to_hub("me/model"))
    refused_call(r"^'my model' cannot be the name of a model on the Hugging Face Hub", build().push_to_hub, "my model")


def test_the_card_says_what_is_known_of_data_and_license(tmp_path):
    for model, text, license_name in (
        ({"pretrained": True}, "Its backbone started from the published weights of `test_resnet`, whose license is", 1),
        ({"pretrained": False}, "Its backbone started from random weights.", 0),
        ({}, "If its backbone started from the published weights of `test_resnet`, whose license is", 0),
        ("broken", "If its backbone started from", 0),
    ):
        recipe = {"data": {"source": "/home/me/birds"}, "model": model}
        build().save_pretrained(tmp_path / "model", recipe=recipe)
        _, front, card = (tmp_path / "model/README.md").read_text().split("---\n", 2)
        assert text in card
        assert "trained on the training split of `birds`" in card
        assert ("license" in yaml.safe_load(front)) is bool(license_name)


def save_exported(folder, fingerprint):
    """Files as `vicinal export` writes them."""
    metrics = {"recall@1": {"before": [0.5, 0.4, 0.6], "after": [0.49, 0.39, 0.59], "difference": [-0.01, -0.02, 0.0]}}
    vectors = {"largest": 0.01234, "num_images": 1234}
    settings = {"format": "onnx", "precision": "int8"}
    report = {"fingerprint": fingerprint, "vectors": vectors, "metrics": metrics, "settings": settings}
    report |= {"refined": False, "images": "check images"}
    (folder / "small.parity.json").write_text(json.dumps(report))
    for name in ("small.onnx", "small.preprocessing.json", "small.parity.md", "other.txt"):
        (folder / name).write_text("{}")
    return folder / "small.onnx"


def test_an_exported_model_is_uploaded_with_its_files_and_a_section_on_the_card(tmp_path, uploaded, monkeypatch):
    exported = save_exported(tmp_path, f"{build().fingerprint()}+its refiner")
    build().push_to_hub("me/model", private=True, onnx=exported)
    own = {"README.md", "config.json", "model.safetensors"}
    beside = {"small.onnx", "small.preprocessing.json", "small.parity.json", "small.parity.md"}
    assert {*os.listdir(uploaded)} == own | beside
    card = (uploaded / "README.md").read_text()
    assert "| recall@1 | 0.5000 [0.4000, 0.6000] | 0.4900 [0.3900, 0.5900] |" in card
    assert "differ by at most 0.01 from those in\ntorch on 1,234 check images" in card
    example = card.rpartition("```python\n")[2].partition("```")[0]
    asked = []
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *words: asked.append(words))
    with pytest.raises(TypeError):  # there is no path
        exec(example, {})
    assert asked == [("me/model", "small.preprocessing.json"), ("me/model", "small.onnx")]


def test_exported_files_of_another_model_are_not_uploaded(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", lambda *_, **__: pytest.fail("created a repository"))
    with pytest.raises(InputError, match=r"small\.onnx was exported from the model abc, not from"):
        build().push_to_hub("me/model", onnx=save_exported(tmp_path, "abc"))
    (tmp_path / "small.parity.json").write_text("no JSON")
    refused_call("not a parity report", lambda: build().push_to_hub("me/model", onnx=tmp_path / "small.onnx"))
    refused_call(r"lost\.onnx: no such file", lambda: build().push_to_hub("me/model", onnx=tmp_path / "lost.onnx"))
