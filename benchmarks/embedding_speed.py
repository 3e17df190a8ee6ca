"""Photos per second of whole commands on a CPU: `vicinal embed` and `vicinal train` against plain loops of timm.

    python -m benchmarks.embedding_speed PHOTOS --num_images 600
    python -m benchmarks.embedding_speed PHOTOS --train --networks tf_efficientnet_lite0
    python -m benchmarks.embedding_speed PHOTOS --peers  # pip install sentence-transformers fastembed

PHOTOS is a folder with one folder per class. The commands take turns. Time, CPU seconds and memory are those of whole
processes with their children: memory is that of the largest. Networks have random weights. The plain loops are what one
would write with timm, ImageFolder and a DataLoader with one worker per core; that of training has the loss and the
sampler of pytorch-metric-learning. Goals: `embed` 4 times as fast as the loop for convolutional networks (2.5 times
with PyTorch), 1.5 times for transformers (1.0 with PyTorch); training 1.8 times; at most 10 % of the CPU time in the
kernel. The floor of embedding is the network's number of operations at the rate of a large matrix product on all cores:
no engine that computes in float32 without Winograd's algorithm is faster, however little the rest takes. A second floor
includes the imports of torch and timm, and libjpeg-turbo's decoding of the photos on all cores.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import simplejpeg
import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.table import markdown_table, print_machine

NETWORKS = (
    "tf_efficientnet_lite0", "resnet50", "mobilenetv4_conv_small", "vit_small_patch16_224", "convnext_tiny",
)  # fmt: skip
CLIP = "vit_base_patch32_clip_224"
VICINAL = (sys.executable, "-m", "vicinal")
SAVE = """
import sys
from vicinal import Embedder
Embedder(sys.argv[1], dim=None, pretrained=False, pooling="backbone", norm="none").save_pretrained(sys.argv[2])
"""
EMBED = """
import os, sys, timm, torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
model = timm.create_model(sys.argv[1], num_classes=0).eval()
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
loader = DataLoader(ImageFolder(sys.argv[2], transform), batch_size=64, num_workers=os.cpu_count())
with torch.no_grad():
    vectors = torch.cat([torch.nn.functional.normalize(model(images)) for images, _ in loader])
torch.save(vectors, sys.argv[3])
"""
PEER_MODELS = """
import sys, torch, transformers
folder = sys.argv[1]
clip = transformers.CLIPModel(transformers.CLIPConfig()).eval()
clip.save_pretrained(folder + "/clip")
transformers.CLIPImageProcessor().save_pretrained(folder + "/clip")
vision = transformers.CLIPVisionModelWithProjection(clip.config.vision_config).eval()
vision.save_pretrained(folder + "/vision")
transformers.CLIPImageProcessor().save_pretrained(folder + "/vision")
class Vectors(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = vision
    def forward(self, pixel_values):
        return self.model(pixel_values=pixel_values).image_embeds
torch.onnx.export(Vectors(), (torch.zeros(2, 3, 224, 224),), folder + "/vision/model.onnx",
    input_names=["pixel_values"], output_names=["image_embeds"],
    dynamic_axes={"pixel_values": {0: "n"}, "image_embeds": {0: "n"}}, dynamo=False)
"""
SENTENCE_TRANSFORMERS = """
import sys
from pathlib import Path
from PIL import Image
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1] + "/clip", device="cpu")
paths = sorted(path for path in Path(sys.argv[2]).rglob("*") if path.is_file())
for start in range(0, len(paths), 64):
    model.encode([Image.open(path) for path in paths[start : start + 64]], batch_size=64, normalize_embeddings=True)
