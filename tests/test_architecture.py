"""Imports point downward only: each package of `vicinal` imports the packages below it, and no others."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import vicinal
from vicinal.data import benchmarks

ROOT = Path(vicinal.__file__).parent
LOSSES = {"similarity", "mining", "losses"}
AROUND_LOSSES = {"memory", "correction", "distillation", "matryoshka", "mixing", "weighting"}
IMPORTS: dict[str, set[str]] = {
    "utils": set(),
    "similarity": set(),
    "mining": {"similarity"},
    "losses": {"similarity", "mining"},
    "memory": LOSSES,
    "correction": LOSSES,
    "distillation": LOSSES,
    "matryoshka": {*LOSSES, "memory", "distillation"},
    "mixing": LOSSES,
    "weighting": LOSSES,
    "data": set(),
    "models": {"data", "similarity"},
    "retrieval": {"data", "models"},
    "evaluation": {"data", "retrieval"},
    "export": {"data", "models", "retrieval", "evaluation"},
    "analysis": {"data", "models", "retrieval", "evaluation"},
    "report": {"data", "models", "retrieval", "evaluation", "analysis"},
    "training": {*LOSSES, *AROUND_LOSSES, "data", "models", "retrieval", "evaluation", "report"},
    "serving": {"data", "models", "retrieval", "evaluation", "export", "report"},
    "workflows": {"data", "models", "retrieval", "evaluation", "export", "analysis", "report", "training"},
    "cli": {"data", "models", "retrieval", "evaluation", "export", "report", "training", "serving", "workflows"},
}
"""Package -> the packages it may import, besides itself and `utils`, which all of them may."""


OF_STATEMENTS = ast.stmt, ast.ExceptHandler, ast.match_case  # no expression imports


def imported(file: Path) -> Iterator[str]:
    """The packages of `vicinal` that a file imports, in functions too, but not for type checkers only."""
    statements = [ast.parse(file.read_text())]
    while statements:
        node = statements.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            statements += node.orelse
        elif isinstance(node, ast.Import):
            yield from (name.name.split(".")[1] for name in node.names if name.name.startswith("vicinal."))
        elif isinstance(node, ast.ImportFrom) and node.module == "vicinal":
            yield from (name.name for name in node.names if name.name != "__version__")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vicinal."):
            yield str(node.module).split(".")[1]
        else:
            statements += (each for each in ast.iter_child_nodes(node) if isinstance(each, OF_STATEMENTS))


@pytest.mark.parametrize("package", IMPORTS)
def test_a_package_imports_only_the_packages_below_it(package: str) -> None:
    path = ROOT / package
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    allowed = IMPORTS[package] | {"utils", package}
    wrong = {str(file.relative_to(ROOT)): set(imported(file)) - allowed for file in files}
    assert files
    assert not {file: packages for file, packages in wrong.items() if packages}


def test_every_package_has_its_place() -> None:
    packages = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert packages - {"__init__", "__main__"} == set(IMPORTS)


def test_the_order_has_no_cycle() -> None:
    packages = list(IMPORTS)
    for package, below in IMPORTS.items():
        assert all(packages.index(each) < packages.index(package) for each in below - {package})


def test_a_package_keeps_a_function_when_the_module_of_its_name_is_imported() -> None:
    import_module("vicinal.data.benchmarks.met")
    assert callable(benchmarks.met)
    assert pickle.loads(pickle.dumps(benchmarks)) is benchmarks  # as Ray does
