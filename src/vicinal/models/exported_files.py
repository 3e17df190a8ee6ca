"""What is uploaded with a model: its card names it, and describes an exported model, whose files are beside it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vicinal.models.model_card import FOLDER
from vicinal.utils.errors import InputError, one_line

BESIDE = (".bin", ".preprocessing.json", ".parity.json", ".parity.md")
TEXT = """
## Without torch

`{file}` is this model{refined} for {runtime}, in {precision}. Its vectors differ by at most {largest:.1g} from those in
torch on {num_images:,} {images}.
{metrics}
```python
from huggingface_hub import hf_hub_download
from vicinal.export import {reader}  # needs numpy, Pillow and the runtime

for file in {beside}:
    path = hf_hub_download("{name}", file)
vectors = {reader}(path).embed(["a.jpg", "b.jpg"])
```
"""


def check_hub_name(name: str) -> None:
    """Raise InputError if no model on the Hugging Face Hub can have a name.

    Example:
        >>> check_hub_name("me/birds")
    """
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except ValueError as error:
        raise InputError(
            f"{one_line(name, 80)!r} cannot be the name of a model on the Hugging Face Hub, such as me/birds"
        ) from error


def name_on_card(folder: Path, name: str) -> None:
    """Have the examples on the card of a saved model load it by its name on the Hugging Face Hub."""
    card = folder / "README.md"
    card.write_text(card.read_text(encoding="utf-8").replace(FOLDER, name), encoding="utf-8")


def read_exported(path: str | Path, fingerprint: str) -> dict[str, Any]:
    """Read what `vicinal export` wrote of a model.

    Args:
        path: The exported model.
        fingerprint: Of the model that it must be of.

    Returns:
        The content of its parity report.

    Raises:
        InputError: A file is missing or damaged, or of another model.
    """
    path = Path(path)
    report = path.with_suffix(".parity.json")
    for file in (path, path.with_suffix(".preprocessing.json"), report):
        if not file.is_file():
            raise InputError(
                f"{file}: no such file; give a model that `vicinal export` wrote, with the files beside it"
            )
    try:
        values: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        found = str(values["fingerprint"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{report}: not a parity report ({one_line(error, 80)})") from None
    if found.partition("+")[0] != fingerprint:
        raise InputError(f"{path} was exported from the model {one_line(found, 80)}, not from {fingerprint}")
    return values


def add_exported(folder: Path, path: str | Path, report: Mapping[str, Any], name: str) -> None:
    """Copy an exported model into the folder of a saved one, and describe it on the card.

    Args:
        folder: Of the saved model.
        path: The exported model.
        report: Of :func:`read_exported`.
        name: Of the model on the Hugging Face Hub.
    """
    path = Path(path)
    for file in (path, *(path.with_suffix(suffix) for suffix in BESIDE)):
        if file.is_file():
            shutil.copy(file, folder / file.name)
    card = folder / "README.md"
    card.write_text(card.read_text(encoding="utf-8") + exported_text(path.name, report, name), encoding="utf-8")


def exported_text(file: str, report: Mapping[str, Any], name: str) -> str:
    """The section of the card about an exported model; arguments as :func:`add_exported`, with its file's name."""
    is_openvino = report["settings"]["format"] == "openvino"
    parts = [".preprocessing.json", *([".bin"] if is_openvino else [])]
    return TEXT.format(
        file=file,
        name=name,
        refined=" with its refiner and gallery" if report["refined"] else "",
        images=report["images"],
        runtime="OpenVINO" if is_openvino else "ONNX Runtime",
        reader="OpenVinoEmbedder" if is_openvino else "OnnxEmbedder",
        precision=report["settings"]["precision"],
        beside=[*(Path(file).with_suffix(part).name for part in parts), file],
        metrics=_metrics(report["metrics"]),
        **{key: report["vectors"][key] for key in ("largest", "num_images")},
    )


def _metrics(metrics: Mapping[str, Mapping[str, list[float]]] | None) -> str:
    """The metrics of both models with their confidence intervals, as a table."""
    if not metrics:
        return ""
    rows = "".join(
        f"| {metric} | {_interval(values['before'])} | {_interval(values['after'])} |\n"
        for metric, values in metrics.items()
    )
    return f"\n| metric | model | exported |\n|---|---|---|\n{rows}\nIn brackets 95 % confidence intervals.\n"


def _interval(values: list[float]) -> str:
    value, low, high = values
    return f"{value:.4f} [{low:.4f}, {high:.4f}]"
