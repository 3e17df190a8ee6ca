"""Model folders that somebody made to do harm: nothing in them runs, and each is one line that says what is wrong."""

from __future__ import annotations

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
from PIL import Image

from vicinal.data import ImageTransform
from vicinal.models import ContextRefiner, Embedder, create_backbone, embed_multi_scale
from vicinal.models.limited_build import limited_build
from vicinal.utils.errors import InputError

TRANSFORM = ImageTransform(size=32, resize=40)
PLAIN = "class_path would create an object; give numbers, text"
RESERVED = "cannot be set here; Vicinal sets it itself"
NOT_BUILT = "cannot be built with backbone_args"
GADGETS = {
    "os.system": {"command": "touch executed"},
    "posix.system": {"command": "touch executed"},
    "subprocess.Popen": {"args": ["touch", "executed"]},
    "builtins.eval": {"source": "open('executed', 'w')"},
    "builtins.exec": {"source": "open('executed', 'w')"},
    "builtins.open": {"file": "executed", "mode": "w"},
    "importlib.import_module": {"name": "gadget"},
    "runpy.run_path": {"path_name": "gadget.py"},
    "torch.load": {"f": "gadget.pt", "weights_only": False},
    "pickle.loads": {"data": "x"},
    "functools.partial": {"func": "os.system"},
    "gadget.Gadget": {},
}
LAYERS = ("act_layer", "norm_layer", "block_args", "anything")


def args(**values: Any) -> dict[str, Any]:
    return {"backbone_args": values}


def _of_gadgets() -> Iterator[tuple[str, str, dict[str, Any], str | None]]:
    for gadget, init_args in GADGETS.items():
        made = {"class_path": gadget, "init_args": init_args}
        yield "class path as a value", gadget, args(act_layer=made), PLAIN
        yield "class path, nested", gadget, args(a=[1, {"b": [[made]]}]), PLAIN
        yield "class path, itself", gadget, {"backbone_args": made}, PLAIN
        yield "class path as backbone", gadget, {"backbone": gadget}, "backbone: timm has no model"
        yield "class path as pooling", gadget, {"pooling": gadget}, "is unknown; choose avg, max, gem"
        yield "object as pooling", gadget, {"pooling": made}, "pooling is"
        yield "object in the transform", gadget, {"transform": {"size": 32, "interpolation": made}}, "must be bicubic"
        yield "class path in the transform", gadget, {"transform": {**made, "size": 32}}, "unknown key 'class_path'"
        yield "class path in the recipe", gadget, {"recipe": made, "metrics": made}, None  # never interpreted
        for key in LAYERS:
            yield f"name of {key}", gadget, args(**{key: gadget}), NOT_BUILT


