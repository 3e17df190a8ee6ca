"""Recipes of others never run code; each is refused by one line. tests/training/recipes has the table of bad values."""

import re
import sys
import time
from pathlib import Path

import pytest

from tests.bad_input.conftest import Refused
from tests.conftest import refused
from tests.refusals import refused_call
from vicinal.cli.main import main
from vicinal.training import Recipe, RefinerRecipe, resume
from vicinal.utils.errors import InputError

PLAIN = "class_path would create an object; give"
UNKNOWN = "is not the name of a Loss class"
GADGET = "{class_path: gadget.Gadget, init_args: {}}"
COMMAND = "{class_path: os.system, init_args: {command: touch executed}}"
LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)

CASES = [
    # Where a class could stand
    (f"model: {{backbone_args: {GADGET}}}", PLAIN),
    (f"model: {{backbone_args: {{a: [1, {{b: [{COMMAND}]}}]}}}}", PLAIN),
    ("model: {backbone_args: {os.system: 1, class_path: os.system}}", PLAIN),
    ("model.backbone_args.a.class_path: os.system", PLAIN),
    (f"loss: {GADGET}", UNKNOWN),
    ("loss: {class_path: vicinal.models.Embedder, init_args: {backbone: test_resnet}}", UNKNOWN),
    ("loss: {class_path: vicinal.utils.files.os.mkdir, init_args: {path: executed}}", UNKNOWN),
    (f"loss: {{class_path: WeightedSum, init_args: {{weights: [1], losses: [{GADGET}]}}}}", UNKNOWN),
    (f"loss: {{class_path: SiMix, init_args: {{loss: {COMMAND}}}}}", UNKNOWN),
    (f"loss: {{class_path: MarginLoss, init_args: {{miner: {GADGET}}}}}", "is not the name of a Miner class"),
    ("loss: {class_path: MarginLoss, init_args: {miner: _CombinedMiner}}", "Miner class"),
    (f"loss: {{class_path: MarginLoss, init_args: {{margin: {COMMAND}}}}}", "must be a number"),
    (f"loss: {{<<: {GADGET}}}", UNKNOWN),
    ("loss.class_path: gadget.Gadget", UNKNOWN),
    ("loss: {class_path: [os.system]}", UNKNOWN),
    (f"data: {GADGET}", "unknown key data.class_path"),
    (f"data: {{source: {COMMAND}}}", "must be text"),
    (f"epochs: {GADGET}", "must be an integer"),
    # Files and keys that other formats know
    ("extends: other.yaml\n", "other.yaml:1: unknown key class_path"),
    ("extends: loss.yaml\n", "loss.yaml:1: loss = gadget.Gadget is not the"),
    ("extends: gadget.py\n", "gadget.py:2: not YAML"),
    ("data: {extends: other.yaml}\n", "unknown key data.extends"),
    ("loss: {__default__: os.system}\n", "unknown key loss.__default__"),
    ("allow_import: gadget\nloss: gadget.Gadget\n", "unknown key allow_import"),
    ("loss: {class_path: MarginLoss, dict_kwargs: {a: 1}}\n", "unknown key loss.dict_kwargs"),
    ("loss: {class_path: MarginLoss, init_args: [1]}\n", "loss.init_args is [1]; give the"),
    # Tags, aliases and keys of YAML
    ("epochs: !!python/object/apply:os.system ['touch executed']\n", "the tag !!python/object/apply"),
    ("loss: !!python/name:os.system\n", "the tag !!python/name:os.system is not a plain value"),
    ("model: {backbone_args: '!!python/object/apply:os.system [a]'}\n", "must be a mapping"),
    (LAUGHS, "more than 100,000 values"),
    ("? [a, b]\n: 1\n", "a key must be a name"),
    ("null: 1\n", "unknown key None"),
    ("epochs: 1\n---\nepochs: 2\n", "not YAML"),
    # Values
    ("schedule: {steps: [null]}\n", "must be a list, each element an integer"),
    ("data: {fractions: {train: null}}\n", "must be a mapping, each value a number"),
    ('epochs: "\\e[2J"\n', "epochs = "),
    ("loss: [TripletLoss]\n", UNKNOWN),
    ("optimizer:\n  lr_factors.head: 2\n", "write a key with dots in full, at the top of the file"),
    ("epochs: 010\n", "epochs = 010 must be an integer"),
    ("loss:\n class_path: SiMix\n init_args:\n  loss:\n   class_path: MarginLoss\n   init_args: {margin: .inf}\n",
     "recipe.yaml:6: MarginLoss: margin = inf must"),
]  # fmt: skip


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a module that leaves a file when it is imported, and files that name it."""
    (tmp_path / "gadget.py").write_text("open('executed', 'w')\nclass Gadget: pass\n")
    (tmp_path / "other.yaml").write_text("class_path: gadget.Gadget\n")
    (tmp_path / "loss.yaml").write_text("loss: gadget.Gadget\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    assert not (tmp_path / "executed").exists()
    assert "gadget" not in sys.modules


@pytest.mark.parametrize(("text", "line"), CASES)
def test_a_recipe_of_others_is_one_line_and_runs_nothing(trap: Path, text: str, line: str) -> None:
    (trap / "recipe.yaml").write_text(text)
    started = time.process_time()
    with pytest.raises(InputError) as error:
        Recipe.load("recipe.yaml")
    message = str(error.value)
    assert line in message
    assert "recipe.yaml" in message or message.startswith(line)  # which names the extended file
    assert "\n" not in message
    assert len(message) < 1000
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("override", "line"),
    [
        (f"--model.backbone_args={{a: {COMMAND}}}", PLAIN),
        ("--model.backbone_args=class_path: os.system", PLAIN),
        ("--loss=gadget.Gadget", UNKNOWN),
        ("--loss.miner.class_path=gadget.Gadget", "is not the name of a Miner class"),
        ("--loss.losses+=gadget.Gadget", "unknown key loss.losses"),
        ("--data.fractions={[a]: 1}", "--data.fractions {[a]: 1}: not YAML: found unhashable key"),
        ("--data.fractions=&a {b: *a}", "must be a mapping"),
        ("--optimizer.lr=1" + 400 * "0", "must be a number"),
        ("--epochs=1:30", "epochs = 1:30 must be an integer"),
        ("--epochs={!!python/object/apply:os.system [touch executed]}", "is not a plain value"),
    ],
)
def test_an_override_is_one_line_and_runs_nothing(trap: Path, override: str, line: str) -> None:
    refused_call(re.escape(line), Recipe.load, overrides=[override])


@pytest.mark.parametrize("text", ["loss: gadget.Gadget", "refiner: {depth: {class_path: os.system}}"])
def test_the_recipe_of_a_refiner_runs_nothing(trap: Path, text: str) -> None:
    (trap / "recipe.yaml").write_text(f"embeddings: e.parquet\n{text}\n")
    refused_call(r"recipe.yaml:2: (loss|refiner.depth) = ", RefinerRecipe.load, "recipe.yaml")


def test_the_recipe_of_a_run_runs_nothing(trap: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (trap / "run").mkdir()
    (trap / "run" / "recipe.yaml").write_text(f"model: {{backbone_args: {{a: {COMMAND}}}}}\n")
    refused_call(PLAIN, resume, "run")
    (trap / "run" / "recipe.yaml").write_text("loss: gadget.Gadget\n")
    line = "run/recipe.yaml:1: loss = gadget.Gadget is not the name of a Loss class; for a class of your own, add "
    assert line in refused(capsys, "train", "--out", "run", "--resume")


@pytest.mark.parametrize("words", [["--loss.help", "gadget.Gadget"], ["--loss.help=os.system"], ["--data.help", "x"]])
def test_help_runs_nothing(trap: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{words[0].partition('=')[0]} " in refused(capsys, "train", *words)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--loss.temprature=1", "did you mean loss.temperature?"),
        ("--loss.help Loss", "--loss.help Loss: give --loss.help and a loss: ArcFaceLoss, "),
        ("--loss PairLoss", "loss = PairLoss is not the name of a Loss class"),
        ("--=3", "unknown argument --=3; a recipe comes first"),
        ("--loss OwnLoss", "One of your own is named with its module, such as my_module.OwnLoss"),
        ("--loss Triplett", "is not the name of a Loss class; did you mean TripletLoss?"),
        ("--loss.miner=Hardest", "not the name of a Miner class; did you mean HardestMiner?"),
        ("--model.backbone resnet-50", "not the name of a timm model, such as 'resnet50'"),
        ("--optimizer.name=adamW", "optimizer.name = adamW must be sgd or adam or adamw"),
        ("--pooling=avg", "unknown key pooling; did you mean model.pooling?"),
        ("--data photos", "data is a group; write its settings below it, such as data.source"),
        ("--data.noise=0.1", "data.noise is a group; write its settings below it, such as data.noise."),
        ("~/photos", "photos is not a recipe, a YAML file of settings; data is given as --data."),
        ("none", "recipe none: No such file or directory; images are given as --data."),
        ("none.yaml", "cannot read the recipe none.yaml"),
        ("~/v.parquet", "v.parquet is not a recipe"),
        ("--epochs", "--epochs needs a value"),
        ("--resume", "run holds no run to resume"),
        ("", "data.source is missing"),
    ],
)
def test_a_mistake_of_a_first_training_is_one_line_that_helps(words: str, line: str, refused: Refused) -> None:
    refused(f"train --out run {words}", line)


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
def own(trap: Path) -> Path:
    (trap / "own_package").mkdir()
    (trap / "own_package" / "__init__.py").touch()
    (trap / "own_package" / "losses.py").write_text(OWN)
    before = {name: sys.modules.pop(name, None) for name in ("own_package", "own_package.losses")}
    yield trap
    for name, module in before.items():  # they stay importable, since their classes stay
        if module is not None:
            sys.modules.setdefault(name, module)


def test_a_class_of_ones_own_is_taken_where_the_user_says_so(own: Path) -> None:
    (own / "recipe.yaml").write_text("loss: {class_path: own_package.losses.OwnLoss, init_args: {scale: 3}}\n")
    with pytest.raises(InputError, match=r"recipe.yaml:1: loss = own_package.losses.OwnLoss .* --allow_import own_pac"):
        Recipe.load("recipe.yaml")
    refused_call("is not the name of a Loss class", Recipe.load, "recipe.yaml", allow_imports=("json",))
    assert not (own / "imported").exists()
    recipe = Recipe.load("recipe.yaml", ["--loss.anything={a: [1]}"], allow_imports=("own_package",))
    loss = recipe.create_loss()
    assert (type(loss).__name__, loss.margin, loss.anything) == ("OwnLoss", pytest.approx(0.3), {"a": [1]})
    assert recipe.config["loss"]["class_path"] == "own_package.losses.OwnLoss"
    recipe.save("saved.yaml")
    assert Recipe.load("saved.yaml", allow_imports=recipe.allow_imports).config == recipe.config


def test_a_class_of_ones_own_may_be_named_alone(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own / "own_package" / "short.py").write_text(OWN.replace("OwnLoss", "ShortLoss"))
    words = ["--loss=ShortLoss", "--loss.scale=x", "--allow_import=own_package.short"]
    assert "loss.scale = x must be a number" in refused(capsys, "train", "--out", "run", *words)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("function: os.system", "loss.function takes a function or a class, which a recipe cannot give"),
        (f"anything: {COMMAND}", PLAIN),
        (f"scale: {COMMAND}", "must be a number"),
    ],
)
def test_a_class_of_ones_own_lets_nothing_else_in(own: Path, arguments: str, line: str) -> None:
    (own / "recipe.yaml").write_text(f"loss:\n  class_path: own_package.losses.OwnLoss\n  init_args: {{{arguments}}}\n")
    refused_call(re.escape(line), Recipe.load, "recipe.yaml", allow_imports=("own_package",))


MORE = """
import numpy as np, torch
from vicinal.losses import Loss, MarginLoss, TripletLoss
class Plain(MarginLoss):
    def __init__(self, scale: float = np.float64(0.5), limit: float | torch.Tensor = 1.0) -> None:
        super().__init__(scale)
        self.limit = limit
