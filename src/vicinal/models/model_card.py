"""Model cards: the README of a saved model, with the metadata of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path, PurePath
from typing import Any

import yaml

IMPORT = "import:"  # before the import path of a module of the user in the place of a backbone's name

FOLDER = "path/to/this/folder"
"""The path in the examples on a card; the place of the model is not known when it is saved."""

EMBEDDER_TEXT = """
# {name}

{made} The dot product of two embeddings is their cosine similarity.

| | |
|---|---|
| backbone | {backbone} |
| pooling | {pooling} |
| normalization before the linear layer | {norm} |
| images | {images}, {channels} channels |

## Use

```python
from vicinal import Embedder

model = Embedder.from_pretrained("path/to/this/folder"{load})
vectors = model.embed(["a.jpg", "b.jpg"])
```

## Intended use

Finding images of the same class or thing by their nearest neighbors, in images like those of the training set. How well
that works on other images has to be measured on them (`vicinal evaluate`). It was not made to identify people.

## Data and license

{data} {license}
"""

TRAINED = """\
An image embedder trained with Vicinal. It maps an image to an L2-normalized embedding{dimensions}; images of
the same class have similar embeddings, also for classes that were not in the training set."""

UNTRAINED = """\
An image embedder that Vicinal has not trained: its backbone has its initial weights, published or random. It
maps an image to an L2-normalized embedding{dimensions}."""

REFINER_TEXT = """
# {name}

A context refiner trained with Vicinal. It moves each embedding of {dim} dimensions according to its nearest neighbors
before embeddings are compared.

| | |
|---|---|
| for embeddings of | {model} |
| dimensions | {dim} |
| blocks | {depth}, with {num_heads} heads |
| attends to | {attends_to} |
| parameters | {parameters:,} |

## Use

```bash
vicinal evaluate run --refiner path/to/this/folder
```

```python
from vicinal import ContextRefiner
from vicinal.retrieval import refine

refiner = ContextRefiner.from_pretrained("path/to/this/folder")
refined = refine(refiner, vectors)  # embeddings of that model, [n, {dim}]
```
"""

EXPORTED_TEXT = """
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


def embedder_card(name: str, config: Mapping[str, Any]) -> str:
    """The card of an embedder, Markdown with the front matter of the hub, by the content of its `config.json`."""
    transform, imported = config["transform"], config["backbone"].removeprefix(IMPORT)
    is_imported = imported != config["backbone"]
    dimensions = "" if config["dim"] is None else f" of {config['dim']} dimensions"
    text = EMBEDDER_TEXT.format(
        name=name,
        images=f"whole, at most {longest} px" if (longest := transform["longest"]) else f"{transform['size']} px",
        channels=transform["channels"],
        made=(TRAINED if config["recipe"] else UNTRAINED).format(dimensions=dimensions),
        backbone=f"`{imported}`, code of its own" if is_imported else f"`{config['backbone']}` (timm)",
        data=_data_text(config["recipe"]),
        license=_license_text(config),
        load=f', allow_imports=["{imported.partition(".")[0]}"]' if is_imported else "",
        **{key: config[key] for key in ("pooling", "norm")},
    )
    tags = [] if is_imported else [f"timm-{config['backbone']}"]
    return _card(
        name, text, config, "image-feature-extraction", tags, _license(config) if _is_pretrained(config) else None
    )


def _data_text(recipe: Mapping[str, Any]) -> str:
    """The training data by the recipe, which anyone may have written."""
    data = recipe.get("data")
    source = data.get("source") if isinstance(data, Mapping) else None
    if not isinstance(source, str):
        return "The training images of the model are not recorded."
    return f"The model was trained on the training split of `{PurePath(source).name}`; the recipe below says how."


def _license_text(config: Mapping[str, Any]) -> str:
    if config["backbone"].startswith(IMPORT):
        return "The license of its backbone is not recorded."
    if _is_pretrained(config) is False:
        return "Its backbone started from random weights."
    found, backbone = _license(config), _backbone(config)
    if found is None:
        return f"The license of the weights of its backbone, `{backbone}`, is unknown."
    start = "Its backbone started from" if _is_pretrained(config) else "If its backbone started from"
    return f"{start} the published weights of `{backbone}`, whose license is {found}, as timm or their package says."


def _is_pretrained(config: Mapping[str, Any]) -> bool | None:
    """Whether the training started from published weights; None if the recipe does not tell."""
    model = config["recipe"].get("model")
    pretrained = model.get("pretrained") if isinstance(model, Mapping) else None
    return pretrained if isinstance(pretrained, bool) else None


