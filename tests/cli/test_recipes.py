"""`vicinal train --recipes`: which recipes there are."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT, output, refused


def test_recipes_are_found_by_words_in_name_and_first_lines(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = output(capsys, "train", "--recipes", "Center", "contrastive", "cub", "table 2", "m = 0").split("\n\n")
    assert found[0].splitlines()[0] == "recipes/center_contrastive/cub_ccl.yaml"
    assert "expected: recall@1 71.8, recall@2 80.8, recall@4 87.8" in found[0]
    assert "vicinal train --recipes WORDS" in output(capsys, "train", "--recipes")


def test_words_that_no_recipe_has_are_an_error(capsys) -> None:
    assert "no recipe has all of the words cub submarine" in refused(capsys, "train", "--recipes", "cub", "submarine")
