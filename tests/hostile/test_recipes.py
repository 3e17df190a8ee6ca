"""Recipes that somebody wrote to do harm: nothing in them runs, and each is one line that says what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from vicinal.cli.main import main
from vicinal.training import Recipe, RefinerRecipe, resume
from vicinal.utils.errors import InputError

PLAIN = "class_path would create an object; give"
UNKNOWN = "is not the name of a Loss class"

GADGETS = {
    "os.system": "{command: touch executed}",
    "posix.system": "{command: touch executed}",
    "os.mkdir": "{path: executed}",
    "subprocess.Popen": "{args: [touch, executed]}",
    "subprocess.run": "{args: [touch, executed]}",
    "builtins.eval": "{source: \"open('executed', 'w')\"}",
    "builtins.exec": "{source: \"open('executed', 'w')\"}",
    "builtins.open": "{file: executed, mode: w}",
    "importlib.import_module": "{name: gadget}",
    "runpy.run_path": "{path_name: gadget.py}",
    "torch.load": "{f: gadget.pt, weights_only: false}",
    "torch.hub.load": "{repo_or_dir: ., model: x, source: local}",
    "pickle.loads": "{data: x}",
    "functools.partial": "{func: os.system}",
    "pathlib.Path": "{args: executed}",
    "shutil.rmtree": "{path: kept}",
    "logging.FileHandler": "{filename: executed}",
    "vicinal.utils.files.os.mkdir": "{path: executed}",
    "vicinal.utils.files.write_bytes": "{path: executed, data: x}",
    "vicinal.models.Embedder": "{backbone: test_resnet}",
    "gadget.Gadget": "{}",
}

PLACES = {
    "backbone_args": ("model: {{backbone_args: {{a: {0}}}}}", PLAIN),
    "itself": ("model: {{backbone_args: {0}}}", PLAIN),
    "nested": ("model: {{backbone_args: {{a: [1, {{b: [{0}]}}]}}}}", PLAIN),
    "loss": ("loss: {0}", UNKNOWN),
    "losses": (
        "loss: {{class_path: WeightedSum, init_args: {{weights: [1], losses: [{0}]}}}}",
        UNKNOWN,
    ),
    "miner": ("loss: {{class_path: MarginLoss, init_args: {{miner: {0}}}}}", "is not the name of a Miner class"),
    "inner loss": ("loss: {{class_path: SiMix, init_args: {{loss: {0}}}}}", UNKNOWN),
    "number": ("loss: {{class_path: MarginLoss, init_args: {{margin: {0}}}}}", "must be a number"),
    "group": ("data: {0}", "unknown key data.class_path"),
    "value": ("epochs: {0}", "must be an integer"),
    "source": ("data: {{source: {0}}}", "must be text"),
    "dotted": ("loss.class_path: {1}", UNKNOWN),
    "dotted model": ("model.backbone_args.a.class_path: {1}", PLAIN),
    "key": ("model: {{backbone_args: {{{1}: 1, class_path: {1}}}}}", PLAIN),
    "merged": ("loss: {{<<: {0}}}", UNKNOWN),
}

DOUBLED = "m0: &m0 {a: 1, b: 2}\n" + "".join(f"m{i}: &m{i}\n  <<: [*m{i - 1}, *m{i - 1}]\n" for i in range(1, 40))
LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)

# Kind, case, the recipe, what the line says.
CASES = [
    *(
        (f"class path in {place}", gadget, text.format(
            f"{{class_path: {gadget}, init_args: {arguments}}}", gadget
        ), line)
        for place, (text, line) in PLACES.items()
        for gadget, arguments in GADGETS.items()
        if place in ("backbone_args", "loss") or gadget in ("os.system", "gadget.Gadget")
    ),
    ("include", "recipe", "recipe: other.yaml\n", "unknown key recipe"),
    ("extends", "gadget", "extends: other.yaml\n", "other.yaml:1: unknown key class_path"),
    ("extends", "loss of a gadget", "extends: loss.yaml\n", "loss.yaml:1: loss = gadget.Gadget is not the"),
    ("extends", "python", "extends: gadget.py\n", "gadget.py:2: not YAML"),
    ("extends", "device", "extends: /dev/zero\n", "but there is no file /dev/zero"),
    ("extends", "nested", "data: {extends: other.yaml}\n", "unknown key data.extends"),
    ("extends", "in a class", "loss: {extends: other.yaml}\n", "unknown key loss.extends"),
    ("include", "config", "config: other.yaml\n", "unknown key config"),
    ("include", "loss file", "loss: other.yaml\n", UNKNOWN),
    ("include", "miner file", "loss: {class_path: MarginLoss, init_args: {miner: other.yaml}}\n", "Miner class"),
    ("include", "group file", "data: other.yaml\n", "data is a group"),
    ("include", "at file", "loss: '@other.yaml'\n", UNKNOWN),
    ("include", "path key", "model: {__path__: other.yaml}\n", "unknown key model.__path__"),
    ("include", "schema key", "$schema: other.yaml\n", "unknown key $schema"),
    ("include", "default", "loss: {__default__: os.system}\n", "unknown key loss.__default__"),
    ("include", "interpolation", "epochs: ${oc.env:HOME}\n", "epochs = ${oc.env:HOME} must be an integer"),
    ("include", "allowed by the file", "allow_import: gadget\nloss: gadget.Gadget\n", "unknown key allow_import"),
    ("dict_kwargs", "loss", "loss: {class_path: MarginLoss, dict_kwargs: {a: 1}}\n", "unknown key loss.dict_kwargs"),
    ("dict_kwargs", "model", "model: {dict_kwargs: {a: 1}}\n", "unknown key model.dict_kwargs"),
    ("private class", "miner", "loss: {class_path: MarginLoss, init_args: {miner: _CombinedMiner}}\n", "Miner class"),
    ("init_args", "list", "loss: {class_path: MarginLoss, init_args: [1]}\n", "loss.init_args is [1]; give the"),
    ("class path", "list", "loss: {class_path: [os.system]}\n", UNKNOWN),
    ("class path", "number", "loss: {class_path: 3}\n", UNKNOWN),
    ("class path", "null", "loss: {class_path: null, init_args: {gamma: 3}}\n", "unknown key loss.gamma"),
    ("tag", "apply", "epochs: !!python/object/apply:os.system ['touch executed']\n", "the tag !!python/object/apply"),
    ("tag", "name", "loss: !!python/name:os.system\n", "the tag !!python/name:os.system is not a plain value"),
    ("tag", "binary", "epochs: !!binary aGk=\n", "the tag !!binary is not a plain value"),
    ("tag", "own", "epochs: !own 3\n", "the tag !own is not a plain value"),
    ("tag", "in text", "model: {backbone_args: '!!python/object/apply:os.system [a]'}\n", "must be a mapping"),
    ("bomb", "aliases", LAUGHS, "more than 100,000 values"),
    ("bomb", "doubling map", DOUBLED, "more than 100,000 values"),
    ("bomb", "deep list", "epochs: " + "[" * 100_000, "more than 32 levels"),
    ("bomb", "deep map", "model: {backbone_args: " + "{a: " * 40 + "1" + "}" * 41, "more than 32 levels"),
    ("bomb", "long list", "schedule: {steps: [" + "1, " * 200_000 + "]}", "more than 100,000 values"),
    ("bomb", "long number", "seed: " + "9" * 10_000, "9... is not a plain value"),
    ("bomb", "itself", "model: {backbone_args: &x {a: *x}}\n", "a value contains itself"),
    ("key", "list", "? [a, b]\n: 1\n", "a key must be a name"),
    ("key", "map", "data: {{a: 1}: 2}\n", "a key must be a name"),
    ("key", "null", "null: 1\n", "unknown key None"),
    ("key", "long", "a" * 1000 + ": 1\n", "unknown key aaaa"),
    ("null", "number", "optimizer: {lr: null}\n", "optimizer.lr = null must be a number"),
    ("null", "whole number", "seed: null\n", "seed = null must be an integer"),
    ("null", "element", "schedule: {steps: [null]}\n", "must be a list, each element an integer"),
    ("null", "fraction", "data: {fractions: {train: null}}\n", "must be a mapping, each value a number"),
    ("null", "argument", "loss: {class_path: MarginLoss, init_args: {margin: null}}\n", "loss.margin = null must be a"),
    ("null", "metrics", "validation: {metric: null}\n", "validation.metric = null must be text"),
    ("value", "escapes", 'epochs: "\\e[2J"\n', "epochs = "),
    ("value", "infinite", "epochs: .inf\n", "epochs = inf must be an integer"),
    ("value", "document", "epochs: 1\n---\nepochs: 2\n", "not YAML"),
]  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with files that a hostile recipe may name."""
    (tmp_path / "gadget.py").write_text("open('executed', 'w')\nclass Gadget: pass\n")
    (tmp_path / "other.yaml").write_text("class_path: gadget.Gadget\n")
    (tmp_path / "loss.yaml").write_text("loss: gadget.Gadget\n")
    (tmp_path / "kept").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def _check_untouched(place: Path) -> None:
    assert not (place / "executed").exists()
    assert (place / "kept").exists()
    assert "gadget" not in sys.modules


