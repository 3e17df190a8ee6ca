"""The model card: what a saved model is, for people and for the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCardData

EMBEDDER_TEXT = """
# {name}

An image embedder trained with Vicinal: images of the same class lie next to each other, also of classes never seen
in training. It maps an image to {dim} numbers of length 1; compare two by their dot product.

| | |
|---|---|
| backbone | `{backbone}` (timm) |
| pooling | {pooling} |
| normalisation before the linear layer | {norm} |
| images | {size} px, {channels} channels |

## Use

```python
from vicinal import Embedder

model = Embedder.from_pretrained("path/to/this/folder")
vectors = model.embed(["a.jpg", "b.jpg"])
```
"""

REFINER_TEXT = """
# {name}

A context refiner trained with Vicinal: it moves finished embeddings of images, each by what lies around it, before
they are compared. It maps {dim} numbers of length 1 to as many.

| | |
|---|---|
| for embeddings of | {model} |
| dimensions | {dim} |
| blocks | {depth}, of {heads} heads |
| an embedding looks at | {looks_at} |
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


def embedder_card(name: str, config: Mapping[str, Any]) -> str:
    """An embedder's card as Markdown with the hub's front matter.

    Args:
        name: What the model is called.
        config: The content of the model's `config.json`; its `metrics` and `recipe` are shown.

    Example:
        >>> transform = {"size": 64, "channels": 1}
        >>> card = embedder_card("digits", {"backbone": "test_resnet", "dim": 32, "pooling": "gem", "norm": "layer",
        ...                                 "transform": transform, "metrics": {"recall@1": 0.9}, "recipe": {}})
        >>> [line for line in card.splitlines() if "recall@1" in line]
        ['    - type: recall@1', '| recall@1 | 0.9000 |']
    """
    transform = config["transform"]
    text = EMBEDDER_TEXT.format(
        name=name,
        size=transform["size"],
        channels=transform["channels"],
        **{key: config[key] for key in ("dim", "backbone", "pooling", "norm")},
    )
    return _card(name, text, config, "image-feature-extraction", [f"timm-{config['backbone']}"])


def refiner_card(name: str, config: Mapping[str, Any]) -> str:
    """A context refiner's card, as :func:`embedder_card`.

    Example:
        >>> card = refiner_card("birds", {"dim": 512, "depth": 8, "heads": 8, "neighbors": 8, "context": "neighbors",
        ...                               "model_fingerprint": None, "metrics": {}, "recipe": {}})
        >>> [line for line in card.splitlines() if "parameters" in line]
        ['| parameters | 8,388,608 |']
    """
    fingerprint, neighbors = config["model_fingerprint"], f"its {config['neighbors']} nearest neighbours"
    text = REFINER_TEXT.format(
        name=name,
        model="a model that was not recorded" if fingerprint is None else f"the model with fingerprint `{fingerprint}`",
        looks_at=neighbors if config["context"] == "neighbors" else "itself, not at neighbours",
        parameters=4 * config["dim"] ** 2 * config["depth"],
        **{key: config[key] for key in ("dim", "depth", "heads")},
    )
    return _card(name, text, config, "feature-extraction", ["context-refiner"])


def flat_numbers(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    """The numbers in a nested mapping, by path.

    Example:
        >>> flat_numbers({"test": {"recall@1": 0.5, "note": "x"}, "epoch": 3})
        [('test/recall@1', 0.5), ('epoch', 3)]
    """
    found: list[tuple[str, float]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            found += flat_numbers(value, f"{prefix}{key}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found.append((f"{prefix}{key}", value))
    return found


def _card(name: str, text: str, config: Mapping[str, Any], task: str, tags: Sequence[str]) -> str:
    """The card of any model: the hub's front matter, the text, metrics and recipe where there are some."""
    metrics = dict(flat_numbers(config["metrics"]))
    if metrics:
        rows = "".join(f"| {metric} | {value:.4f} |\n" for metric, value in metrics.items())
        text += f"\n## Metrics\n\n| metric | value |\n|---|---|\n{rows}"
    if config["recipe"]:
        text += f"\n## Training recipe\n\n```yaml\n{yaml.safe_dump(config['recipe'], sort_keys=False)}```\n"
    return f"---\n{_front_matter(name, task, tags, metrics)}\n---\n{text}"


def _front_matter(name: str, task: str, tags: Sequence[str], metrics: Mapping[str, float]) -> str:
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
        library_name="vicinal",
        pipeline_tag=task,
        tags=["image-retrieval", "metric-learning", "embeddings", *tags],
        model_name=name,
        eval_results=results or None,
    )
    return str(data.to_yaml())
