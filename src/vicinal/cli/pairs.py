"""`vicinal evaluate --pairs`: pairs of images, told whether they are of the same class."""

from __future__ import annotations

from vicinal.cli.flags import Arguments, print_result
from vicinal.cli.inputs import check_embedding, check_files, check_source, read_embedding
from vicinal.utils.errors import InputError

OTHERS = ("compare", "average", "images", "embeddings", "labels", "intervals", "per_query", "rerank", "refiner",
          "csv", "group_by", "clusters", "hierarchy", "metrics", "recall_at", "protocol", "devices",
          "checkpoint")  # fmt: skip


def evaluate_pair_list(arguments: Arguments) -> None:
    """Evaluate the pairs of a list by the embeddings of one source, or of the listed images by a model."""
    for name in OTHERS:
        if getattr(arguments, name, None) not in (None, False):
            raise InputError(f"--{name} is about rankings, not about --pairs; leave one of them out")
    if len(arguments.sources) > 1:
        raise InputError(f"--pairs is for one source; {len(arguments.sources)} are named")
    source = arguments.sources[0] if arguments.sources else None
    if source is None and getattr(arguments, "model", None) is None:
        raise InputError("--pairs needs a source that holds the images, or --model to embed those of the list")
    check_files(arguments.pairs)
    check_embedding(arguments)
    check_source(source)
    from vicinal.workflows.pairs import PairList

    pairs = PairList.read(arguments.pairs, getattr(arguments, "root", None))
    reader = read_embedding(arguments, folder_on_error="raise")
    embedded = reader.embed_table(pairs.images()) if source is None else reader.embed(source, arguments.split)
    result = pairs.evaluate(embedded)
    print_result(result.to_dict() if arguments.json else str(result))