class Many(MarginLoss):
    def __init__(self, parts: dict[str, Loss], pair: tuple[Loss, float]) -> None:
        super().__init__()
        self.part, self.pair = parts["a"], pair
class Silent(MarginLoss):
    def __init__(self) -> None:
        raise ValueError
class Broken(MarginLoss):
    def __init__(self) -> None:
        raise KeyError("a")
def inner():
    class Hidden(MarginLoss):
        pass
    return Hidden
Other = inner()
"""


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("Silent", "Silent: ValueError"),
        ("Broken", "Broken: 'a'"),
        ("Other", "Hidden of own_package.losses must be a class at the top of its module"),
    ],
)
def test_a_class_of_ones_own_that_cannot_be_created_is_one_line(own: Path, name: str, line: str) -> None:
    (own / "own_package" / "losses.py").write_text(MORE)
    (own / "recipe.yaml").write_text(f"loss: own_package.losses.{name}\n")
    refused_call(re.escape(line), Recipe.load, "recipe.yaml", allow_imports=("own_package",))


def test_arguments_of_many_types_are_read_and_saved(own: Path) -> None:
    (own / "own_package" / "losses.py").write_text(MORE)
    words = ["--loss=own_package.losses.Plain", "--loss.limit=2"]
    recipe = Recipe.load(overrides=words, allow_imports=("own_package",))
    recipe.save("saved.yaml")
    loss = Recipe.load("saved.yaml", allow_imports=("own_package",)).create_loss()
    assert (loss.margin, loss.limit) == (0.5, 2)
    words = ["--loss=own_package.losses.Many", "--loss.parts={a: TripletLoss}", "--loss.pair=[TripletLoss, 0.5]"]
    recipe = Recipe.load(overrides=words, allow_imports=("own_package",))
    recipe.save("saved.yaml")
    loss = Recipe.load("saved.yaml", allow_imports=("own_package",)).create_loss()
    assert [type(each).__name__ for each in (loss.part, *loss.pair)] == ["TripletLoss", "TripletLoss", "float"]


def test_an_own_package_that_cannot_be_imported_is_one_line(own: Path) -> None:
    for name, reason in (("none", "No module named 'none'"), ("own_package.losses", "invalid syntax")):
        (own / "own_package" / "losses.py").write_text("class (\n")
        refused_call(rf"--allow_import {name}: it cannot be imported \({reason}", Recipe.load, allow_imports=(name,))


def test_a_run_with_a_loss_of_ones_own_needs_the_flag_again(own: Path, small: list[str], capsys) -> None:
    first = ["train", "--out", "run", *small, "--epochs=1", "--loss=own_package.losses.OwnLoss"]
    assert main([*first, "--allow-import", "own_package"]) == 0
    assert "add --allow_import own_package" in refused(capsys, "train", "--out", "run", "--resume")
    assert main(["train", "--out", "run", "--resume", "--allow_import=own_package"]) == 0