@pytest.mark.parametrize(("text", "line"), [case[2:] for case in CASES], ids=[f"{k}: {c}" for k, c, *_ in CASES])
def test_a_hostile_recipe_is_one_line_and_runs_nothing(place: Path, text: str, line: str) -> None:
    (place / "recipe.yaml").write_text(text)
    started = time.monotonic()
    with pytest.raises(InputError) as error:
        Recipe.load("recipe.yaml")
    message = str(error.value)
    assert line in message
    assert "recipe.yaml" in message or message.startswith(line)  # which names the extended file
    assert "\n" not in message
    assert len(message) < 1000
    assert time.monotonic() - started < 5
    _check_untouched(place)


OVERRIDES = [
    ("--model.backbone_args={a: {class_path: os.system, init_args: {command: touch executed}}}", PLAIN),
    ("--model.backbone_args.a={class_path: os.system, init_args: {command: touch executed}}", PLAIN),
    ("--model.backbone_args.a.class_path=os.system", PLAIN),
    ("--model.backbone_args.a=class_path: os.system", PLAIN),
    ("--model.backbone_args=class_path: os.system", PLAIN),
    ("--loss=gadget.Gadget", UNKNOWN),
    ("--loss.miner.class_path=gadget.Gadget", "is not the name of a Miner class"),
    ("--loss.losses+=gadget.Gadget", "unknown key loss.losses"),
    ("--loss=other.yaml", UNKNOWN),
    ("--recipe=other.yaml", "unknown key recipe"),
    ("--data=other.yaml", "data is a group"),
    ("--config=other.yaml", "unknown key config"),
    ("--print_config=", "unknown key print_config"),
    ("--loss.dict_kwargs.a=1", "unknown key loss.dict_kwargs"),
    ("--data.fractions={[a]: 1}", "--data.fractions {[a]: 1}: not YAML: found unhashable key"),
    ("--schedule.steps=" + "[" * 1000, "more than 32 levels"),
    ("--data.fractions=&a {b: *a}", "must be a mapping"),
    ("--epochs={!!python/object/apply:os.system [touch executed]}", "is not a plain value"),
]