"""
FASTEMBED = """
import sys
from pathlib import Path
from fastembed import ImageEmbedding
model = ImageEmbedding("Qdrant/clip-ViT-B-32-vision", specific_model_path=sys.argv[1] + "/vision")
paths = sorted(str(path) for path in Path(sys.argv[2]).rglob("*") if path.is_file())
vectors = list(model.embed(paths, batch_size=64))
"""
TRAIN = """
import os, sys, timm, torch
from pytorch_metric_learning.losses import MultiSimilarityLoss
from pytorch_metric_learning.samplers import MPerClassSampler
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
size = int(sys.argv[3])
steps = [v2.RandomResizedCrop(size), v2.RandomHorizontalFlip(), v2.PILToTensor(), v2.ToDtype(torch.float, scale=True)]
images = ImageFolder(sys.argv[2], v2.Compose([*steps, v2.Normalize([0.5] * 3, [0.5] * 3)]))
sampler = MPerClassSampler(images.targets, 4, 64, len(images) // 64 * 64)
loader = DataLoader(images, 64, sampler=sampler, num_workers=os.cpu_count())
model = torch.nn.Sequential(timm.create_model(sys.argv[1], num_classes=512)).train()
optimizer, loss_function = torch.optim.AdamW(model.parameters(), lr=1e-4), MultiSimilarityLoss()
for _ in range(int(sys.argv[4])):
    for batch, labels in loader:
        optimizer.zero_grad()
        loss_function(model(batch), labels).backward()
        optimizer.step()
"""


class Usage(NamedTuple):
    """What a command took.

    Attributes:
        seconds: from start to end.
        user: seconds of CPU time in the program.
        system: seconds of CPU time in the kernel.
        megabytes: of the largest process.
    """

    seconds: float
    user: float
    system: float
    megabytes: float


def main() -> None:
    """Run the commands in turn, and print a table per network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--num_images", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--train", action="store_true", help="measure training in place of embedding")
    parser.add_argument("--size", type=int, default=96, help="of the images in training, in pixels")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--peers", action="store_true", help="measure sentence-transformers and fastembed too, on CLIP")
    options = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        photos, number = _some_photos(options.photos, work / "photos", options.num_images)
        os.environ["VICINAL_DATA"] = str(work / "cache")
        for network in [CLIP] if options.peers else options.networks:
            commands = _training(network, photos, work, options) if options.train else _embedding(network, photos, work)
            if options.peers:
                commands |= _peers(photos, work)
            _print(network, _take_turns(commands, options.rounds), number * (options.epochs if options.train else 1))
            if not options.train:
                floor = _floor(network)
                seconds = number / floor + _seconds_of_imports() + _seconds_of_decoding(photos)
                print(f"\nFloor: {floor:.1f} photos/s; with imports and decoding {number / seconds:.1f}", flush=True)


def _some_photos(source: Path, target: Path, number: int) -> tuple[Path, int]:
    """A folder of links to some photos, chosen at random."""
    files = sorted(path for path in source.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    chosen = random.Random(0).sample(files, min(number, len(files)))
    for path in chosen:
        link = target / path.parent.name / path.name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path.resolve())
    return target, len(chosen)


def _embedding(network: str, photos: Path, work: Path) -> dict[str, Sequence[str]]:
    model = work / network
    _run((sys.executable, "-c", SAVE, network, str(model)))
    embed = (*VICINAL, "embed", str(photos), "--model", str(model), "--out", str(work / "vectors.parquet"))
    return {
        "plain loop": (sys.executable, "-c", EMBED, network, str(photos), str(work / "vectors.pt")),
        "vicinal embed --engine torch": (*embed, "--engine", "torch"),
        "vicinal embed": embed,
    }


