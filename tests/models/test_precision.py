"""What the precision auto stands for, and who computes in it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vicinal.models import Embedder, execution
from vicinal.models.execution import used_precision


def test_auto_is_bfloat16_on_a_gpu_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for has, expected in ((True, "bf16"), (False, "32")):
        monkeypatch.setattr(execution, "gpu_has_bfloat16", lambda has=has: has)
        assert used_precision("auto", "cuda:1") == expected
        assert used_precision("auto", torch.device("cpu")) == "32"
        assert [used_precision(given, "cuda") for given in ("32", "bf16", "16")] == ["32", "bf16", "16"]


def test_embeddings_are_float32_on_a_cpu_unless_asked_for() -> None:
    model, images = Embedder("test_resnet", dim=8, pretrained=False), torch.randn(2, 3, 32, 32)
    default, exact, half = (
        model.embed(images, progress=False, **given) for given in ({}, {"precision": "32"}, {"precision": "bf16"})
    )
    assert np.array_equal(default, exact)
    assert not np.array_equal(half, exact)