@pytest.mark.parametrize(("override", "line"), OVERRIDES, ids=[override[:60] for override, _ in OVERRIDES])
def test_a_hostile_override_is_one_line_and_runs_nothing(place: Path, override: str, line: str) -> None:
    with pytest.raises(InputError) as error:
        Recipe.load(overrides=[override])
    assert line in str(error.value)
    assert "\n" not in str(error.value)
    _check_untouched(place)


@pytest.mark.parametrize("text", ["loss: gadget.Gadget", "refiner: {depth: {class_path: os.system}}"])
def test_a_hostile_recipe_of_a_refiner_runs_nothing(place: Path, text: str) -> None:
    (place / "recipe.yaml").write_text(f"embeddings: e.parquet\n{text}\n")
    with pytest.raises(InputError, match=r"recipe.yaml:2: (loss|refiner.depth) = "):
        RefinerRecipe.load("recipe.yaml")
    _check_untouched(place)


def test_the_recipe_of_a_run_from_a_stranger_runs_nothing(place: Path, capsys) -> None:
    (place / "run").mkdir()
    text = "model: {backbone_args: {a: {class_path: os.system, init_args: {command: touch executed}}}}\n"
    (place / "run" / "recipe.yaml").write_text(text)
    with pytest.raises(InputError, match=PLAIN):
        resume("run")
    (place / "run" / "recipe.yaml").write_text("loss: gadget.Gadget\n")
    assert main(["train", "--out", "run", "--resume"]) == 2
    assert "run/recipe.yaml:1: loss = gadget.Gadget is not the name of a Loss class; for a class of your own, add " in (
        capsys.readouterr().err
    )
    _check_untouched(place)


