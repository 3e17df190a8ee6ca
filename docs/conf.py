"""Settings of the documentation site.

`make docs` builds it into build/docs, without a network. A warning is an error.
"""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from typing import Any, get_origin

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

import vicinal

logging.getLogger("faiss").setLevel(logging.WARNING)  # it tells at length how it was loaded

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "Vicinal"
author = "The Vicinal authors"
release = version = vicinal.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "generated_reference",  # in docs/extensions
]
exclude_patterns = ["_build"]
nitpicky = True
default_role = "code"  # single backticks in docstrings are code

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = True
python_maximum_signature_line_length = 100
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

# These packages have no inventory that could be read without a network; all names of Vicinal must resolve.
EXTERNAL = (
    "abc|collections|contextlib|faiss|fastapi|httpx|lightning_fabric|markupsafe|matplotlib|np|numpy|os|pandas|pathlib|pd"
    "|PIL|scipy|torch|torchvision|typing"
)
nitpick_ignore_regex = [
    ("py:class", r"(dict|tuple)\[\w+"),  # how Sphinx cuts the type of an attribute that is one of these or another
    ("py:.*", rf"({EXTERNAL})(\..*)?"),
    ("py:.*", r"Tensor|nn\..*|Path|Callable|Sequence|Mapping|Iterable|Iterator|Any|Literal|Self|pil_image"),
    ("py:.*", r"Array|Decoding|Floats|Integers|Images|Postprocessing|UsedPrecision|npt\..*"),
    (
        "py:.*",
        r"bool|bytes|dict|float|frozenset|int|list|object|set|slice|str|tuple|type|None|ValueError|KeyboardInterrupt",
    ),
]

html_theme = "furo"
html_title = f"Vicinal {release}"
html_show_sphinx = False
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True


def resolve_public_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element
) -> nodes.Element | None:
    """Link a class that a docstring or a type names by its defining module to the page of its public name.

    `vicinal.losses.pairs.ContrastiveLoss` is documented as `vicinal.losses.ContrastiveLoss`. A name that is documented
    in two places does not resolve. In types, internal classes without a page stay text; in docstrings they are errors.
    """
    target = str(node["reftarget"])
    if node.get("refdomain") != "py" or target.startswith("builtins."):
        return None
    name = target.removeprefix("vicinal.").split(".")
    objects = env.domains.python_domain.objects
    for length in (2, 1):  # a member such as Loss.forward, or else a class or a function
        suffix = "." + ".".join(name[-length:])
        found = [(public, entry) for public, entry in objects.items() if public.endswith(suffix) and not entry.aliased]
        if len(found) == 1:
            public, entry = found[0]
            return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, content, public)
    in_a_type = target.startswith("vicinal.") and not isinstance(content, nodes.literal)
    return content if in_a_type and node["reftype"] in ("class", "obj") else None


def formulas_as_literal_blocks(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    """Set the indented formulas of a docstring, which stand before its first section, as literal blocks."""
    end = next(
        (i for i, line in enumerate(lines) if re.match(r"(Args|Attributes|Returns|Raises|Examples?):$", line)),
        len(lines),
    )
    for i in range(end - 1, 1, -1):
        before = next((line for line in reversed(lines[:i]) if line), "")
        if lines[i].startswith("    ") and not lines[i - 1] and re.match(r"[^\s\-*>](?!.*::$)", before):
            lines[i:i] = [".. code-block:: text", ""]


def public_bases(app: Sphinx, name: str, obj: type, options: Any, bases: list[Any]) -> None:
    """Name the nearest public class in place of an internal base class."""
    lines = [getattr(get_origin(base) or base, "__mro__", (base,)) for base in bases]  # NamedTuple is a function
    bases[:] = dict.fromkeys(next(each for each in line if is_public(each)) for line in lines)


def is_public(each: type) -> bool:
    """Whether a package on the way to the class's module exports it."""
    steps = each.__module__.split(".")
    packages = [sys.modules[".".join(steps[:length])] for length in range(1, len(steps) + 1)]
    return steps[0] != "vicinal" or any(each.__name__ in getattr(package, "__all__", ()) for package in packages)


def setup(app: Sphinx) -> None:
    """Register the handlers of this file."""
    app.connect("missing-reference", resolve_public_name)
    app.connect("autodoc-process-docstring", formulas_as_literal_blocks, priority=100)  # before napoleon
    app.connect("autodoc-process-bases", public_bases)
