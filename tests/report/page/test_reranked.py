"""The page of a re-ranked evaluation: its neighbors are re-ranked, and lines join the patches in common."""

from pathlib import Path

import numpy as np
import pytest

from tests.report.page.browser import Browser
from tests.report.page.cases import Page, digits_case
from vicinal.analysis import query_neighbors
from vicinal.data import ImageTransform
from vicinal.evaluation import evaluate
from vicinal.models import Embedder
from vicinal.report.page import write_page
from vicinal.retrieval import ContextualReranking, LocalEncoder, LocalReranking, rerank

LINES = "[...document.querySelectorAll('#viewer-patches line')]"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory):
    case = digits_case(tmp_path_factory.mktemp("digits"), 60)
    model = Embedder("test_resnet", dim=8, pretrained=False, transform=ImageTransform(size=48, resize=64)).eval()
    encoder = LocalEncoder.fit(model, case.table, dim=8, size=48)
    return case, LocalReranking(weight=2.0).with_features(encoder.features(case.table))


@pytest.fixture(scope="module")
def page(local, tmp_path_factory: pytest.TempPathFactory) -> Path:
    (vectors, table, _), method = local
    path = tmp_path_factory.mktemp("pages") / "report.html"
    write_page(path, vectors, table, evaluate(vectors, table, rerank=method), rerank=method)
    return path


@pytest.mark.parametrize("method", ["local", ContextualReranking(k=5)])
def test_neighbors_are_those_of_the_reranking(local, method) -> None:
    (vectors, table, _), method = local[0], local[1] if method == "local" else method
    found = query_neighbors(vectors, table, k=7, rerank=method)
    wanted = rerank(vectors, vectors, 7, method, exclude_self=np.arange(60))
    np.testing.assert_array_equal(found.ids, wanted.ids)
    np.testing.assert_array_equal(found.scores, wanted.scores)
    assert (found.ids != query_neighbors(vectors, table, k=7).ids).any()


def test_the_patches_of_a_page_are_searched_for_once(local, tmp_path: Path, monkeypatch) -> None:
    (vectors, table, _), method = local
    asked: list[int] = []
    sums = LocalReranking.sums
    monkeypatch.setattr(
        LocalReranking, "sums", lambda self, query, rows: asked.append(query) or sums(self, query, rows)
    )
    method = method.with_features(method.features()[0])
    write_page(tmp_path / "p.html", vectors, table, evaluate(vectors, table, rerank=method), rerank=method)
    assert sorted(asked) == list(range(60))


def test_the_page_says_how_it_was_ranked_and_holds_the_patches(page: Path, local) -> None:
    (_, table, _), method = local
    text, data = Page(page).words, Page(page).data
    assert "Rankings are re-ranked by LocalReranking(k=100, weight=2.0" in text
    assert "numbers: score after re-ranking" in text
    assert data["square"] == 0.75
    names = [Path(image["file"]).name for image in data["images"]]
    row_of = {Path(path).name: row for row, path in enumerate(table.paths)}
    for pair, patches in list(data["patches"].items())[:20]:
        query, image = (row_of[names[int(number)]] for number in pair.split())
        assert patches == method.matches(query, [image])[0].to_list()


def test_lines_join_the_patches_of_a_query_and_its_neighbor(page: Path, tab: Browser) -> None:
    tab.open(page)
    patches = Page(page).data["patches"]
    tab.click("#queries .cells > li:nth-child(2) .cell")
    numbers = tab.ask(
        "[...document.querySelectorAll('#queries .cells .cell')].slice(0, 2).map((one) => one.dataset.view)"
    )
    drawn = patches[" ".join(numbers)]
    assert tab.ask(f"{LINES}.length") == len(drawn) > 0
    x, y, other_x, other_y, _ = drawn[0]
    ends = tab.ask(f"['x1', 'y1', 'x2', 'y2'].map((name) => {LINES}[0][name].baseVal.value)")
    np.testing.assert_allclose(ends, [100 * x, 100 * y, 108 + 100 * other_x, 100 * other_y], rtol=1e-5)
    assert f"{len(drawn)} matching parts" in tab.ask("document.getElementById('found-note').textContent")
    assert tab.ask("document.getElementById('viewer-patches').checkVisibility()")
    assert not tab.ask("document.getElementById('found-image').checkVisibility()")  # it is in the drawing
    tab.press("ArrowLeft")  # the query alone
    assert not tab.ask("document.getElementById('viewer-patches').checkVisibility()")
    assert tab.ask("document.getElementById('found-image').checkVisibility()")
    assert tab.errors == []
