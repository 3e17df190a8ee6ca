"""What somebody tries first with a model in Python."""

import pytest

from vicinal import Embedder
from vicinal.data import ImageTransform
from vicinal.utils.errors import InputError


def test_a_transform_may_be_given_by_its_settings():
    model = Embedder(
        "test_resnet", 8, pretrained=False, transform={"size": 32, "channels": 1, "mean": (0.5,), "std": (0.5,)}
    )
    assert (model.transform.size, model.transform.channels) == (32, 1)
    for given, message in (
        ({"sise": 32}, "transform: .*sise"),
        (32, "transform is int; give an ImageTransform or a dict"),
    ):
        with pytest.raises(InputError, match=message):
            Embedder("test_resnet", 8, pretrained=False, transform=given)


def test_a_model_is_printed_in_one_line_and_found_in_its_run(tmp_path):
    model = Embedder("test_resnet", 8, pretrained=False, transform=ImageTransform(size=32))
    assert str(model).startswith("Embedder(backbone='test_resnet', dim=8, pooling=")
    assert len(str(model).splitlines()) == 1
    model.save_pretrained(tmp_path / "run" / "model")
    assert Embedder.from_pretrained(tmp_path / "run").fingerprint() == model.fingerprint()
    assert "that was not trained by it" in (tmp_path / "run" / "model" / "README.md").read_text()
