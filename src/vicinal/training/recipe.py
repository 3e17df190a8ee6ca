"""The recipe: every setting of a training run, typed, from YAML and the command line, and written back resolved."""

from __future__ import annotations

import argparse
import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import jsonargparse
import yaml

from vicinal.data import ImageTransform
from vicinal.errors import InputError
from vicinal.files import write_bytes
from vicinal.losses import Loss
from vicinal.models import Embedder, default_transform
from vicinal.training.schedule import Schedule


@dataclass(frozen=True)
class Data:
    """Where the images come from and how their classes are divided.

    Args:
        source: a folder with one folder of images per class, a .csv or .parquet table with the columns `path` and
            `label`, or a benchmark: digits, omniglot, glyphs.
        root: folder that relative paths of a table start from (default: the table's own), or that holds a benchmark.
        path_column: name of the table's column with the image paths.
        label_column: name of the table's column with the labels.
        shares: share of the classes each split gets, such as {train: 0.6, val: 0.2, test: 0.2}. Default: the splits
            that the source brings, or else the shares of this example.
        classes: the classes of each split by name, such as {train: [cat, dog], test: [owl]}.
        split_column: name of a column that holds the split of each class; with shares or classes, the column whose
            values are dealt out in the place of labels, such as coarse.
        cache: keep all decoded images in memory.
        workers: processes that read and transform images. Default: none with `cache`, else one a core, at most 8.
        on_error: "raise" stops at an unreadable image, "skip" leaves it out and counts it.
    """

    source: str | None = None
    root: str | None = None
    path_column: str = "path"
    label_column: str = "label"
    shares: dict[str, float] | None = None
    classes: dict[str, list[str | int]] | None = None
    split_column: str | None = None
    cache: bool = False
    workers: int | None = None
    on_error: Literal["raise", "skip"] = "raise"

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 0:
            raise InputError(f"data.workers = {self.workers} must be 0 or more")


@dataclass(frozen=True)
class Factors:
    """Factors of the learning rate for parts of what is trained; 0 keeps a part as it is.

    Args:
        backbone: the network below the pooling.
        head: pooling, norm and linear layer.
        projector: the projector used in training only.
        loss: parameters of the loss, such as class centers.
    """

    backbone: float = 1.0
    head: float = 1.0
    projector: float = 1.0
    loss: float = 1.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            _require(0 <= value < math.inf, f"optimizer.factors.{name}", value, "0 or more")


@dataclass(frozen=True)
class Optimizer:
    """How gradients change the parameters.

    Args:
        name: sgd (with Nesterov momentum), adam or adamw.
        lr: learning rate at its highest.
        weight_decay: L2 penalty (sgd, adam) or decoupled decay (adamw).
        momentum: momentum of sgd; 0 is none.
        factors: learning-rate factors for parts of what is trained.
    """

    name: Literal["sgd", "adam", "adamw"] = "adamw"
    lr: float = 1e-4
    weight_decay: float = 1e-4
    momentum: float = 0.9
    factors: Factors = field(default_factory=Factors)

    def __post_init__(self) -> None:
        _require(0 < self.lr < math.inf, "optimizer.lr", self.lr, "a positive number")
        _require(0 <= self.weight_decay < math.inf, "optimizer.weight_decay", self.weight_decay, "0 or more")
        _require(0 <= self.momentum < 1, "optimizer.momentum", self.momentum, "in [0, 1)")


@dataclass(frozen=True)
class Validation:
    """How the run is watched on classes it does not train on: the split `val`, if there is one.

    Args:
        metric: what decides which weights are best, such as recall@1, mAP@R, R-precision or mAP.
        every: epochs between evaluations.
        patience: stop after this many evaluations without a new best; null never stops early.
    """

    metric: str = "recall@1"
    every: int = 1
    patience: int | None = None

    def __post_init__(self) -> None:
        known = re.fullmatch(r"recall@[1248]|mAP@R|R-precision|mAP", self.metric)
        _require(known is not None, "validation.metric", self.metric, "recall@1, 2, 4 or 8, mAP@R, R-precision or mAP")
        _require(self.every >= 1, "validation.every", self.every, "at least 1 epoch")
        _require(self.patience is None or self.patience >= 1, "validation.patience", self.patience, "at least 1")