# Kind, case, what is changed in config.json, what the line says; None: the model loads, and nothing runs.
CASES: list[tuple[str, str, dict[str, Any], str | None]] = [
    *_of_gadgets(),
    *(
        ("option of timm", key, args(**{key: value}), RESERVED)
        for key, value in {
            "pretrained": True,
            "pretrained_cfg": {"url": "http://127.0.0.1:9/x.pth", "file": "gadget.pt"},
            "pretrained_cfg_overlay": {"url": "http://127.0.0.1:9/x.pth"},
            "pretrained_filter_fn": "os.system",
            "pretrained_model_args": {},
            "pretrained_strict": False,
            "checkpoint_path": "gadget.pt",
            "cache_dir": ".",
            "features_only": True,
            "feature_cfg": {"feature_cls": "fx"},
            "model_name": "hf-hub:someone/model",
            "model_cls": "os.system",
            "model_cfg": {},
            "kwargs_filter": ["in_chans"],
            "pruned": True,
            "scriptable": True,
            "exportable": True,
            "device": "meta",
            "dtype": "float8",
        }.items()
    ),
    *(
        ("name of a backbone", name, {"backbone": name}, "is not the name of a timm model")
        for name in ("hf-hub:someone/model", "hf_hub:a/b", "local-dir:.", "local-dir:/etc", "../x", "a/b", "", "x\ny")
    ),
    ("weights", "of a tag", {"backbone": "resnet18.a1_in1k"}, "it does not go with config.json"),
    (
        "number",
        "GeM p of 1e19",
        {"pooling": "gem", "p": 1e19},
        "GeM pooling: p is 1e+19; it must be a finite number from 0.001 to 10,000",
    ),
    (
        "number",
        "GeM p of 1e400",
        {"pooling": "gem", "p": float("inf")},
        "GeM pooling: p is inf; it must be a",
    ),
    ("number", "GeM p of 400 digits", {"pooling": "gem", "p": 10**400}, "GeM pooling: p is 1000"),
    ("number", "GeM p of 1e-30", {"pooling": "gem", "p": 1e-30}, "GeM pooling: p is 1e-30"),
    ("number", "dropout of 400 digits", {"dropout": 10**400}, "dropout is 1000"),
    ("number", "dim of 400 digits", {"dim": 10**400}, "dim is 1000"),
    ("number", "argument of 400 digits", args(width=10**400), "is too large; at most 16,384"),
    ("number", "size 16,384", {"transform": {"size": 16_384}}, "transform.size is 16384; it must be an integer"),
    ("number", "resize 16,384", {"transform": {"size": 32, "resize": 16_384}}, "transform.resize is 16384"),
    ("nesting", "of lists", args(a=json.loads("[" * 100 + "]" * 100)), "more than 16 levels or 10,000 values"),
    ("nesting", "many values", args(a=[0] * 20_000), "more than 16 levels or 10,000 values"),
    ("size", "16,384 layers", args(layers=[16_384] * 4), "asks for a network of more than"),
    ("size", "16,384 blocks", {"backbone": "test_vit", **args(depth=16_384)}, "asks for a network of more than"),
    (
        "size",
        "buffers of 13 GB",
        {
            "backbone": "swinv2_tiny_window8_256",
            "transform": {"size": 1024, "resize": 1024},
            **args(window_size=128, embed_dim=8, num_heads=[1] * 4, depths=[2] * 4),
        },
        "asks for 13.2 GB of buffers for 0.001 GB of weights; at most 1.0 GB are allowed",
    ),
    (
        "size",
        "buffers of 156 GB",
        {"backbone": "levit_128", "transform": {"size": 4096, "resize": 4096}, "pooling": "avg"},
        "GB of buffers for",
    ),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    torch.manual_seed(0)
    Embedder("test_resnet", dim=8, pretrained=False, transform=TRANSFORM).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the model, beside a module and a pickle that must not be read, in the working folder."""
    shutil.copytree(model, tmp_path / "model")
    for name in ("gadget.py", "gadget.pt"):
        (tmp_path / name).write_text("open('executed', 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "model"


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
    """No more than this may be allocated in addition."""
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


@pytest.mark.parametrize(
    ("kind", "case", "changes", "line"), CASES, ids=[f"{kind}: {case}" for kind, case, *_ in CASES]
)
def test_hostile_folders(folder: Path, kind: str, case: str, changes: dict[str, Any], line: str | None) -> None:
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


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int32, torch.complex64])
def test_weights_in_which_nothing_can_be_computed(folder: Path, dtype: torch.dtype) -> None:
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    tensors = {name: each.to(dtype) if each.is_floating_point() else each for name, each in tensors.items()}
    safetensors.torch.save_file(tensors, path)
    with pytest.raises(InputError, match=r"is of type \w+, in which networks cannot compute$|torch.float32 is needed$"):
        Embedder.from_pretrained(folder)


def test_a_refiner_of_many_blocks(tmp_path: Path) -> None:
    ContextRefiner(8, depth=1, num_heads=2).save_pretrained(tmp_path / "model")
    change(tmp_path / "model", {"depth": 1000})
    with pytest.raises(InputError, match=r"config.json: it asks for a network of more than 514 tensors"):
        ContextRefiner.from_pretrained(tmp_path / "model")


@pytest.mark.parametrize("key", LAYERS)
def test_arguments_in_python_are_plain_too(key: str) -> None:
    with pytest.raises(InputError, match=rf"^backbone_args\.{key} is of type type; give numbers, text"):
        create_backbone("test_resnet", pretrained=False, backbone_args={key: torch.nn.ReLU})
    with pytest.raises(InputError, match=PLAIN):
        Embedder("test_resnet", pretrained=False, backbone_args={key: {"class_path": "os.system"}})


def test_networks_without_a_file_of_weights_are_bounded_too() -> None:
    with pytest.raises(InputError, match=r"^backbone levit_128 with .* asks for .* GB of buffers"), little_memory():
        create_backbone("levit_128", pretrained=False, image_size=4096)


def test_a_size_of_a_thread_is_its_own() -> None:
    """What other threads build at the same time does not count."""
    import threading

    with limited_build("it", max_tensors=0):
        thread = threading.Thread(target=lambda: built.append(torch.nn.Linear(2, 2)))
        built: list[torch.nn.Module] = []
        thread.start()
        thread.join()
    assert built


DEVICES = {
    "meta": "device meta holds no values",
    "nonsense": "device 'nonsense' cannot be used",
    "cuda:99": "device 'cuda:99' cannot be used",
    "": "cannot be used",
    "1.5": "device '1.5' cannot be used",
}
SCALES: dict[str, tuple[Any, str]] = {
    "1e9": ([1e9], "scale 1000000000.0 would make images with sides of 32000000000.0 pixels; at most 4,096"),
    "1e300": ([1e300], "scale 1e+300 would make"),
    "400 digits": ([10**400], "scale 1000"),
    "nan": ([float("nan")], "scale nan is impossible"),
    "text": (["x"], "scale 'x' is impossible; a scale is a number above 0"),
    "one number": (1.0, "scales is 1.0; give a list of numbers"),
}


@pytest.mark.parametrize("device", DEVICES)
def test_devices(model: Path, device: str) -> None:
    with pytest.raises(InputError, match=DEVICES[device]) as error:
        Embedder.from_pretrained(model).embed([Image.new("RGB", (40, 40))], device=device, progress=False)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("case", SCALES)
def test_scales(model: Path, case: str) -> None:
    scales, message = SCALES[case]
    with pytest.raises(InputError) as error:
        embed_multi_scale(Embedder.from_pretrained(model), [Image.new("RGB", (40, 40))], scales, progress=False)
    assert message in str(error.value)


def test_scales_of_whole_images(model: Path) -> None:
    with pytest.raises(InputError, match=r"scale 3.0 would make images with sides of 6000.0 pixels"):
        embed_multi_scale(
            Embedder.from_pretrained(model), [Image.new("RGB", (2000, 40))], [3.0], max_size=2000, progress=False
        )
