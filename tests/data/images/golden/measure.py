"""Print what this Pillow makes of the images of this folder, as `golden.json`.

    python tests/data/images/golden/measure.py

It needs numpy and Pillow only, so that it runs in an environment with any version of Pillow. The images were written
by Pillow 13.0.0.
"""

import hashlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from PIL import Image

HERE = Path(__file__).parent
CROP: dict[str, Any] = {
    "channels": 3,
    "longest": None,
    "resize": 36,
    "size": 32,
    "interpolation": "bicubic",
    "fast": True,
}


def digest(pixels: np.ndarray) -> str:
    """A short hash of pixels and their shape."""
    return hashlib.sha256(f"{pixels.shape}".encode() + pixels.astype(np.uint8).tobytes()).hexdigest()[:16]


def main() -> None:
    """Print the mean color of each image, and the digests of its pixels and of those of a crop."""
    file = HERE.parents[3] / "src" / "vicinal" / "export" / "onnx_embedder.py"
    spec = importlib.util.spec_from_file_location("onnx_embedder", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    embedder = object.__new__(module.OnnxEmbedder)
    embedder.preprocessing = CROP
    values = {}
    for path in sorted(HERE.iterdir()):
        if path.suffix in (".py", ".json"):
            continue
        with Image.open(path) as image:
            pixels = np.asarray(module.decoded(image, 3))
        mean = [round(float(each), 3) for each in pixels.mean(axis=(0, 1))]
        values[path.name] = [mean, digest(pixels), digest(embedder.pixels(path))]
    rows = ",\n".join(f" {json.dumps(name)}: {json.dumps(row)}" for name, row in values.items())
    print(f"{{\n{rows}\n}}")
    print(f"Pillow {PIL.__version__}", file=sys.stderr)


if __name__ == "__main__":
    main()
