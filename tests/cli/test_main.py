"""The command as a whole: its help and its version."""

import contextlib
import re

import pytest

from tests.conftest import refused
from vicinal.cli.main import VERBS, main, parse


@pytest.mark.parametrize("verb", ["index build", "index add", "index sync", "search", "evaluate", "clean"])
def test_help_shows_the_flags_that_matter_first(verb: str, capsys) -> None:
    texts = []
    for flag in ("--help", "--help_all"):
        with contextlib.suppress(SystemExit):
            main([*verb.split(), flag])
        texts.append(capsys.readouterr().out)
    short, full = (set(re.findall(r"^  (--[a-z_.0-9]+)", text, re.M)) for text in texts)
    assert short < full
    assert 8 <= len(short) <= 15
    assert f"`vicinal {verb} --help_all` shows {len(full - short)} more flags." in texts[0]
    assert "--batch_size" in full - short
    assert "embedding of images:" in texts[1]


def test_help_of_the_command_and_version(capsys) -> None:
    from vicinal import __version__

    for words in ([], ["--help"]):
        with contextlib.suppress(SystemExit):
            assert main(words) == 0
        text = capsys.readouterr().out
        assert "vicinal search gallery picture.jpg" in text
        assert [line.split()[0] for line in text.splitlines() if re.match("    [a-z]", line)] == [
            verb.__name__ for verb in VERBS
        ]
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


@pytest.mark.parametrize("rank", [0, 1])
def test_one_of_several_processes_says_that_they_were_interrupted(rank: int, monkeypatch, capsys) -> None:
    def interrupted(source: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vicinal.cli.main.is_main_process", lambda: rank == 0)
    monkeypatch.setattr("vicinal.cli.inputs.check_source", interrupted)
    assert main(["evaluate", "photos"]) == 130
    assert capsys.readouterr().err == ("" if rank else "vicinal evaluate: error: interrupted\n")


def test_flags_leave_what_cannot_be_a_value_to_the_positional_arguments() -> None:
    for words, expected in {
        "evaluate --intervals run": {"intervals": "classes", "sources": ["run"]},
        "evaluate a --intervals queries b": {"intervals": "queries", "sources": ["a", "b"]},
        "evaluate --recall_at 1 5 run other": {"recall_at": [1, 5], "sources": ["run", "other"]},
        "index verify --queries 7 gallery": {"queries": 7, "index": "gallery"},
        "index delete gallery -- -1.jpg --x": {"images": ["-1.jpg", "--x"], "index": "gallery"},
        "index delete gallery 3 cup.jpg": {"images": ["3", "cup.jpg"], "index": "gallery"},
        "search gallery -k 3 -- -1.jpg": {"k": 3, "queries": ["-1.jpg"]},
    }.items():
        arguments, rest = parse(words.split())
        found = {**vars(arguments), "sources": [*vars(arguments).get("sources", []), *rest]}
        assert {name: found[name] for name in expected} == expected, words


def test_no_flag_is_suggested_that_is_unlike_or_deletes(capsys) -> None:
    for words in ("index add g s --model.pretrained", "index build g s --overwrit", "data --x"):
        assert "did you mean" not in refused(capsys, *words.split()), words
