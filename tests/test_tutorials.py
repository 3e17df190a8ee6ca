"""The tutorials are true: each page is worked through from top to bottom, in a folder of its own.

Blocks of a page run in order: `bash` as commands, `python` in one namespace for the whole page. A block of Python or
YAML whose first line is a comment with a file name is written to that file. A block `text` right after another one is
what that one prints.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import QUICK, ROOT
from tests.test_documents import SET_UP, python_without_network
from vicinal.cli.main import main
from vicinal.models import embedder

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
    """Backbones have random weights in place of published ones."""
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