@dataclass(frozen=True)
class Settings:
    """All settings of a run beside the model and the loss.

    Args:
        data: where the images come from and how their classes are divided.
        transform: how an image becomes a tensor, in training and at test.
        batch: images a step, over all processes.
        per_class: images of each class in a batch; 0 draws images at random whatever their class.
        classes_with_fewer: "leave_out" classes with fewer than `per_class` images, or "replace": draw them with
            replacement.
        epochs: passes over the training images.
        optimizer: how gradients change the parameters.
        schedule: how the learning rate changes over the epochs.
        freeze_backbone_epochs: first epochs in which the backbone stays as it is.
        clip: largest norm of the gradient; null does not clip.
        accumulate: batches whose gradients are averaged before a step.
        precision: "32", "bf16-mixed" or "16-mixed"; the loss is always computed in float32.
        validation: how the run is watched.
        checkpoint_minutes: a checkpoint is written after every epoch and, in long epochs, after so many minutes.
        log_every: steps between two lines of the log.
        seed: fixes initial weights, order of images, augmentation and dropout.
        accelerator: auto, cpu or gpu.
        devices: number of processes, one a device.
    """

    data: Data = field(default_factory=Data)
    transform: ImageTransform = field(default_factory=ImageTransform)
    batch: int = 128
    per_class: int = 4
    classes_with_fewer: Literal["leave_out", "replace"] = "leave_out"
    epochs: int = 30
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    freeze_backbone_epochs: int = 0
    clip: float | None = None
    accumulate: int = 1
    precision: Literal["32", "bf16-mixed", "16-mixed"] = "32"
    validation: Validation = field(default_factory=Validation)
    checkpoint_minutes: float = 10.0
    log_every: int = 10
    seed: int = 0
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: int = 1

    def __post_init__(self) -> None:
        for name in ("batch", "epochs", "accumulate", "log_every", "devices"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("per_class", "freeze_backbone_epochs", "seed", "checkpoint_minutes"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        _require(self.clip is None or 0 < self.clip < math.inf, "clip", self.clip, "a positive number or null")
        _require(self.batch >= 2, "batch", self.batch, "at least 2: a loss compares images")
        divisible = self.per_class == 0 or self.batch % self.per_class == 0
        _require(divisible, "batch", self.batch, f"a multiple of per_class = {self.per_class}")


def _require(holds: bool, key: str, value: object, what: str) -> None:
    if not holds:
        raise InputError(f"{key} = {value} must be {what}")


class Recipe:
    """A training run described completely: data, transform, model, loss, optimiser, schedule and the rest.

    Attributes:
        settings: all but model and loss.
        model: arguments of :class:`~vicinal.models.Embedder`.
        config: the whole recipe as plain nested values, every default filled in.

    Example:
        >>> recipe = Recipe.load(overrides=["--data.source=digits", "--optimizer.lr=0.01", "--loss.alpha=4"])
        >>> recipe.settings.optimizer.lr, recipe.loss().alpha
        (0.01, 4.0)
    """

    def __init__(self, parser: jsonargparse.ArgumentParser, namespace: jsonargparse.Namespace) -> None:
        self._parser = parser
        self._namespace = namespace
        self.text: str = parser.dump(namespace, skip_unset=False)
        self.config: dict[str, Any] = yaml.safe_load(self.text)
        self.model: dict[str, Any] = namespace.model.as_dict()
        objects = parser.instantiate(namespace)
        self.settings = Settings(**{name: objects[name] for name in Settings.__dataclass_fields__})

    @classmethod
    def load(cls, path: str | Path | None = None, overrides: Sequence[str] = ()) -> Recipe:
        """Read a recipe and the settings given over it.

        Args:
            path: a YAML file; None: all defaults.
            overrides: such as `--optimizer.lr=0.1`, with dots for nested keys.

        Raises:
            InputError: a missing file, an unknown key, a wrong type or an impossible value, with its file and line.
        """
        parser = recipe_parser()
        lines = _key_lines(Path(path)) if path is not None else {}
        arguments = [*(["--recipe", str(path)] if path is not None else []), *overrides]
        try:
            _expect_preprocessing_of_backbone(parser, parser.parse_args(arguments))
            namespace = parser.parse_args(arguments)
            namespace.pop("recipe", None)
            return cls(parser, namespace)
        except (jsonargparse.ArgumentError, InputError, ValueError) as error:
            raise InputError(_explain(str(error), parser, path, lines)) from None

    def loss(self) -> Loss:
        """A new instance of the loss."""
        return self._parser.instantiate(self._namespace).loss

    def embedder(self) -> Embedder:
        """A new model with initial weights from the global generator."""
        try:
            return Embedder(**self.model, transform=self.settings.transform)
        except InputError as error:
            raise InputError(f"model: {error}") from None

    def save(self, path: str | Path) -> None:
        """Write the resolved recipe as YAML."""
        write_bytes(path, self.text.encode())

    def check_same(self, other: Recipe) -> None:
        """Raise InputError, naming the first setting in which the other recipe differs."""
        ours, theirs = _flattened(self.config), _flattened(other.config)
        for key in [*ours, *theirs]:
            if ours.get(key) != theirs.get(key):
                raise InputError(
                    f"{key} = {theirs.get(key)} differs from the run's own {ours.get(key)}; "
                    "resume with --out and --resume alone, or start a new run"
                )


def recipe_parser() -> jsonargparse.ArgumentParser:
    """The parser of recipes and their overrides; its help is the reference of all settings and of nothing else."""
    parser = jsonargparse.ArgumentParser(
        exit_on_error=False, add_help=False, usage=argparse.SUPPRESS, print_config=None
    )
    parser.add_argument("--recipe", action="config", help=argparse.SUPPRESS)
    parser.add_class_arguments(Settings, None, as_group=False)
    parser.add_class_arguments(Embedder, "model", skip={"transform"}, instantiate=False)
    parser.add_subclass_arguments(Loss, "loss", default={"class_path": "MultiSimilarityLoss"})
    return parser


def _expect_preprocessing_of_backbone(parser: jsonargparse.ArgumentParser, namespace: jsonargparse.Namespace) -> None:
    """Make size, mean, std and interpolation by default what the chosen backbone's weights were trained with."""
    expected = default_transform(namespace.model.backbone)
    parser.set_defaults({"transform.size": expected.size, "transform.interpolation": expected.interpolation})
    if namespace.transform.channels == len(expected.mean):
        parser.set_defaults({"transform.mean": expected.mean, "transform.std": expected.std})


def _flattened(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= _flattened(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _key_lines(path: Path) -> dict[str, int]:
    """The line, from 1, of every dotted key of a YAML file."""
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the recipe {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise InputError(f"{where}: not YAML: {getattr(error, 'problem', None) or 'not text in UTF-8'}") from None
    lines: dict[str, int] = {}
    if isinstance(root, yaml.MappingNode):
        _collect_lines(root, "", lines)
    elif root is not None:
        raise InputError(f"{path}:1: a recipe is a mapping such as `epochs: 30`")
    return lines


def _collect_lines(node: yaml.MappingNode, prefix: str, lines: dict[str, int]) -> None:
    for key, value in node.value:
        # A class's arguments are written below init_args and spoken of without it.
        name = prefix if key.value == "init_args" else f"{prefix}.{key.value}".lstrip(".")
        lines.setdefault(name, key.start_mark.line + 1)
        if isinstance(value, yaml.MappingNode):
            _collect_lines(value, name, lines)


def _explain(message: str, parser: jsonargparse.ArgumentParser, path: str | Path | None, lines: dict[str, int]) -> str:
    """One line that names file, line, key and what would be right, from what the parser or a check says."""
    text = " ".join(message.split())
    unknown = re.search(r"(?:[Gg]roup '(?P<group>[\w.]+)' does not accept )?[Oo]ption '(?P<key>[\w.]+)'", text)
    argument = re.search(r"unrecognized arguments: --(?P<key>[\w.]+)", text)
    found = unknown or argument
    if found:
        parents = [re.sub(r"Parser key \"|\"", "", p) for p in re.findall(r"Parser key \"[\w.]+\"", text)]
        parent = found.groupdict().get("group") or (parents[-1] if parents else "")
        key = f"{parent}.{found['key']}".lstrip(".")
        return f"{_place(key, path, lines)}unknown key {key}{_nearest(key, parser, text)}"
    wrong = re.match(r"Parser key \"(?P<key>[\w.]+)\": (?P<rest>.*)", text)
    if wrong:
        rest = re.sub(r"<class '([\w.]+)'>", r"\1", wrong["rest"])
        return f"{_place(wrong['key'], path, lines)}{wrong['key']}: {rest}"
    impossible = re.match(r"(?P<key>[\w.]+)(:| =| is) ", text)
    return (_place(impossible["key"], path, lines) if impossible else "") + text


def _place(key: str, path: str | Path | None, lines: dict[str, int]) -> str:
    for name in (key, f"model.{key}"):
        if name in lines:
            return f"{path}:{lines[name]}: "
    return ""


def _nearest(key: str, parser: jsonargparse.ArgumentParser, text: str) -> str:
    known = [action.dest for action in parser._actions if action.dest not in ("help", "recipe", "print_config")]
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else "; `vicinal train --help` lists all keys"
