"""Settings of tiny runs."""

import pytest

from tests.training.refiner_runs import TINY, save_clusters


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Settings of a refiner that is trained in a second and helps."""
    return [f"--embeddings={save_clusters(tmp_path_factory.mktemp('clusters') / 'e.parquet')}", *TINY]
