"""Model folders of others run nothing, reach no network and need no memory for what they claim; one line says why."""

import json
import resource
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from vicinal.models import ContextRefiner, Embedder, create_backbone
from vicinal.utils.errors import InputError

PLAIN = "class_path would create an object; give numbers, text"
RESERVED = "cannot be set here; Vicinal sets it itself"
NOT_BUILT = "cannot be built with backbone_args"
RESERVED_KEYS = [
    "pretrained_filter_fn", "pretrained_model_args", "pretrained_strict", "cache_dir", "features_only", "feature_cfg",
    "model_name", "model_cls", "model_cfg", "kwargs_filter", "pruned", "scriptable", "exportable", "device", "dtype",
]  # fmt: skip
COMMAND = {"class_path": "os.system", "init_args": {"command": "touch executed"}}
GADGET = {"class_path": "gadget.Gadget", "init_args": {}}


def args(**values: Any) -> dict[str, Any]:
    return {"backbone_args": values}


# What is changed in config.json, and what the line says; None: the model loads, and nothing runs.
CASES: list[tuple[dict[str, Any], str | None]] = [
    (args(act_layer=COMMAND), PLAIN),
    (args(a=[1, {"b": [[GADGET]]}]), PLAIN),
    ({"backbone_args": COMMAND}, PLAIN),
    *((args(**{key: "gadget.Gadget"}), NOT_BUILT) for key in ("act_layer", "norm_layer", "block_args", "anything")),
    ({"backbone": "os.system"}, "backbone: timm has no model"),
    ({"pooling": "gadget.Gadget"}, "is unknown; choose avg, max, gem"),
    ({"pooling": COMMAND}, "pooling is"),
    ({"transform": {"interpolation": GADGET}}, "must be bicubic"),
    ({"transform": {**COMMAND, "size": 32}}, "unknown key 'class_path'"),
    ({"recipe": GADGET, "metrics": COMMAND}, None),  # never interpreted
    (args(pretrained_cfg={"url": "http://127.0.0.1:9/x.pth", "file": "gadget.pt"}), RESERVED),
    *((args(**{key: "os.system"}), RESERVED) for key in RESERVED_KEYS),
    *(({"backbone": name}, "is not the name of a timm model") for name in ("hf_hub:a/b", "../x", "a/b", "", "x\ny")),
    ({"backbone": "resnet18.a1_in1k"}, "it does not match config.json"),
    ({"pooling": "gem", "p": 1e19}, "GeM pooling: p is 1e+19; it must be a finite number from 0.001 to 10,000"),
    ({"pooling": "gem", "p": float("inf")}, "GeM pooling: p is inf; it must be a"),
    ({"pooling": "gem", "p": 10**400}, "GeM pooling: p is 1000"),
    ({"dropout": 10**400}, "dropout is 1000"),
    (args(width=10**400), "is too large; at most 16,384"),
    ({"transform": {"size": 16_384}}, "transform.size is 16384; it must be an integer"),
    ({"transform": {"size": 32, "resize": 16_384}}, "transform.resize is 16384"),
    (args(layers=[16_384] * 4), "asks for a network of more than"),
    ({"backbone": "test_vit", **args(depth=16_384)}, "asks for a network of more than"),
    ({"backbone": "levit_128", "transform": {"size": 4096, "resize": 4096}, "pooling": "avg"}, "GB of buffers for"),
]


@pytest.fixture
def folder(good: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the model, beside a module and a pickle that must not be read, in the working folder."""
    shutil.copytree(good / "m1", place / "model")
    for name in ("gadget.py", "gadget.pt"):
        (place / name).write_text("open('executed', 'w')\n")
    monkeypatch.syspath_prepend(str(place))
    return place / "model"


def change(folder: Path, changes: dict[str, Any]) -> None:
    config = json.loads((folder / "config.json").read_text())
    for key, value in changes.items():
        config[key] = {**config[key], **value} if key == "transform" else value
    (folder / "config.json").write_text(json.dumps(config).replace("Infinity", "1e400"))


# An audit hook cannot be removed, so it only looks while a test watches.
WATCHED = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect", "socket.getaddrinfo")
EVENTS: list[str] = []
watching: list[Path] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not watching:
        return
    if event in WATCHED or event.startswith(("urllib.", "pickle.", "os.remove", "os.rename", "shutil.")):
        EVENTS.append(f"{event} {arguments}")
    if event == "open" and isinstance(arguments[0], str) and not _is_allowed(Path(arguments[0])):
        EVENTS.append(f"open {arguments[0]}")


def _is_allowed(path: Path) -> bool:
    """The model itself, Python's own files, and what the system says about memory."""
    allowed = (watching[0], Path(sys.prefix), Path(sys.base_prefix), Path(torch.__file__).parents[3], "/proc", "/sys")
    path = path.absolute()
    return any(path.is_relative_to(each) for each in allowed) or path.parts[-4:-2] == ("src", "vicinal")


sys.addaudithook(_hook)


@contextmanager
def watched(folder: Path) -> Iterator[None]:
    """Nothing inside may run a program, reach for the network, unpickle, or open a file that is not the model's."""
    EVENTS.clear()
    watching.append(folder.absolute())
    try:
        yield
    finally:
        watching.clear()
    assert not EVENTS
    assert "gadget" not in sys.modules
    assert sorted(path.name for path in folder.parent.iterdir()) == ["gadget.pt", "gadget.py", "model"]


@contextmanager
def little_memory(num_bytes: int = 2 * 10**9) -> Iterator[None]:
    used = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData"))
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (1024 * int(used.split()[1]) + num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def test_the_hook_sees_what_it_must(folder: Path) -> None:
    for forbidden in (lambda: Path("gadget.py").read_text(), lambda: torch.hub.os.system("true")):
        with pytest.raises(AssertionError), watched(folder):
            forbidden()


@pytest.mark.parametrize(("changes", "line"), CASES)
def test_a_model_of_others(folder: Path, changes: dict[str, Any], line: str | None) -> None:
    change(folder, changes)
    start, message = time.thread_time(), ""
    with little_memory(), watched(folder):
        try:
            Embedder.from_pretrained(folder)
        except InputError as error:
            message = str(error)
    assert time.thread_time() - start < 10
    assert (line or "") in message
    assert bool(message) == (line is not None)
    assert "\n" not in message
    assert len(message) < 700


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int32, torch.complex64])
def test_weights_in_which_nothing_can_be_computed(folder: Path, dtype: torch.dtype) -> None:
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    tensors = {name: each.to(dtype) if each.is_floating_point() else each for name, each in tensors.items()}
    safetensors.torch.save_file(tensors, path)
    with pytest.raises(InputError, match=r"is of type \w+, in which networks cannot compute$|torch.float32 is needed$"):
        Embedder.from_pretrained(folder)


def test_a_refiner_of_many_blocks(place: Path) -> None:
    ContextRefiner(8, depth=1, num_heads=2).save_pretrained("model")
    change(place / "model", {"depth": 1000})
    with pytest.raises(InputError, match=r"config.json: it asks for a network of more than 514 tensors"):
        ContextRefiner.from_pretrained("model")


def test_arguments_in_python_are_plain_too() -> None:
    with pytest.raises(InputError, match=r"^backbone_args\.act_layer is of type type; give numbers, text"):
        create_backbone("test_resnet", pretrained=False, backbone_args={"act_layer": torch.nn.ReLU})
    with pytest.raises(InputError, match=PLAIN):
        Embedder("test_resnet", pretrained=False, backbone_args={"act_layer": {"class_path": "os.system"}})
