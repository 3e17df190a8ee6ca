"""README and docs are true: their commands and their Python blocks run."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
from pathlib import Path

import pytest

from tests.conftest import ROOT, SMALL
from vicinal.cli.main import WITH_RECIPE, build_parser, main

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# What makes the commands possible without a network, and quick; all else is as written.
WITHOUT_NETWORK = {"train": [*SMALL, "--batch_size=4"]}


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with photos of the names that the documents use."""
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "photos" / "class0").rename(tmp_path / "photos" / "owl")
    (tmp_path / "photos" / "owl" / "1.png").rename(tmp_path / "photos" / "owl" / "1.jpg")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_readmes_commands(folder: Path) -> None:
    commands = [line for block in blocks(ROOT / "README.md", "bash") for line in block.splitlines() if line]
    assert len(commands) == 6
    for command in commands:
        program, verb, *arguments = shlex.split(command, comments=True)
        assert program == "vicinal"
        assert main([verb, *arguments, *WITHOUT_NETWORK.get(verb, [])]) == 0, command
    assert (folder / "found.png").is_file()
    assert (folder / "run" / "report.html").is_file()
    assert main(shlex.split("train --out run --resume")) == 0


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_blocks(document: Path, folder: Path) -> None:
    for block in blocks(document, "python"):
        exec(block.replace("pretrained=True", "pretrained=False"), {})


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_that_are_shown_have_the_options_they_name(document: Path) -> None:
    for block in blocks(document, "console"):
        for line in block.splitlines():
            program, *arguments = shlex.split(line.removeprefix("$ "), comments=True)
            assert program == "vicinal"
            given, rest = build_parser().parse_known_args(arguments)
            assert not rest or given.verb in WITH_RECIPE, line


def test_links_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_the_readme_names_the_make_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^    make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_the_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The very demo, with one epoch in the place of ten."""
    demo = runpy.run_path(str(ROOT / "examples" / "demo.py"))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(demo["RECIPE"].read_text().replace("epochs: 10", "epochs: 1"))
    monkeypatch.setitem(demo["main"].__globals__, "RECIPE", recipe)
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "thesis.txt").write_text("not ours")
    for _ in range(2):  # it may be run again
        demo["main"](tmp_path / "demo")
    text = capsys.readouterr().out
    assert re.search(r"before training +\d+\.\d %\n +after training +\d+\.\d %", text)
    assert "vicinal train --data.source photos/ --out run" in text
    for made in ("run/model/model.safetensors", "index/config.json", "neighbors.png", "report.html", "thesis.txt"):
        assert (tmp_path / "demo" / made).is_file()
