"""What the precision auto stands for, and who computes in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vicinal.data import ImageTransform
from vicinal.models import Embedder, execution
from vicinal.models.execution import gpu_has_bfloat16, used_precision
from vicinal.workflows.embedding_reader import EmbeddingReader


def test_auto_is_bfloat16_on_a_gpu_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for has, expected in ((True, "bf16"), (False, "32")):
        monkeypatch.setattr(execution, "gpu_has_bfloat16", lambda has=has: has)
        assert used_precision("auto", "cuda:1") == expected
        assert used_precision("auto", torch.device("cpu")) == "32"
        assert [used_precision(given, "cuda") for given in ("32", "bf16", "16")] == ["32", "bf16", "16"]


def test_a_gpu_that_emulates_bfloat16_does_not_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    assert not gpu_has_bfloat16()


def test_embeddings_are_float32_on_a_cpu_unless_asked_for() -> None:
    model, images = Embedder("test_resnet", dim=8, pretrained=False), torch.randn(2, 3, 32, 32)
    default, exact, half = (
        model.embed(images, progress=False, **given) for given in ({}, {"precision": "32"}, {"precision": "bf16"})
    )
    assert np.array_equal(default, exact)
    assert not np.array_equal(half, exact)


def test_a_command_says_that_it_embeds_in_bfloat16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shards and caches name the precision that was used, not auto."""
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    Embedder("test_resnet", dim=8, pretrained=False, transform=ImageTransform(size=32)).save_pretrained(tmp_path / "m")
    reader = EmbeddingReader(model=str(tmp_path / "m"))
    assert reader.used_precision == "32"
    monkeypatch.setattr("vicinal.workflows.model_options.used_precision", lambda given, device: "bf16")
    assert reader.used_precision == "bf16"
    reader.embed(str(tmp_path))
    assert "precision = bf16: embedding in bfloat16" in capsys.readouterr().err
    assert EmbeddingReader(model="model.onnx").used_precision == "32"  # has its own
