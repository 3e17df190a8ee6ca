import numpy as np
import pandas as pd
import pytest

from vicinal.data import Table
from vicinal.evaluation import evaluate, metrics_by
from vicinal.utils.errors import InputError


def example() -> tuple[np.ndarray, Table]:
    rng = np.random.default_rng(0)
    labels = np.append(rng.integers(0, 6, 80), [97, 98])
    frame = pd.DataFrame({"label": labels, "light": rng.choice(["day", "night"], 82), "year": rng.integers(0, 3, 82)})
    return rng.standard_normal((82, 5)) + np.eye(5)[labels % 5], Table(frame)


@pytest.mark.parametrize("column", ["label", "light", "year"])
def test_every_group_has_the_means_of_its_queries(column: str) -> None:
    vectors, table = example()
    result = evaluate(vectors, table, metrics=["MRR"])
    rows = metrics_by(result, table, column)
    assert rows.index.tolist() == sorted(set(table.frame[column]))
    assert rows.columns.tolist() == ["num_queries", "num_without_positive", *result.metrics]
    for name, values in result.per_query.items():
        for group, row in rows.iterrows():
            own = values[table.frame[column].to_numpy() == group]
            assert row["num_queries"] == len(own)
            assert row["num_without_positive"] == np.isnan(own).sum()
            assert row[name] == pytest.approx(np.nanmean(own) if not np.isnan(own).all() else np.nan, nan_ok=True)
        counted = rows["num_queries"] - rows["num_without_positive"]
        assert (rows[name].fillna(0) * counted).sum() / counted.sum() == pytest.approx(result.metrics[name])


def test_bad_input() -> None:
    vectors, table = example()
    result = evaluate(vectors, table)
    with pytest.raises(InputError, match="the table has no column 'color'; its columns are label, light, year"):
        metrics_by(result, table, "color")
    with pytest.raises(InputError, match="a query is row 81, but the table has 80 rows; give the one evaluated"):
        metrics_by(result, table.take(range(80)))
    gaps = Table(table.frame.assign(light=table.frame["light"].where(table.frame.index != 5)))
    with pytest.raises(InputError, match="row 5 has no light"):
        metrics_by(result, gaps, "light")
