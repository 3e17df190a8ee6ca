"""`vicinal enroll` and `vicinal identify`: from the first photo to decisions that are applied and remembered."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from tests.conftest import output, refused
from vicinal.cli import build_index
from vicinal.data import Table, save_embeddings
from vicinal.retrieval import Index

DIM = 6


def season(folder: Path, name: str, who: list[int], identities: bool) -> str:
    """Embeddings of photos of these individuals, with image files."""
    rng, paths = np.random.default_rng(len(who)), []
    for number, each in enumerate(who):
        path = folder / name / f"{each}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (80, 70, 3), dtype=np.uint8)).save(path)
        paths.append(str(path))
    vectors = np.eye(DIM)[who] + 0.05 * rng.normal(size=(len(who), DIM))
    frame = pd.DataFrame({"path": paths})
    if identities:
        frame["label"] = [f"cat {each}" for each in who]
    save_embeddings(folder / f"{name}.parquet", vectors.astype(np.float32), Table(frame))
    return str(folder / f"{name}.parquet")


@pytest.fixture
def station(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> Path:
    """A gallery of three cats, and photos of the second season: of two of them, and of two others."""
    monkeypatch.chdir(tmp_path)
    first = season(tmp_path, "first", [0, 0, 1, 1, 2], identities=True)
    season(tmp_path, "second", [0, 3, 3, 1, 4], identities=False)
    output(capsys, "enroll", "gallery", "--source", first)
    return tmp_path


def identified(capsys, *more: str) -> list[dict[str, object]]:
    text = output(capsys, "identify", "gallery", "--source", "second.parquet", "--min_score", "0.8", "--json", *more)
    return json.loads(text)


def decided(*lines: str) -> str:
    Path("decisions.csv").write_text("\n".join(["path,decision,identity", *lines, ""]))
    return "decisions.csv"


def enroll(capsys, *lines: str) -> dict[str, int]:
    text = output(capsys, "enroll", "gallery", "--source", "second.parquet", "--decisions", decided(*lines), "--json")
    return json.loads(text)


def labels() -> list[str]:
    return Index.load("gallery").metadata.frame["label"].tolist()


def test_photos_are_identified_decided_about_and_not_asked_about_again(station: Path, capsys) -> None:
    found = identified(capsys)
    assert [each["identity"] for each in found] == ["cat 0", "new-1", "new-1", "cat 1", "new-2"]
    assert [each["is_new"] for each in found] == [False, True, True, False, True]
    lines = ("0/0.png,same,cat 0", "3/1.png,new,Mimi", "3/2.png,new,Mimi", "1/3.png,not sure,")
    assert enroll(capsys, *lines) == {"same": 1, "new": 2, "not sure": 1}
    assert labels() == ["cat 0", "cat 0", "cat 1", "cat 1", "cat 2", "cat 0", "Mimi", "Mimi"]
    assert [Path(str(each["path"])).name for each in identified(capsys)] == ["4.png"]
    assert [Path(str(each["path"])).name for each in identified(capsys, "--ask_again")] == ["3.png", "4.png"]
    assert enroll(capsys, *lines) == {"same": 0, "new": 0, "not sure": 0}  # again
    assert enroll(capsys, "1/3.png,same,cat 1", "4/4.png,not sure,") == {"same": 1, "new": 0, "not sure": 1}
    assert [Path(key).name for key in Index.load("gallery").unsure] == ["4.png"]
    assert identified(capsys) == []


def test_the_written_file_is_filled_in(station: Path, capsys) -> None:
    identified(capsys, "--csv", "found.csv", "--page", "page.html")
    assert "vicinal enroll gallery --source second.parquet --decisions decisions.csv" in Path("page.html").read_text()
    frame = pd.read_csv("found.csv", keep_default_na=False)
    assert frame["decision"].tolist() == [""] * 5
    frame["decision"] = ["same", "new", "new", "", "not sure"]
    frame.to_csv("found.csv", index=False)
    text = output(capsys, "enroll", "gallery", "--source", "second.parquet", "--decisions", "found.csv")
    assert text.strip() == "1 same, 2 new, 1 not sure; the gallery has 8 photos"
    assert labels()[5:] == ["cat 0", "new-1", "new-1"]
    words = ["identify", "gallery", "--source", "second.parquet", "--min_score", "0.8", "--csv", "found.csv"]
    assert "--csv found.csv: holds 4 decisions, which would be lost; name another file" in refused(capsys, *words)


def test_wrong_decisions_change_nothing(station: Path, capsys) -> None:
    before = labels()
    for lines, message in (
        (["0/0.png,same,cat 9"], "line 2: same, but the gallery has no identity 'cat 9'; make it new"),
        (["0/0.png,new,cat 0"], "line 2: new, but the gallery has an identity 'cat 0'; make it same, or rename it"),
        ([f"0/0.png,same,{'x' * 500}"], f"line 2: same, but the gallery has no identity '{'x' * 30}"),
        (["0/0.png,same,"], "line 2: same, but no identity; give one"),
        (["0/0.png,keep,"], "decision is 'keep'; it can be same, new, not sure or empty"),
        (["9/9.png,same,cat 0"], "line 2: 9/9.png is not in the table"),
        (["3/1.png,new,Mimi", "3/1.png,not sure,"], "line 3: another decision about 3/1.png"),
    ):
        words = ["enroll", "gallery", "--source", "second.parquet", "--decisions", decided("4/4.png,new,Ada", *lines)]
        said = refused(capsys, *words)
        assert message.replace("line 2", "line 3").replace("line 3: another", "line 4: another") in said
        assert "\n" not in said
        assert len(said) < 300
        assert (labels(), Index.load("gallery").unsure) == (before, [])


def test_a_photo_under_another_identity_is_not_moved(station: Path, capsys) -> None:
    enroll(capsys, "3/1.png,new,Mimi")
    words = ["enroll", "gallery", "--source", "second.parquet", "--decisions", decided("3/1.png,same,cat 0")]
    assert "the photo is in the gallery under another identity, 'Mimi'; delete it first" in refused(capsys, *words)


def test_photos_of_the_gallery_without_an_identity_are_identified_and_get_one(station: Path, capsys) -> None:
    before = len(identified(capsys))
    output(capsys, "index", "add", "gallery", "second.parquet")
    assert len(identified(capsys)) == before == 5
    counts = enroll(capsys, "3/1.png,new,Mimi", "0/0.png,same,cat 0", "1/3.png,not sure,")
    assert counts == {"same": 1, "new": 1, "not sure": 1}
    assert len(identified(capsys)) == 2
    frame = Index.load("gallery").metadata.frame
    assert len(frame) == 10  # each photo once
    assert (frame["label"] == "Mimi").sum() == 1


def test_galleries_that_are_built_at_the_same_moment_lose_no_photo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = (season(tmp_path, name, who, True) for name, who in (("one", [0, 1]), ("two", [2, 2, 3])))
    new_index = build_index._new_index

    def built_while_another_enrolls(*arguments: object) -> object:
        built = new_index(*arguments)
        monkeypatch.setattr(build_index, "_new_index", new_index)
        output(capsys, "enroll", "gallery", "--source", two)
        return built

    monkeypatch.setattr(build_index, "_new_index", built_while_another_enrolls)
    text = output(capsys, "enroll", "gallery", "--source", one)
    assert "2 photos of 2 identities; the gallery has 5" in text


def test_what_cannot_be_done_is_one_line(station: Path, capsys) -> None:
    for words, message in (
        (["enroll", "new", "--source", "second.parquet"], "second.parquet has no labels; give them with --labels FILE"),
        (["enroll", "new", "--source", "second.parquet", "--decisions", "lost.csv"], "lost.csv: no such file"),
        (["identify", "gallery", "--source", "second.parquet", "--csv", "a.txt"], "name a file ending in .csv"),
        (["identify", "gallery", "--source", "second.parquet", "--page", "a.txt"], "name a file ending in .html"),
        (["identify", "new", "--source", "second.parquet"], "new: no such file or folder"),
    ):
        said = refused(capsys, *words)
        assert message in said
        assert "\n" not in said
        assert not Path("new").exists()


def test_images_are_embedded_by_the_model_of_the_gallery(run: Path, photos: Path, tmp_path: Path, capsys) -> None:
    text = output(capsys, "enroll", tmp_path / "gallery", "--source", photos, "--model", run)
    assert text.splitlines()[0] == "48 photos of 8 identities; the gallery has 48"
    small = [line for line in text.splitlines() if "small: 20 pixels" in line]
    assert len(small) == 20
    folder = tmp_path / "later"
    folder.mkdir()
    (folder / "a.png").write_bytes((photos / "class3" / "0.png").read_bytes())
    words = ["identify", tmp_path / "gallery", "--source", folder, "--min_score", 0.99, "--json"]
    found = json.loads(output(capsys, *words))
    assert [(each["identity"], round(each["score"], 4)) for each in found] == [("class3", 1.0)]
    (tmp_path / "d.csv").write_text("path,decision,identity\na.png,same,class3\n")
    output(capsys, "enroll", tmp_path / "gallery", "--source", folder, "--decisions", tmp_path / "d.csv")
    index = Index.load(tmp_path / "gallery")
    assert index.metadata.frame["file_hash"].notna().all()
    assert len(index) == 49
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "b.png").write_bytes(b"no image")
    (tmp_path / "d.csv").write_text("path,decision,identity\nb.png,new,Ada\n")
    words = ["enroll", tmp_path / "gallery", "--source", broken, "--decisions", tmp_path / "d.csv"]
    refused(capsys, *words)
    assert len(Index.load(tmp_path / "gallery")) == 49


def test_integer_identities_become_text_with_the_first_name(station: Path, capsys) -> None:
    frame = pd.DataFrame({"path": [f"/lost/{each}.png" for each in range(3)], "label": [4, 4, 9]})
    save_embeddings("numbers.parquet", np.eye(DIM, dtype=np.float32)[:3], Table(frame))
    output(capsys, "enroll", "numbered", "--source", "numbers.parquet")
    words = ["enroll", "numbered", "--source", "second.parquet", "--decisions"]
    output(capsys, *words, decided("0/0.png,same,4", "3/1.png,new,10"))
    assert Index.load("numbered").metadata.frame["label"].tolist() == [4, 4, 9, 4, 10]
    output(capsys, *words, decided("3/2.png,same,10", "4/4.png,new,Mimi"))
    assert Index.load("numbered").metadata.frame["label"].tolist() == ["4", "4", "9", "4", "10", "10", "Mimi"]
