import re
from datetime import date
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.refusals import refused_call
from tests.report.page.cases import Case, Page, case_of, digits_case, write_run
from vicinal.data import Table
from vicinal.evaluation import evaluate
from vicinal.report import write_page, write_unlabeled_page
from vicinal.report.page.run import curves_section, read_run

SECTIONS = ["metrics", "queries", "map", "classes", "confusions", "similarities", "hubs"]
SECTIONS += ["duplicates", "label-errors", "data", "curves", "recipe"]


@pytest.fixture(scope="module")
def page(written: Path) -> Page:
    return Page(written)


def test_everything_is_there(page: Page, digits: Case) -> None:
    assert page.sections == SECTIONS
    assert [link["href"] for link in page.all("a")] == ["#main", *(f"#{name}" for name in SECTIONS)]
    assert page.unclosed == []
    for name, value in digits.evaluation.metrics.items():
        assert name in page.words
        assert f"{100 * value:.2f} %" in page.words
    assert "90.00 to 95.00 %" in page.words
    assert "margin: 0.1  # </pre><script>" in page.words
    assert "200 queries, 200 gallery images" in page.words


def test_the_header_says_what_was_evaluated(digits: Case, tmp_path) -> None:
    run = write_run(tmp_path / "run")
    (run / "recipe.yaml").write_text("model: {backbone: resnet50}\n")
    frame = digits.table.frame
    table = Table(frame.assign(split=np.where(frame["label"] < "digit 5", "val", "test")))
    options = {"run": run, "num_left_out": 3, "map_images": 0}
    write_page(tmp_path / "page.html", digits.vectors, table, digits.evaluation, **options)
    header = Page(tmp_path / "page.html").words.split("Evaluation")[2].split("Colors")[0]
    parts = ["splits val, test", "resnet50, 64 dimensions", "leave-one-out: 200 queries, 200 gallery images"]
    assert " · ".join([*parts, "3 files left out", date.today().isoformat()]) in header
    bare = Table(digits.table.frame[["path"]])
    write_unlabeled_page(tmp_path / "bare.html", digits.vectors, bare, backbone="vit", map_images=0)
    assert "vit, 64 dimensions · 200 images without labels · 2" in Page(tmp_path / "bare.html").words
    small = np.eye(2), Table(pd.DataFrame({"label": ["a", "a"]}))
    write_page(tmp_path / "small.html", *small, evaluate(*small), num_left_out=1)
    words = Page(tmp_path / "small.html").words
    assert "2 dimensions · leave-one-out: 2 queries, 2 gallery images · 1 file left out" in words


def test_nothing_is_loaded(page: Page) -> None:
    assert not re.search(r"""https?:|["'(]//[a-z]|@import|url\([^#]""", page.source, re.IGNORECASE)
    assert not [tag for tag, attributes in page.elements if tag != "link" and ("src" in attributes)]
    assert [link["href"] for link in page.all("link")] == ["data:,"]
    policy = page.all("meta", **{"http-equiv": "Content-Security-Policy"})[0]["content"]
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_people_without_eyes_or_mouse_can_use_it(page: Page) -> None:
    assert page.all("html") == [{"lang": "en"}]
    assert [len(page.all(tag)) for tag in ("header", "nav", "main", "footer", "h1")] == [1, 1, 1, 1, 1]
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    named = [value for _, attributes in page.elements for key, value in attributes.items() if key == "aria-labelledby"]
    assert set(named) <= set(ids)
    assert all(
        attributes.get("alt") or attributes["id"] in ("found-image", "query-image", "map-tip-image")
        for attributes in page.all("img")
    )
    assert all(cell.get("scope") in ("col", "row") for cell in page.all("th"))
    assert len(page.all("p", class_="lead")) >= len(SECTIONS)  # every section says what it shows
    assert all(picture.get("aria-label") or picture.get("aria-hidden") for picture in page.all("svg"))
    assert page.all("canvas")[0]["tabindex"] == "0"
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert page.all("p", id="map-said")[0]["aria-live"] == "polite"


