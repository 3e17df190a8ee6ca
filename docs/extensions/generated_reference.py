"""Pages of the reference that are generated from the code: the help of the command and the settings of recipes.

Directives:

- `verb-help`: the help of one verb of the command; without an argument, that of the command itself.
- `recipe-settings`: all settings of `Recipe` or `RefinerRecipe` with type, default and description.

The build warns of a name in the `__all__` of a public package that no page documents; `make docs` fails then.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from vicinal import training
from vicinal.cli.main import main
from vicinal.training.recipes.recipe_values import SettingGroup, SettingText, setting_groups

PUBLIC_PACKAGES = (
    "losses", "mining", "weighting", "mixing", "distillation", "matryoshka", "memory", "correction", "similarity",
    "models",
    "data",
    "data.benchmarks", "data.containers", "training", "retrieval", "evaluation", "analysis", "report", "report.page",
    "workflows", "serving", "export",
)  # fmt: skip
HELP_COLUMNS = "82"
WITH_MORE = [
    ("search",),
    ("evaluate",),
    ("clean",),
    ("index", "build"),
    ("index", "add"),
    ("index", "sync"),
]  # verbs whose `--help` leaves flags out


class VerbHelp(SphinxDirective):
    """Show what `vicinal VERB --help` prints."""

    optional_arguments = 2

    def run(self) -> list[nodes.Node]:
        text = help_text(*self.arguments)
        return [nodes.literal_block(text, text, language="text")]


class RecipeSettings(SphinxDirective):
    """Show the settings of a recipe, one table per group."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        return [self._section(*group) for group in groups_of(self.arguments[0])]

    def _section(self, name: str, title: str, settings: list[SettingText]) -> nodes.section:
        section = nodes.section(ids=[nodes.make_id(f"settings {name or 'top level'}")])
        section += nodes.title("", "", nodes.literal(name, name) if name else nodes.Text("At the top level"))
        if name:
            section += nodes.paragraph("", f"{title[0].upper()}{title[1:]}.")
        section += settings_table(settings)
        return section


def help_text(*verb: str) -> str:
    """What the command prints for `--help`."""
    printed = io.StringIO()
    columns, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), HELP_COLUMNS
    try:
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            main([*verb, "--help_all" if verb in WITH_MORE else "--help"])
    finally:
        os.environ.pop("COLUMNS") if columns is None else os.environ.update(COLUMNS=columns)
    return printed.getvalue().rstrip()


def groups_of(recipe: str) -> list[SettingGroup]:
    """The groups of settings of a recipe, those of no group first."""
    return sorted(setting_groups(getattr(training, recipe).schema()), key=lambda group: group.name != "")


def settings_table(settings: list[SettingText]) -> nodes.table:
    """A table of settings."""
    rows = [[_literal(each.key), _literal(each.type), _literal(each.default), _described(each)] for each in settings]
    group = nodes.tgroup("", *(nodes.colspec(colwidth=width) for width in (22, 18, 15, 45)), cols=4)
    header = [[nodes.Text(title)] for title in ("setting", "type", "default", "description")]
    group += nodes.thead("", _row(header))
    group += nodes.tbody("", *map(_row, rows))
    return nodes.table("", group)


def check_documented(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of public names that no page documents, under the package that exports them or the module of origin."""
    documented = env.domains.python_domain.objects
    for package in PUBLIC_PACKAGES:
        module = importlib.import_module(f"vicinal.{package}")
        inside = tuple(f"vicinal.{part}." for part in (package, package.partition(".")[0]))
        for name in getattr(module, "__all__", ()):
            if not any(each.startswith(inside) and each.endswith(f".{name}") for each in documented):
                logging.getLogger(__name__).warning("vicinal.%s.%s is on no page of the reference", package, name)


def _described(setting: SettingText) -> list[nodes.Node]:
    """The description of a setting; text in backticks is code."""
    parts = setting.description.rstrip(".").split("`")
    return [nodes.literal(part, part) if index % 2 else nodes.Text(part) for index, part in enumerate(parts)]


def _literal(text: str) -> list[nodes.Node]:
    return [nodes.literal(text, text)]


def _row(cells: list[list[nodes.Node]]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *cell)) for cell in cells))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives and the check."""
    app.add_directive("verb-help", VerbHelp)
    app.add_directive("recipe-settings", RecipeSettings)
    app.connect("env-check-consistency", check_documented)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
