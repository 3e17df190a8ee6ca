import numpy as np
import pandas as pd
import pytest

from vicinal import Table
from vicinal.evaluation import evaluate, open_set_scores
from vicinal.training.training_data import require_validatable
from vicinal.utils.errors import InputError


def test_an_error_names_the_groups_that_exclude_all_matches() -> None:
    vectors = np.random.default_rng(0).normal(size=(20, 8))
    frame = pd.DataFrame({"label": np.arange(20) % 5})
    message = "column group excludes all matches of 20; leave the column out, or add images of other groups"
    for check in (evaluate, open_set_scores):
        with pytest.raises(InputError, match=message):
            check(vectors, Table(frame.assign(group=0)))
        with pytest.raises(InputError, match="needs at least one class with two images"):
            check(vectors[:5], Table(frame[:5].assign(group=0)))
    with pytest.raises(InputError, match="the column group excludes all matches of the 20 queries of the split val"):
        require_validatable(Table(frame.assign(group=0)), "recall@1")
    require_validatable(Table(frame.assign(group=[0] * 19 + [1])), "recall@1")
    require_validatable(Table(frame.assign(group=-1)), "recall@1")