def test_neighbors_are_marked_by_more_than_color(page: Page, digits: Case) -> None:
    cells = page.all("button", type="button")
    match = [cell for cell in cells if cell.get("class") == "cell match"]
    mismatch = [cell for cell in cells if cell.get("class") == "cell mismatch"]
    assert match
    assert mismatch
    assert all(", match, similarity" in str(cell["data-note"]) for cell in match)
    assert all(", mismatch, similarity" in str(cell["data-note"]) for cell in mismatch)
    marks = [len(re.findall(rf"{mark} -?\d\.\d\d", page.words)) for mark in "✓✗"]
    assert marks == [len(match), len(mismatch)]


def test_each_image_is_in_the_file_once(page: Page) -> None:
    images = page.data["images"]
    assert len({image["file"] for image in images}) == len(images) <= 200
    assert all(len(image["src"]) > 100 for image in images)
    assert page.source.count(images[0]["src"]) == 1
    shown = {int(str(cell["data-view"])) for cell in page.all("button") if "data-view" in cell}
    assert shown <= set(range(len(images)))
    assert shown == {int(str(image["data-image"])) for image in page.all("img") if "data-image" in image}


def test_map_data_fit_together(page: Page, digits: Case) -> None:
    drawn = page.data["map"]
    assert [len(drawn[key]) for key in ("x", "y", "label", "image", "match")] == [60] * 5
    assert set(drawn["match"]) <= {0, 1}
    names = [drawn["classes"][label] for label in drawn["label"]]
    assert names == [page.data["images"][image]["label"] for image in drawn["image"]]
    options = [option["value"] for option in page.all("option")]
    assert options == ["-1", *map(str, range(len(drawn["classes"])))]


def test_hostile_text_stays_text(tmp_path) -> None:
    bad = '</script><script>alert("1")</script>'
    labels = [bad, bad, "<img src=x onerror=alert(1)>", "<img src=x onerror=alert(1)>", "{{script}}", "{{script}}"] * 3
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(18, 4))
    plain, hostile = tmp_path / "plain.html", tmp_path / "hostile.html"
    run = write_run(tmp_path / "run")
    (run / "metrics.csv").write_text(f'step,"{bad.replace(chr(34), "")}"\n1,2\n3,4\n')
    write_page(plain, *case_of(vectors, [f"label {label}" for label in pd.factorize(pd.Series(labels))[0]]))
    write_page(hostile, *case_of(vectors, labels), title=bad, run=run)
    page = Page(hostile)
    assert len(page.all("script")) == len(Page(plain).all("script")) == 2
    assert not [attributes for attributes in page.all("img") if "onerror" in attributes]
    assert page.unclosed == []
    assert page.words.count(bad) > 10
    assert {image["label"] for image in page.data["images"]} == set(labels)


def test_without_run_and_without_images(tmp_path) -> None:
    rng = np.random.default_rng(0)
    write_page(tmp_path / "page.html", *case_of(rng.normal(size=(30, 4)), np.arange(30) % 3))
    page = Page(tmp_path / "page.html")
    assert page.sections == [name for name in SECTIONS if name not in ("recipe", "curves")]
    assert all(image["src"] is None for image in page.data["images"])
    assert not [image for image in page.all("img") if "data-image" in image]
    assert "row 1" in page.words
    assert "could not be read" not in page.words


def test_the_home_folder_is_not_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    (tmp_path / "images").mkdir()
    run = write_run(tmp_path / "run")
    (run / "recipe.yaml").write_text(f"data:\n  source: {tmp_path}/images\n")
    case = digits_case(tmp_path / "images", 20)
    write_page(tmp_path / "page.html", *case, run=run, title=f"{tmp_path}/run", map_images=0)
    page = Page(tmp_path / "page.html")
    assert str(tmp_path) not in page.source
    assert "source: ~/images" in page.words
    assert page.data["images"][0]["file"].endswith(".png")


GAINS = {"lowest gain in standard errors": [0, -0.4, -0.6, 0]}


