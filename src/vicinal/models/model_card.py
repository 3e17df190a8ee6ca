"""The model card: what a saved model is, for people and for the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCardData

TEXT = """
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


def model_card(name: str, config: Mapping[str, Any]) -> str:
    """The card as Markdown with the hub's front matter.

    Args:
        name: What the model is called.
        config: The content of the model's `config.json`; its `metrics` and `recipe` are shown.

    Example:
        >>> transform = {"size": 64, "channels": 1}
        >>> card = model_card("digits", {"backbone": "test_resnet", "dim": 32, "pooling": "gem", "norm": "layer",
        ...                              "transform": transform, "metrics": {"recall@1": 0.9}, "recipe": {}})
        >>> [line for line in card.splitlines() if "recall@1" in line]
        ['    - type: recall@1', '| recall@1 | 0.9000 |']
    """
    metrics = dict(flat_numbers(config["metrics"]))
    transform = config["transform"]
    text = TEXT.format(
        name=name,
        size=transform["size"],
        channels=transform["channels"],
        **{key: config[key] for key in ("dim", "backbone", "pooling", "norm")},
    )
    if metrics:
        rows = "".join(f"| {metric} | {value:.4f} |\n" for metric, value in metrics.items())
        text += f"\n## Metrics\n\n| metric | value |\n|---|---|\n{rows}"
    if config["recipe"]:
        text += f"\n## Training recipe\n\n```yaml\n{yaml.safe_dump(config['recipe'], sort_keys=False)}```\n"
    return f"---\n{_front_matter(name, config['backbone'], metrics)}\n---\n{text}"


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


def _front_matter(name: str, backbone: str, metrics: Mapping[str, float]) -> str:
    results = [
        EvalResult(
            task_type="image-feature-extraction",
            dataset_type="image-retrieval",
            dataset_name="held-out classes",
            metric_type=metric,
            metric_value=value,
        )
        for metric, value in metrics.items()
    ]
    data = ModelCardData(
        library_name="vicinal",
        pipeline_tag="image-feature-extraction",
        tags=["image-retrieval", "metric-learning", "embeddings", f"timm-{backbone}"],
        model_name=name,
        eval_results=results or None,
    )
    return str(data.to_yaml())
