import numpy as np
import pytest

from tests.report.page.cases import Case, case_of


@pytest.fixture(scope="session")
def noisy() -> Case:
    """Sixty vectors of six classes that partly overlap."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 10)
    return case_of(rng.normal(size=(6, 8))[labels] + rng.normal(size=(60, 8)), labels)
