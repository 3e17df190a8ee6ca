"""The tables of the results, in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.gpu.rows import FLOOR, FORMULA, NO_KERNELS, OK, OURS, PEER, Key, Numbers, key_of
from benchmarks.table import markdown_table

Results = Mapping[Key, tuple[str, Numbers]]
Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """The tables of each device, version and state of the sources, the latest first."""
    contexts: dict[tuple[tuple[str, str], ...], dict[Key, tuple[str, Numbers]]] = {}
    for row in reversed(rows):
        results = contexts.setdefault(tuple(row["context"].items()), {})
        results.setdefault(key_of(row), (row["status"], row["numbers"]))
    sections = [
        "\n\n".join([_heading(dict(context)), *_tables(dict(reversed(results.items())))])
        for context, results in contexts.items()
    ]
    return "\n\n".join(["# Measured on this device", *sections]) + "\n"


def _heading(context: Mapping[str, str]) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in context.items() if name != "device")
    return f"## {context['device']}\n\n{versions}"


def _tables(results: Results) -> Iterator[str]:
    for part, tables in TABLES.items():
        own = {key: result for key, result in results.items() if key.part == part}
        for title, columns, cells in tables(own) if own else ():
            yield f"### {title}\n\n{markdown_table(columns, cells)}"
    problems: dict[tuple[str, str, str], list[str]] = {}
    for key, (status, _) in results.items():
        if status != OK:
            problems.setdefault((status, key.who, key.size), []).append(key.name)
    if problems:
        lines = [f"- {who}, {size}: {status}: {'; '.join(names)}" for (status, who, size), names in problems.items()]
        yield "### Not measured\n\n" + "\n".join(lines)


def _correctness(results: Results) -> Iterator[Table]:
    groups: dict[tuple[str, str], list[tuple[str, Numbers, str]]] = {}
    for key, (status, numbers) in results.items():
        groups.setdefault((key.name, key.who), []).append((status, numbers, key.size))
    cells = []
    for (name, how), found in groups.items():
        failed = [size for status, numbers, size in found if status != OK or not numbers["passed"]]
        largest = max((numbers["difference"] for status, numbers, _ in found if status == OK), default=float("nan"))
        cells.append((name, how, f"{len(found) - len(failed)} of {len(found)}", f"{largest:.1e}", "; ".join(failed)))
    yield "Correctness", ("", "", "passed", "largest difference", "failed"), cells


def _kernels(results: Results) -> Iterator[Table]:
    cells = []
    for key, (_, numbers) in results.items():
        if key.who == "kernel":
            reference = results.get(key._replace(who="PyTorch"))
            kernel, rate = results[key], _number(numbers.get("gb_per_s"), ".0f")
            cells.append((key.name, key.size, _ms(kernel), _ms(reference), _ratio(reference, kernel), rate))
    columns = ("", "size", "kernel, ms", "PyTorch, ms", "PyTorch / kernel", "GB/s that must be read")
    yield "Kernels", columns, cells


def _losses(results: Results) -> Iterator[Table]:
    ratios = ("time / floor", "kernels / floor's", "without Triton / floor", "PML / floor", "formula / floor")
    columns = ("", "ms", "lowest - highest", *ratios, "MB", "PML, MB", "formula, MB")
    for size in dict.fromkeys(key.size for key in results):
        own = {key: result for key, result in results.items() if key.size == size}
        cells = []
        for key, result in own.items():
            if key.who not in (NO_KERNELS, PEER, FORMULA):
                floor = own.get(Key("losses", result[1].get("floor", FLOOR), "float32", size))
                beside = [own.get(key._replace(who=who)) for who in (NO_KERNELS, PEER, FORMULA)]
                name = key.name if key.who == OURS else f"{key.name}, {key.who}"
                over_floor = [_ratio(each, floor) for each in (result, *beside)]
                over_floor.insert(1, _ratio(result, floor, "kernel_ms"))
                memory = [_mb(each) for each in (result, *beside[1:])]
                cells.append((name, _ms(result), _spread(result), *over_floor, *memory))
        yield f"Losses, {size}, d = 512", columns, cells


def _two_stage(results: Results) -> Iterator[Table]:
    stages = ("first pass", "loss", "second pass", "optimizer")
    cells = []
    for key, (status, numbers) in results.items():
        parts = [_number(numbers.get(stage), ".1f") for stage in stages]
        fraction = _number(100 * numbers["loss_fraction"] if status == OK else None, ".2f")
        rate = _number(numbers.get("images_per_s"), ".0f")
        cells.append((key.name, key.who, key.size, _ms(results[key]), rate, *parts, fraction, _mb(results[key])))
    columns = ("loss", "", "", "step, ms", "images/s", *(f"{stage}, ms" for stage in stages), "loss, %", "MB")
    yield "A step of ViT-B/16, 224 pixels, bfloat16", columns, cells


def _embedding(results: Results) -> Iterator[Table]:
    rates = [(key.who, _number(numbers.get("images_per_s"), ".0f")) for key, (_, numbers) in results.items()]
    yield "Embedding JPEG files by ViT-B/16, 224 pixels, bfloat16", ("", "images/s"), rates
    for key, (_, numbers) in results.items():
        if "times" in numbers:
            cells = [(name, f"{ms:.0f}", f"{100 * ms / numbers['ms']:.1f}") for name, ms in numbers["times"].items()]
            cells.append(("all", f"{numbers['ms']:.0f}", "100"))
            yield f"Where the time of embedding goes, by the {key.who}", ("", "ms", "%"), cells


def _evaluation(results: Results) -> Iterator[Table]:
    cells = []
    for key, result in results.items():
        floor = results.get(key._replace(who=FLOOR))
        cells.append((key.size, key.who, _ms(result), _spread(result), _ratio(result, floor), _mb(result)))
    columns = (
        "images x dimensions x images of a class (x queries)",
        "",
        "ms",
        "lowest - highest",
        "time / floor",
        "MB",
    )
    yield "Evaluation, all metrics of a full ranking", columns, cells


TABLES: dict[str, Callable[[Results], Iterator[Table]]] = {
    "correctness": _correctness,
    "kernels": _kernels,
    "losses": _losses,
    "two_stage": _two_stage,
    "embedding": _embedding,
    "evaluation": _evaluation,
}

Result = tuple[str, Numbers] | None


def _ms(result: Result) -> str:
    if result is None:
        return ""
    return f"{result[1]['ms']:.3g}" if result[0] == OK else result[0].partition(":")[0]


def _spread(result: Result) -> str:
    return f"{result[1]['low']:.3g} - {result[1]['high']:.3g}" if result is not None and result[0] == OK else ""


def _ratio(result: Result, base: Result, time: str = "ms") -> str:
    if result is None or result[0] != OK:
        return _ms(result)
    return f"{result[1][time] / base[1][time]:.2f}" if base is not None and base[0] == OK and time in base[1] else ""


def _mb(result: Result) -> str:
    return f"{result[1]['peak_mb']:.0f}" if result is not None and result[0] == OK else ""


def _number(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"
