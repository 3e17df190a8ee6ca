"""README, docs and tutorials are true: their commands and their Python blocks run."""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import QUICK, ROOT
from vicinal import Recipe, RefinerRecipe
from vicinal.cli.main import main, parse
from vicinal.models import embedder
from vicinal.training.recipes.recipe_values import setting_names

README, DOCS = ROOT / "README.md", ROOT / "docs"
DOCUMENTS = [README, *sorted(page for page in DOCS.rglob("*.md") if page.parent.name != "tutorials")]
PAGES = [README, *sorted(DOCS.rglob("*.md"))]
SET_UP = ["python3 -m venv .venv", "source .venv/bin/activate", "pip install ."]  # a test has all that already
# What makes the commands possible without a network, and quick; all else is as written.
WITHOUT_NETWORK = {"train": QUICK}


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)


def python_without_network(block: str) -> str:
    """A block with random instead of pretrained weights, and with a small backbone instead of a ResNet-50."""
    return block.replace("pretrained=True", "pretrained=False").replace('"resnet50"', '"test_resnet"')


def test_the_readmes_commands(folder: Path) -> None:
    lines = [line for block in blocks(README, "bash") for line in block.splitlines() if line]
    assert lines[:3] == SET_UP
    commands = lines[3:]
    assert len(commands) == 6
    for command in commands:
        program, verb, *arguments = shlex.split(command, comments=True)
        assert program == "vicinal"
        assert main([verb, *arguments, *WITHOUT_NETWORK.get(verb, [])]) == 0, command
    assert (folder / "found.png").is_file()
    assert (folder / "run" / "report.html").is_file()
    assert main(shlex.split("train --out run --resume")) == 0


WITH_PYTHON = [document for document in DOCUMENTS if blocks(document, "python")]


@pytest.mark.parametrize("document", WITH_PYTHON, ids=lambda path: path.name)
def test_python_blocks(document: Path, folder: Path) -> None:
    for block in blocks(document, "python"):
        exec(python_without_network(block), {})


RECIPES = {"train": Recipe, "tune": Recipe, "sweep": Recipe, "refine": RefinerRecipe}


def test_commands_that_are_shown_have_the_options_they_name() -> None:
    lines = [line for page in PAGES for block in blocks(page, "console") for line in block.splitlines()]
    settings = {verb: set(setting_names(recipe.schema())) for verb, recipe in RECIPES.items()}
    for line in lines:
        program, *words = shlex.split(line.removeprefix("$ "), comments=True)
        assert program == "vicinal", line
        given, rest = parse(words)
        flags = [word.removeprefix("--").partition("=")[0] for word in rest if word.startswith("-")]
        flags = [re.sub(r"^(search|grid)\.", "", flag) for flag in flags]
        known = settings.get(given.verb.__name__, set())
        unknown = [flag for flag in flags if flag not in known and not re.match(r"loss\.|model\.backbone_args\.", flag)]
        assert not unknown, line


def test_links_lead_somewhere() -> None:
    for document in PAGES:
        for target in re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_the_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The very demo, with one step, fewer classes and smaller pictures."""
    demo = runpy.run_path(str(ROOT / "examples" / "demo.py"))
    for images in sorted(demo["IMAGES"].iterdir())[:20]:
        shutil.copytree(images, tmp_path / "few" / images.name)
    settings = [*demo["SETTINGS"], f"--data.source={tmp_path / 'few'}", "--max_steps=1", "--transform.size=32"]
    monkeypatch.setitem(demo["main"].__globals__, "SETTINGS", settings)
    (tmp_path / "demo" / "run" / "model").mkdir(parents=True)  # as a former demo leaves it
    (tmp_path / "demo" / "run" / "last.pt").write_text("of another recipe")
    (tmp_path / "demo" / "thesis.txt").write_text("not ours")
    demo["main"](tmp_path / "demo")
    text = capsys.readouterr().out
    assert re.search(r"zero-shot .*\n.*trained ", text)
    assert "vicinal train --data.source photos/" in text
    for made in ("run/model/model.safetensors", "index/index.sqlite", "neighbors.png", "report.html", "thesis.txt"):
        assert (tmp_path / "demo" / made).is_file()


# Blocks of a tutorial run in order: `bash` as commands, `python` in one namespace for the whole page. A block of Python
# or YAML whose first line is a comment with a file name is written to that file. A block `text` right after another one
# is what that one prints.
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
LONG = ("label_noise", "own_loop", "all_known_classes", "choose_a_model", "matching_parts")
BLOCK = re.compile(r"^```(bash|python|yaml)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
STAND_INS = {"timm/vit_s14_dinov2": "timm/test_vit", "timm/resnet50": "timm/test_resnet"}
"""Models with random weights in place of pretrained ones, which need a network."""
FILE_NAME = re.compile(r"# ([\w.]+\.(?:py|yaml))\n")


def run_command(line: str) -> None:
    """Run a command of a page; a training is quick, but has the batches of the page."""
    words = shlex.split(line, comments=True)
    environment = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
    program, *arguments = [STAND_INS.get(word, word) for word in words[len(environment) :]]
    if program == "vicinal":
        for name, value in environment.items():
            assert (name, value) == ("PYTHONPATH", "."), line
        if arguments[0] == "train" and "--resume" not in arguments:
            arguments += QUICK
        try:
            status = main(arguments)
        except SystemExit as stopped:  # of --version and --help
            status = int(stopped.code or 0)
        assert status == 0, line
    else:
        programs = {"python": [sys.executable], "torchrun": [sys.executable, "-m", "torch.distributed.run"]}
        assert program in programs, line
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | environment
        subprocess.run([*programs[program], *arguments], check=True, env=environment, timeout=120)


def run_block(language: str, block: str, names: dict[str, Any]) -> None:
    """Run a block of a page, or write it to the file that it names."""
    name = FILE_NAME.match(block)
    if name is not None:
        Path(name[1]).write_text(python_without_network(block))
    elif language == "python":
        exec(python_without_network(block), names)
    elif language == "bash":
        for line in filter(None, block.splitlines()):
            if line not in SET_UP:
                run_command(line)


@pytest.fixture
def random_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    create = embedder.create_backbone

    def create_random(name: str, pretrained: bool | str | Path, *more: Any) -> torch.nn.Module:
        return create(name, False if pretrained is True else pretrained, *more)

    monkeypatch.setattr(embedder, "create_backbone", create_random)


@pytest.mark.usefixtures("random_weights")
@pytest.mark.filterwarnings("ignore")  # that classes are few, or in several splits: the pages say so
@pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.stem, marks=[pytest.mark.slow] * (page.stem in LONG)) for page in TUTORIALS]
)
def test_a_tutorial_runs_from_top_to_bottom(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("VICINAL_DATA", str(folder / "cache"))
    blocks = BLOCK.findall(page.read_text())
    assert any(language != "yaml" for language, *_ in blocks)
    names: dict[str, Any] = {"__name__": page.stem}
    for language, block, printed in blocks:
        capsys.readouterr()
        run_block(language, block, names)
        assert not printed or capsys.readouterr().out.strip() == printed.strip()
    for module in Path.cwd().glob("*.py"):  # the page's own; another page may use the same name
        sys.modules.pop(module.stem, None)