def _backbone(config: Mapping[str, Any]) -> str:
    """The name of the backbone as the recipe has it, which may name other weights than timm's."""
    from vicinal.models.backbones import timm_name  # loads torch

    model = config["recipe"].get("model")
    name = model.get("backbone") if isinstance(model, Mapping) else None
    return name if isinstance(name, str) and timm_name(name) == config["backbone"] else config["backbone"]


def _license(config: Mapping[str, Any]) -> str | None:
    from vicinal.models.backbones import weights_license  # loads timm

    return None if config["backbone"].startswith(IMPORT) else weights_license(_backbone(config))


def refiner_card(name: str, config: Mapping[str, Any]) -> str:
    """The card of a context refiner, as :func:`embedder_card`."""
    from vicinal.models.context_block import BlockSettings  # needs torch

    block = BlockSettings(**{each.name: config[each.name] for each in fields(BlockSettings)})
    fingerprint, neighbors = config["model_fingerprint"], f"the {config['neighbors']} nearest neighbors"
    neighbors += "" if config["null_similarity"] is None else ", or to none of them"
    text = REFINER_TEXT.format(
        name=name,
        model="a model that was not recorded" if fingerprint is None else f"the model with fingerprint `{fingerprint}`",
        attends_to=neighbors if config["context"] == "neighbors" else "the embedding itself, not its neighbors",
        parameters=block.num_parameters * (1 if config["tie_weights"] else config["depth"]),
        **{key: config[key] for key in ("dim", "depth", "num_heads")},
    )
    return _card(name, text, config, "feature-extraction", ["context-refiner"])


def _card(
    name: str, text: str, config: Mapping[str, Any], task: str, tags: Sequence[str], license_name: str | None = None
) -> str:
    """The card of any model: front matter, text, and metrics and recipe if there are any."""
    metrics = dict(_flatten_numbers(config["metrics"]))
    if metrics:
        rows = "".join(f"| {metric} | {value:.4f} |\n" for metric, value in metrics.items())
        text += f"\n## Metrics\n\n| metric | value |\n|---|---|\n{rows}"
    if config["recipe"]:
        text += f"\n## Training recipe\n\n```yaml\n{yaml.safe_dump(config['recipe'], sort_keys=False)}```\n"
    return f"---\n{_front_matter(name, task, tags, metrics, license_name)}\n---\n{text}"


def _flatten_numbers(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers in a nested mapping, with their paths such as `test/recall@1`."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten_numbers(value, f"{prefix}{key}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield f"{prefix}{key}", value


def _front_matter(
    name: str, task: str, tags: Sequence[str], metrics: Mapping[str, float], license_name: str | None
) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type=task,
            dataset_type="image-retrieval",
            dataset_name="held-out classes",
            metric_type=metric,
            metric_value=value,
        )
        for metric, value in metrics.items()
    ]
    data = ModelCardData(
        license=license_name,
        library_name="vicinal",
        pipeline_tag=task,
        tags=["image-retrieval", "metric-learning", "embeddings", *tags],
        model_name=name,
        eval_results=results or None,
    )
    return str(data.to_yaml())


def name_on_card(folder: Path, name: str) -> None:
    """Have the examples on the card of a saved model load it by its name on the Hugging Face Hub."""
    card = folder / "README.md"
    card.write_text(card.read_text(encoding="utf-8").replace(FOLDER, name), encoding="utf-8")


def exported_text(file: str, report: Mapping[str, Any], name: str) -> str:
    """The section of the card about an exported model; arguments as :func:`add_exported`, with its file's name."""
    is_openvino = report["settings"]["format"] == "openvino"
    parts = [".preprocessing.json", *([".bin"] if is_openvino else [])]
    return EXPORTED_TEXT.format(
        file=file,
        name=name,
        refined=" with its refiner and gallery" if report["refined"] else "",
        images=report["images"],
        runtime="OpenVINO" if is_openvino else "ONNX Runtime",
        reader="OpenVinoEmbedder" if is_openvino else "OnnxEmbedder",
        precision=report["settings"]["precision"],
        beside=[*(Path(file).with_suffix(part).name for part in parts), file],
        metrics=_exported_metrics(report["metrics"]),
        **{key: report["vectors"][key] for key in ("largest", "num_images")},
    )


def _exported_metrics(metrics: Mapping[str, Mapping[str, list[float]]] | None) -> str:
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
