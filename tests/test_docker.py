"""The image of the service: the Dockerfile, what is copied, the compose file and the package agree; without Docker."""

import json
import re
import shlex
from fnmatch import fnmatch
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from vicinal.cli.main import main

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no tomllib")
Instruction = tuple[str, str]
DATA = "/data"


def instructions() -> list[list[Instruction]]:
    """The instructions of each stage of the Dockerfile, with their arguments in one line."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    stages: list[list[Instruction]] = []
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if line:
            name, arguments = line.split(maxsplit=1)
            stages += [[]] if name == "FROM" else []
            stages[-1].append((name, arguments))
    return stages


BUILD, FINAL = instructions()


def arguments(stage: list[Instruction], name: str) -> list[str]:
    return [text for each, text in stage if each == name]


@pytest.fixture
def service() -> dict[str, Any]:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    assert compose["volumes"] == {"gallery": {"name": "vicinal-gallery"}}
    assert [*compose["secrets"]] == compose["services"]["vicinal"]["secrets"] == ["vicinal_token"]
    assert "file" in compose["secrets"]["vicinal_token"]
    service: dict[str, Any] = compose["services"]["vicinal"]
    return service


def test_the_pip_commands_use_names_of_the_package() -> None:
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    commands = [shlex.split(text.partition("pip install")[2]) for text in arguments(BUILD, "RUN") if "pip " in text]
    assert commands == [
        ["--no-deps", "--index-url", "$TORCH_INDEX", "--constraint", "constraints.txt", "torch", "torchvision"],
        ["--constraint", "constraints.txt", ".[$EXTRAS]"],
    ]
    assert {"torch", "torchvision"} <= pinned.keys()
    defaults = dict(text.split("=", 1) for text in arguments(BUILD, "ARG"))
    assert defaults["EXTRAS"] in project["optional-dependencies"]
    assert defaults["TORCH_INDEX"].endswith("/cpu")
    assert {text.split()[0] for text in (*arguments(BUILD, "FROM"), *arguments(FINAL, "FROM"))} == {
        "python:3.11-slim-bookworm"  # one Python for both, since the environment is copied
    }


def test_what_is_copied_is_there_and_not_ignored() -> None:
    copied = [source for text in arguments(BUILD, "COPY") for source in text.split()[:-1]]
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == set(copied)
    assert all((ROOT / source).exists() for source in copied)
    assert not any(fnmatch(source, rule) for source in copied for rule in rules[1:] if not rule.startswith("!"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {project["readme"], *project["license-files"]} <= set(copied)  # without which it cannot be built


def test_the_service_has_few_rights_and_its_health_is_asked_for() -> None:
    (user,), (health,), (port,) = (arguments(FINAL, name) for name in ("USER", "HEALTHCHECK", "EXPOSE"))
    assert int(user) > 0
    assert FINAL.index(("USER", user)) > max(FINAL.index(each) for each in FINAL if each[0] in ("RUN", "COPY"))
    python, flag, script = json.loads(health[health.index("[") :])
    assert (python, flag) == ("python", "-c")
    assert f"'http://127.0.0.1:{port}/health'" in script
    compile(script, "healthcheck", "exec")
    settings = [text for stage in (BUILD, FINAL) for name in ("ENV", "ARG") for text in arguments(stage, name)]
    assert not any("token" in text.lower() for text in settings)  # they can be read from the image


def test_the_command_has_the_flags_of_the_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(arguments(FINAL, "ENTRYPOINT")[0]) == ["vicinal", "serve"]
    index, *flags = json.loads(arguments(FINAL, "CMD")[0])
    values = dict(zip(flags[::2], flags[1::2], strict=True))
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    described = capsys.readouterr().out
    assert all(re.search(rf"{flag}\b", described) for flag in values)
    assert values["--port"] == arguments(FINAL, "EXPOSE")[0]
    assert values["--host"] == "0.0.0.0"
    assert index.startswith(f"{DATA}/")
    assert values["--model"].startswith(f"{DATA}/")


def test_compose_agrees_with_the_image(service: dict[str, Any]) -> None:
    (port,), (volume,) = arguments(FINAL, "EXPOSE"), arguments(FINAL, "VOLUME")
    command = json.loads(arguments(FINAL, "CMD")[0])
    assert service["ports"] == [f"127.0.0.1:{port}:{port}"]  # others reach it by a proxy that encrypts
    assert f"gallery:{volume}" in service["volumes"]
    assert volume == DATA
    assert f"/run/secrets/{service['secrets'][0]}" in command
    assert service["read_only"] is True
    assert service["tmpfs"] == ["/tmp"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    given = {name: value.partition(":-")[2].rstrip("}") for name, value in service["build"]["args"].items()}
    assert [f"{name}={value}" for name, value in given.items()] == arguments(BUILD, "ARG")
