"""What a run loses, and gains, when it is exported: vectors, metrics, size and speed by format and precision.

    vicinal train recipes/grocery.yaml --data.root DATA --out RUN
    python -m benchmarks.export RUN
    python -m benchmarks.export RUN --split val --only fp32 int8
    python -m benchmarks.export efficientnet_lite0 --check test.csv --calibration_images train.csv

DATA holds the zip of the benchmark. Int8 is calibrated by the training split of a run. Speed is from pixels in memory,
16 at a time on the CPU, with as many threads as torch has, relative to torch in one process, where both take turns.
OMP_NUM_THREADS=1 and --cpu give CPU time on one core, which other programs change less.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from benchmarks.table import print_machine
from vicinal.export import ExportSettings, ParityReport, parity
from vicinal.export.settings import SUFFIXES
from vicinal.utils.console import aligned
from vicinal.workflows import EmbeddingReader, export_source

KINDS = {
    "fp32": ExportSettings(tolerance=1.0),
    "fp16": ExportSettings(precision="fp16", tolerance=1.0),
    "int8": ExportSettings(precision="int8", tolerance=1.0),
    "openvino fp32": ExportSettings(format="openvino", tolerance=1.0),
    "openvino fp16": ExportSettings(format="openvino", precision="fp16", tolerance=1.0),
    "openvino int8": ExportSettings(format="openvino", precision="int8", tolerance=1.0),
}
HEADS = ["", "MB", "speed", "largest", "mean", "recall@1", "difference", "mAP@R", "difference"]


def measure(run: str, settings: ExportSettings, root: str | None, **options: Any) -> ParityReport:
    """Export a run or a model, and return the report."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/model{SUFFIXES[settings.format]}"
        return export_source(run, out, settings, EmbeddingReader(root=root), **options)


def row(name: str, report: ParityReport) -> list[str]:
    """A row of the table; metrics and differences in percent, with intervals."""
    speeds, vectors, metrics = report.images_per_second, report.vectors, report.metrics() or {}
    cells = [name, f"{report.num_bytes['after'] / 1e6:.2f}", f"{speeds['after'] / speeds['before']:.2f} x"]
    cells += [f"{vectors.largest:.1e}", f"{vectors.mean:.1e}"]
    for each in metrics.values():
        value, low, high = (100 * number for number in each["difference"])
        cells += [f"{100 * each['after'][0]:.2f}", f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"]
    return cells


def main() -> None:
    """Export in every way, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--root", help="where the images are, if they were moved")
    parser.add_argument("--split", default="test", help="of the run")
    parser.add_argument("--check", help="images on which a model without a run is measured")
    parser.add_argument("--calibration_images", help="images by which its int8 is calibrated")
    parser.add_argument("--only", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--cpu", action="store_true", help="CPU time of this process in place of wall time")
    arguments = parser.parse_args()
    if arguments.cpu:
        parity.CLOCK = time.process_time
    print_machine()
    images = {"check": arguments.check, "calibration_images": arguments.calibration_images}
    split = None if arguments.check else arguments.split
    reports = {name: measure(arguments.run, KINDS[name], arguments.root, split=split, **images)
               for name in arguments.only}  # fmt: skip
    first = next(iter(reports.values()))
    before = {metric: f"{100 * values['before'][0]:.2f}" for metric, values in (first.metrics() or {}).items()}
    print(f"{first.backbone}, {first.vectors.num_images:,} images of {arguments.check or arguments.split}; "
          f"torch: {before}, {first.num_bytes['before'] / 1e6:.2f} MB, "
          f"{first.images_per_second['before']:.0f} images/s")  # fmt: skip
    print(aligned([HEADS, *(row(name, report) for name, report in reports.items())]))


if __name__ == "__main__":
    main()
