"""Evaluation on a pretend GPU: exactly the metrics of the CPU, and few waits."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from tests.pretend_device import on_device, pretend_device
from vicinal import Table
from vicinal.evaluation import evaluate

NUM_VECTORS = 30


def table(**more: object) -> Table:
    labels = [each % 6 for each in range(NUM_VECTORS)]
    paths = [f"{each}.png" for each in range(NUM_VECTORS)]
    return Table(pd.DataFrame({"path": paths, "label": labels, **more}))


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"group": [each // 3 for each in range(NUM_VECTORS)]},
        {
            "is_query": [each < 10 for each in range(NUM_VECTORS)],
            "is_gallery": [each >= 5 for each in range(NUM_VECTORS)],
        },
    ],
    ids=["leave one out", "groups", "queries and gallery"],
)
def test_metrics_are_those_of_the_cpu(columns: dict[str, object]) -> None:
    vectors = torch.randn(NUM_VECTORS, 8, generator=torch.Generator().manual_seed(0))
    expected = evaluate(vectors, table(**columns)).metrics
    with pretend_device() as device:
        found = evaluate(on_device(vectors), table(**columns)).metrics
    assert found == expected
    assert device.waits.total() <= 25, device.waits
    assert device.launches <= 210
