"""Weights are downloaded from a Hub of this test: their size is said, mistakes come before, no network is one error."""

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest
import safetensors.torch
import timm
from huggingface_hub import constants

from tests.conftest import SMALL, free_port, refused
from vicinal.cli.main import main

NAME = "test_resnet"
SETTINGS = [setting for setting in SMALL if not setting.startswith("--model.pretrained")]


class FakeHub(ThreadingHTTPServer):
    """Serves the same weights under every name, and remembers the requests."""

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content = content
        self.requests: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def do_HEAD(self) -> None:
        self.server.requests.append(self.command)
        self.send_response(200)
        headers = {"X-Repo-Commit": "0" * 40, "ETag": '"weights"', "Content-Length": str(len(self.server.content))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(self.server.content)

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the Hub, whose network may be used."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def set_endpoint(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    endpoint = f"http://127.0.0.1:{port}"
    path = constants.HUGGINGFACE_CO_URL_TEMPLATE.removeprefix(constants.ENDPOINT)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + path)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)


@pytest.fixture
def hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    state = timm.create_model(NAME, num_classes=1000).state_dict()
    server = FakeHub(safetensors.torch.save({name: value.contiguous() for name, value in state.items()}))
    set_endpoint(monkeypatch, server.server_port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(params=["no answer", "offline"])
def unreachable(request: pytest.FixtureRequest, cache: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A machine without a network, or one that is told so; what its error says of it."""
    set_endpoint(monkeypatch, free_port())
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", request.param == "offline")
    offline = "HF_HUB_OFFLINE=1 is set, and they are not in the cache"
    return offline if request.param == "offline" else f"{constants.ENDPOINT} does not answer: "


def commands(photos: Path) -> dict[str, list[str]]:
    model = ["--model", f"timm/{NAME}"]
    return {
        "train": ["train", f"--data.source={photos}", *SETTINGS, "--out=run"],
        "embed": ["embed", str(photos), *model, "--out=vectors.parquet"],
    }


@pytest.mark.parametrize("verb", ["train", "embed"])
def test_no_network_is_one_error_at_once(verb: str, photos: Path, unreachable: str, tmp_path: Path, capsys) -> None:
    start = time.monotonic()
    assert main(commands(photos)[verb]) == 2
    assert time.monotonic() - start < 20  # the Hub's client alone would take 40 s
    *others, error = capsys.readouterr().err.splitlines()
    assert not [line for line in others if "Hub" in line or "download" in line]
    assert "weights could not be fetched and loaded" in error
    assert unreachable in error
    assert f"a cache that has them (HF_HOME; now {tmp_path / 'cache'})" in error
    of_train = "--model.pretrained path/to/model.safetensors, --model.pretrained false"
    assert {"train": of_train, "embed": "--model with"}[verb] in error
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("cache", "photos")] == []


@pytest.mark.parametrize("verb", ["train", "embed"])
def test_the_size_is_said_before_a_download_and_it_happens_once(
    verb: str, photos: Path, hub: FakeHub, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(commands(photos)[verb]) == 0
    line = f"downloading the weights of {NAME} ({len(hub.content) / 1e6:.1f} MB) once, to {cache}"
    assert line in capsys.readouterr().err
    assert hub.requests.count("GET") == 1
    assert main([*commands(photos)["embed"][:-1], "--out=again.parquet"]) == 0
    assert "downloading" not in capsys.readouterr().err
    assert hub.requests.count("GET") == 1


def test_mistakes_come_before_a_download(photos: Path, hub: FakeHub, capsys) -> None:
    for settings, message in (
        (["--model.pooling=token"], "test_resnet has no class token"),
        (["--batch_size=1000"], "batch_size"),
        (["--coarse_classes_per_batch=2"], "coarse_column"),
        (["--data.fractions={train: 1.5}"], "fractions"),
        (["--fine_tuning.method=lora", "--fine_tuning.targets=[qkv]"], "test_resnet has no layer 'qkv'"),
        (["--fine_tuning.method=last_blocks", "--fine_tuning.blocks=99"], "an integer from 1 to 4"),
        (["--gradient_checkpointing=true"], "set model.freeze_batch_norm to statistics"),
        (["--loss=HistogramLoss", "--sample_selection.method=co-teaching"], "needs a loss that has a value for each"),
    ):
        if "lora" in str(settings) and not find_spec("peft"):
            continue
        assert message in refused(capsys, *commands(photos)["train"], *settings)
        assert hub.requests == []


def test_mistakes_of_a_named_model_come_before_a_download(photos: Path, hub: FakeHub, capsys) -> None:
    assert "test_resnet has no class token" in refused(capsys, *commands(photos)["embed"], "--pooling=token")
    assert main([*commands(photos)["embed"][:2], "--model=timm/resnet5O", "--out=v.parquet"]) == 2
    assert main(["embed", "nowhere/", *commands(photos)["embed"][2:]]) == 2
    assert hub.requests == []


def test_rehearsals_change_no_random_number(hub: FakeHub, photos: Path, tmp_path: Path) -> None:
    """The head of a run whose weights were downloaded is that of one that found them in the cache."""
    from vicinal.models import Embedder

    heads = []
    for name in ("first", "second"):
        arguments = [*commands(photos)["train"][:-1], "--max_steps=1", "--optimizer.lr=1e-30", f"--out={name}"]
        arguments += ["--data.fractions={train: 1.0}"]  # without validation the last model is kept
        assert main(arguments) == 0
        heads.append(Embedder.from_pretrained(tmp_path / name / "model").head[1].weight)
    assert heads[0].equal(heads[1])
