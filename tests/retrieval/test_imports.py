"""What each use of `vicinal.retrieval` loads, in a new interpreter."""

from __future__ import annotations

import json
import subprocess
import sys

WATCHED = ["faiss", "lightning_fabric", "matplotlib", "numba", "scipy", "sklearn", "tensorboard", "timm", "torch"]
WATCHED += ["torchvision", "vicinal.evaluation", "vicinal.models.embedder", "vicinal.training"]
BUILD = (
    "import numpy, pandas; from vicinal import Table; Index.build(numpy.eye(2), Table(pandas.DataFrame(index=[0, 1])))"
)
USES = (  # one after the other, with what is loaded by then
    ("import vicinal.retrieval", []),
    ("from vicinal.retrieval import ContextualReranking, PCAWhitening, refine, rerank, top_k", ["torch"]),
    ("from vicinal.retrieval import ReciprocalReranking", ["scipy", "torch"]),
    ("from vicinal.retrieval import Index, RemoteIndex, search_images; RemoteIndex", ["scipy", "torch"]),
    (BUILD, ["faiss", "scipy", "torch"]),
)


def test_each_use_loads_what_it_needs() -> None:
    report = f"print(json.dumps([name for name in {WATCHED} if name in sys.modules]))"
    script = "\n".join(["import json, sys", *(f"{statement}\n{report}" for statement, _ in USES)])
    output = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert [json.loads(line) for line in output.splitlines()] == [loaded for _, loaded in USES]
