"""`vicinal models`: the pretrained models by name, described without their weights."""

import json

import pytest
import timm
import torch

from tests.conftest import output, refused
from vicinal.models import INITIALIZATIONS
from vicinal.workflows import describe_model, model_names


def test_models_of_the_papers_and_of_timm_by_a_filter(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = json.loads(output(capsys, "models", "--filter", "S14_DINOv2", "--json"))
    assert (found["name"], found["dim"], found["size"]) == ("vit_s14_dinov2", 384, 224)
    assert (found["pooling"], found["license"], found["images_per_second"]) == ("token", "apache-2.0", None)
    header, line = output(capsys, "models", "--filter", "test_resnet").splitlines()
    assert header.split() == ["name", "dim", "pixels", "parameters", "pooling", "license"]
    assert line.split() == ["test_resnet.r160_in1k", "96", "160", "0.4", "M", "backbone", "apache-2.0"]


def test_descriptions_are_those_of_the_networks() -> None:
    with torch.device("meta"):
        network = timm.create_model("resnet50_clip.openai")
    clip = describe_model("resnet50_clip.openai")
    assert (clip.dim, clip.size, clip.pooling) == (1024, 224, "projection")
    assert clip.num_parameters == sum(parameter.numel() for parameter in network.parameters())
    assert describe_model("vit_b16_swag").license is None  # timm has another license, of other weights
    assert describe_model("gemma4_vit_167m_enc").pooling is None


def test_the_speed_is_measured_if_asked_for(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vicinal.workflows.model_costs.MEASURED_SECONDS", 0.0)
    words = ["models", "--filter", "test_vit.", "--measure", "--batch_size", "2", "--device", "cpu"]
    assert all(each["images_per_second"] > 0 for each in json.loads(output(capsys, *words, "--json")))
    assert output(capsys, *words).splitlines()[0].endswith("images/s")
    assert "--batch_size is for measuring; give --measure too" in refused(capsys, "models", "--batch_size", "2")


def test_names_without_and_with_a_filter(capsys: pytest.CaptureFixture[str]) -> None:
    assert model_names() == list(INITIALIZATIONS)
    assert {"vit_b16_clip_400m", "vit_base_patch16_clip_224.openai"} <= {*model_names("clip")}
    message = "no pretrained model has 'dinnov2' in its name; nearest: dinov2"
    assert message in refused(capsys, "models", "--filter", "dinnov2")