def test_the_learning_curves_mark_the_kept_epoch(tmp_path) -> None:
    run = write_run(tmp_path / "run")
    (run / "log.csv").unlink()  # whose charts say nothing of it
    for guardrails, gains, kept in (
        ("", {}, 2),
        ("guardrail_metrics: [recall@1]\n", GAINS, 3),  # a gain is lower than half a standard error
        ("guardrail_metrics: []\n", GAINS, 2),
    ):
        (run / "recipe.yaml").write_text(f"validation: {{metric: recall@1}}\n{guardrails}")
        (run / "metrics.csv").write_text(
            "step,epoch,recall@1,mAP\n0,0,0.1,0.3\n9,1,0.5,0.4\n18,2,0.9,0.2\n27,3,0.6,0.5\n"
        )
        pd.read_csv(run / "metrics.csv").assign(**gains).to_csv(run / "metrics.csv", index=False)
        section = curves_section({"run": read_run(run)})
        assert section is not None
        assert f"A ring marks the evaluation whose weights were kept (epoch {kept})." in section.content
        if guardrails and kept == 2:
            both = curves_section({"one": read_run(run), "two": read_run(run)})
            assert both is not None
            assert "kept (one: epoch 2; two: epoch 2)" in both.content


def test_scores_on_validation_and_training_images_are_in_one_chart(tmp_path) -> None:
    run = write_run(tmp_path / "run")
    (run / "metrics.csv").write_text("step,epoch,recall@1,mAP,train recall@1\n0,0,0.1,0.3,0.2\n9,1,0.5,0.4,1\n")
    section = curves_section({"run": read_run(run)})
    assert section is not None
    charts = section.content.split("<figure>")[1:]
    together = next(chart for chart in charts if "the model overfits" in chart)
    assert [name in together for name in (">recall@1</text>", ">train recall@1</text>", "mAP")] == [True, True, False]
    assert " thin" in together
    assert sum("mAP" in chart for chart in charts) == 1


def test_smallest_set(tmp_path) -> None:
    write_page(tmp_path / "page.html", *case_of(np.eye(2), ["a", "a"]))
    page = Page(tmp_path / "page.html")
    assert page.data["map"] is None
    assert not page.all("canvas")
    assert "nan" not in page.words


def test_all_the_same(tmp_path) -> None:
    write_page(tmp_path / "page.html", *case_of(np.ones((12, 3)), [0, 1] * 6))
    page = Page(tmp_path / "page.html")
    assert page.data["map"] is None
    assert "among the 10 nearest of each query, more similar than 0.999. There are " in page.words


def test_queries_and_gallery_of_which_images_are_lost(digits: Case, tmp_path) -> None:
    frame = digits.table.frame.assign(is_query=np.arange(200) < 50, is_gallery=np.arange(200) >= 50)
    frame["path"] = [path if row % 2 else f"/nowhere/lost{row}.png" for row, path in enumerate(frame["path"])]
    evaluation = evaluate(digits.vectors, Table(frame))
    write_page(tmp_path / "page.html", digits.vectors, Table(frame), evaluation)
    page = Page(tmp_path / "page.html")
    assert "query/gallery: 50 queries, 150 gallery images" in page.words
    assert len(page.data["map"]["x"]) == 150
    assert set(page.data["map"]["match"]) == {-1}
    lost = sum(image["src"] is None for image in page.data["images"])
    assert lost > 75
    assert f"{lost} images could not be read" in page.words


def test_runs_are_read_as_far_as_they_are_there(tmp_path) -> None:
    run = read_run(write_run(tmp_path / "run"))
    assert len(run.log) == 9
    assert len(run.metrics) == 2
    assert run.table is not None
    for name in ("recipe.yaml", "log.csv", "metrics.csv", "table.parquet"):
        (tmp_path / "run" / name).unlink()
    (tmp_path / "run" / "log.csv").touch()
    run = read_run(tmp_path / "run")
    assert (run.recipe, len(run.log), len(run.metrics), run.table) == (None, 0, 0, None)
    refused_call("nothing: no such run", read_run, tmp_path / "nothing")
