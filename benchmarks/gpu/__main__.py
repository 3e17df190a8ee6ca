"""Everything that Vicinal computes on a GPU, checked and measured there, in under ten minutes.

    python -m benchmarks.gpu --out FOLDER                           # goes on where it stopped
    python -m benchmarks.gpu --out FOLDER --only losses evaluation
    python -m benchmarks.gpu --out FOLDER --device cpu --small      # tries the program without a GPU

Each result is a line of FOLDER/rows.jsonl, written at once; a later run on the same device, with the same versions and
sources, measures the rest. FOLDER/results.md has the tables, FOLDER/trace.json.gz where the time of embedding goes.
What runs out of memory, takes too long or crashes is a result too. Times are those of CUDA events, median and spread;
memory is the peak of torch's allocator above what was there.

The parts, in their order: correctness (kernels, losses and ranks against PyTorch and the CPU), kernels, two_stage (a
step of ViT-B/16 at batch 4,096, and the fraction of the loss in it), embedding (from JPEG files), evaluation (of SOP's
size and of a million), losses (all of them at n = 4096 and 16384, beside pytorch-metric-learning and the formulas).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from benchmarks.gpu.report import report
from benchmarks.gpu.rows import Rows
from benchmarks.gpu.supervisor import RESTART, supervise

PARTS = ("correctness", "kernels", "two_stage", "embedding", "evaluation", "losses")


def main(arguments: list[str] | None = None) -> int:
    """Measure in a process of its own, print the tables, and return the exit status."""
    given = _parser().parse_args(arguments)
    if given.until is not None:
        return _work(given)
    rows, until = Rows(given.out), time.time() + 60 * given.minutes
    options = ["--out", str(given.out), "--device", given.device, "--only", *given.only, *["--small"] * given.small]
    command = [sys.executable, "-m", "benchmarks.gpu", *options, "--until", str(until)]
    try:
        status = supervise(command, rows, until)
    except KeyboardInterrupt:
        status = 130
    if not (results := rows.read()):
        return status
    text = report(results)
    (given.out / "results.md").write_text(text, encoding="utf-8")
    print(text)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="folder of the results")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help="some of the parts")
    parser.add_argument("--minutes", type=float, default=10.0, help="after which nothing more is started (10)")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the program")
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)  # of the process that measures
    return parser


def _work(given: argparse.Namespace) -> int:
    """Measure in this process."""
    if given.device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported
    import torch

    from benchmarks.gpu.timing import Settings
    from benchmarks.gpu.worker import BrokenDeviceError, context, describe_left, work

    device = torch.device(given.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("there is no GPU that torch can use; --device cpu --small tries the program", file=sys.stderr)
        return 2
    if device.index is not None:
        torch.cuda.set_device(device)
    try:
        left = work(Settings(device, given.out, given.small), given.only, Rows(given.out, context(device)), given.until)
    except BrokenDeviceError as error:
        print(f"the device does not work any more in this process: {error}", file=sys.stderr)
        return RESTART
    if left:
        print(f"out of time; left: {describe_left(left)}. The same command goes on.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