@pytest.mark.parametrize("words", [["--loss.help", "gadget.Gadget"], ["--loss.help=os.system"], ["--data.help", "x"]])
def test_help_runs_nothing(place: Path, words: list[str], capsys) -> None:
    assert main(["train", *words]) == 2
    assert f"{words[0].partition('=')[0]} " in capsys.readouterr().err
    _check_untouched(place)


OWN = """
from collections.abc import Callable
from typing import Any
from vicinal.losses import MarginLoss
open("imported", "w")
class OwnLoss(MarginLoss):
    def __init__(self, scale: float = 1.0, anything: Any = None, function: Callable[[int], int] | None = None) -> None:
        super().__init__(scale / 10)
        self.anything = anything
"""


@pytest.fixture
def own(place: Path) -> Path:
    """A package of the user's own with a loss."""
    (place / "own_package").mkdir()
    (place / "own_package" / "__init__.py").touch()
    (place / "own_package" / "losses.py").write_text(OWN)
    before = {name: sys.modules.pop(name, None) for name in ("own_package", "own_package.losses")}
    yield place
    for name, module in before.items():  # they stay importable, since their classes stay
        if module is not None:
            sys.modules.setdefault(name, module)


def test_a_class_of_ones_own_is_taken_where_the_user_says_so(own: Path) -> None:
    (own / "recipe.yaml").write_text("loss: {class_path: own_package.losses.OwnLoss, init_args: {scale: 3}}\n")
    with pytest.raises(InputError, match=r"recipe.yaml:1: loss = own_package.losses.OwnLoss .* --allow_import own_pac"):
        Recipe.load("recipe.yaml")
    with pytest.raises(InputError, match="is not the name of a Loss class"):
        Recipe.load("recipe.yaml", allow_imports=("json",))
    assert not (own / "imported").exists()
    recipe = Recipe.load("recipe.yaml", ["--loss.anything={a: [1]}"], allow_imports=("own_package",))
    loss = recipe.create_loss()
    assert (type(loss).__name__, loss.margin, loss.anything) == ("OwnLoss", pytest.approx(0.3), {"a": [1]})
    assert recipe.config["loss"]["class_path"] == "own_package.losses.OwnLoss"
    recipe.save("saved.yaml")
    assert Recipe.load("saved.yaml", allow_imports=recipe.allow_imports).config == recipe.config


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("function: os.system", "loss.function takes a function or a class, which a recipe cannot give"),
        ("anything: {class_path: os.system, init_args: {command: touch executed}}", PLAIN),
        ("scale: {class_path: os.system, init_args: {command: touch executed}}", "must be a number"),
    ],
)
def test_a_class_of_ones_own_lets_nothing_else_in(own: Path, arguments: str, line: str) -> None:
    (own / "recipe.yaml").write_text(f"loss:\n  class_path: own_package.losses.OwnLoss\n  init_args: {{{arguments}}}\n")
    with pytest.raises(InputError) as error:
        Recipe.load("recipe.yaml", allow_imports=("own_package",))
    assert line in str(error.value)
    _check_untouched(own)


def test_an_own_package_that_cannot_be_imported_is_one_line(own: Path) -> None:
    for name, reason in (("none", "No module named 'none'"), ("own_package.losses", "invalid syntax")):
        (own / "own_package" / "losses.py").write_text("class (\n")
        with pytest.raises(InputError, match=rf"--allow_import {name}: it cannot be imported \({reason}"):
            Recipe.load(allow_imports=(name,))


@pytest.mark.slow
def test_a_run_with_a_loss_of_ones_own_needs_the_flag_again(own: Path, small: list[str]) -> None:
    def train(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "vicinal", "train", "--out", "run", *words]
        path = f"{ROOT}:{own}"
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})

    first = train(*small, "--epochs=1", "--loss=own_package.losses.OwnLoss", "--allow-import", "own_package")
    assert first.returncode == 0, first.stderr
    again = train("--resume")
    assert again.returncode == 2
    assert "add --allow_import own_package" in again.stderr
    assert train("--resume", "--allow_import=own_package").returncode == 0
