from pathlib import Path

import numpy as np

from tests.refusals import refused_call
from vicinal.utils.run_folder import read_log


def test_a_log_that_a_killed_process_left_is_read(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("step,loss,lr\n1,0.5,0.1\n2,0.25,0.1,7,7\n3,nan,0.1\n4,0.1e")
    log = read_log(tmp_path / "log.csv")
    assert log["step"].tolist() == [1, 3, 4]
    np.testing.assert_array_equal(log["loss"], [0.5, np.nan, np.nan])
    assert {column.kind for column in log.dtypes} <= {"i", "f"}


def test_a_missing_or_empty_log_has_no_rows(tmp_path: Path) -> None:
    assert list(read_log(tmp_path / "log.csv")) == ["step", "loss"]
    (tmp_path / "log.csv").touch()
    assert len(read_log(tmp_path / "log.csv")) == 0


def test_what_is_no_log_is_named(tmp_path: Path) -> None:
    for content in (b"loss,lr\n1,2\n", b"\xff\xfe,step\n1,2\n", b'step,"lo'):
        (tmp_path / "log.csv").write_bytes(content)
        refused_call(r"log\.csv: not a log of a run \(.+\)", read_log, tmp_path / "log.csv")