def _peers(photos: Path, work: Path) -> dict[str, Sequence[str]]:
    """Commands of peers that embed with CLIP's vision transformer, from random weights in a file."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    _run((sys.executable, "-c", PEER_MODELS, str(work)))
    programs = {"sentence-transformers": SENTENCE_TRANSFORMERS, "fastembed": FASTEMBED}
    return {name: (sys.executable, "-c", program, str(work), str(photos)) for name, program in programs.items()}


def _training(network: str, photos: Path, work: Path, options: argparse.Namespace) -> dict[str, Sequence[str]]:
    size = str(options.size)
    settings = {
        "data.source": photos, "data.fractions": "{train: 1.0}", "model.backbone": network, "model.pretrained": "false",
        "model.pooling": "backbone", "model.norm": "none", "transform.size": size, "transform.resize": size,
        "batch_size": 64, "samples_per_class": 4, "epochs": options.epochs, "optimizer.lr": 0.0001,
        "loss": "MultiSimilarityLoss", "validation.train_images": 0,
    }  # fmt: skip
    in_new_folder = ("/bin/sh", "-c", 'rm -rf "$0"; exec "$@"', str(work / "run"))
    words = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    return {
        "plain loop": (sys.executable, "-c", TRAIN, network, str(photos), size, str(options.epochs)),
        "vicinal train": (*in_new_folder, *VICINAL, "train", *words, "--out", str(work / "run")),
    }


def _take_turns(commands: Mapping[str, Sequence[str]], rounds: int) -> dict[str, list[Usage]]:
    """What each command takes in each round, after one of Vicinal's that does not count, which also exports models."""
    usage: dict[str, list[Usage]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            if not number and name == "plain loop":
                continue
            used = _run(command)
            if number:
                usage[name].append(used)
    return usage


def _run(command: Sequence[str]) -> Usage:
    started = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = os.posix_spawn(
            command[0], list(command), os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, output.fileno(), 1), (os.POSIX_SPAWN_DUP2, output.fileno(), 2)],
        )  # fmt: skip
        _, status, used = os.wait4(process, 0)
        if status:
            output.seek(0)
            raise SystemExit(f"{' '.join(command[:4])} failed:\n{output.read().decode()[-2000:]}")
    return Usage(time.perf_counter() - started, used.ru_utime, used.ru_stime, used.ru_maxrss / 1000)


def _floor(network: str) -> float:
    """Photos per second if all operations of the network ran at the rate of a product of large matrices."""
    model = timm.create_model(network, num_classes=0).eval()
    size = timm.data.resolve_model_data_config(model)["input_size"]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, *size))
    matrix, seconds = torch.rand(2048, 2048), []
    for _ in range(10):
        started = time.perf_counter()
        matrix @ matrix
        seconds.append(time.perf_counter() - started)
    return 2 * 2048**3 / min(seconds) / counter.get_total_flops()


def _seconds_of_imports() -> float:
    return min(_run((sys.executable, "-c", "import torch, timm")).seconds for _ in range(3))


def _seconds_of_decoding(photos: Path) -> float:
    """Time that libjpeg-turbo takes for all JPEGs of a folder, with a thread per core."""
    images = [path.read_bytes() for path in photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg")]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        started = time.perf_counter()
        for _ in pool.map(simplejpeg.decode_jpeg, images):
            pass
    return time.perf_counter() - started


def _print(network: str, usage: Mapping[str, list[Usage]], number: int) -> None:
    """A table of medians; the ratio is that of the rounds' own times."""
    rows = []
    for name, rounds in usage.items():
        seconds, user, system, megabytes = (statistics.median(values) for values in zip(*rounds, strict=True))
        ratios = [base.seconds / own.seconds for own, base in zip(rounds, usage["plain loop"], strict=True)]
        spread = (
            f"{min(number / each.seconds for each in rounds):.1f} - {max(number / each.seconds for each in rounds):.1f}"
        )
        rows.append([
            name, f"{number / seconds:.1f}", spread, f"{statistics.median(ratios):.2f} x", f"{user:.1f}",
            f"{system:.1f} ({100 * system / (user + system):.0f} %)", f"{megabytes:,.0f}",
        ])  # fmt: skip
    print(f"\n{network}, {number} photos\n")
    columns = ("", "photos/s, median", "lowest - highest", "speed", "user s", "system s", "MB")
    print(markdown_table(columns, rows), flush=True)


if __name__ == "__main__":
    main()
