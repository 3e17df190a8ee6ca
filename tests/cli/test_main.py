"""The command as a whole: its help and its version."""

from __future__ import annotations

import contextlib
import re

import pytest

from vicinal.cli.main import VERBS, main


@pytest.mark.parametrize("verb", [verb.__name__ for verb in VERBS])
def test_help_explains_every_verb_and_flag(verb: str, capsys) -> None:
    with contextlib.suppress(SystemExit):
        main([verb, "--help"])
    text = capsys.readouterr().out
    assert f"usage: vicinal {verb}" in text
    assert len(text.splitlines()) > 8


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
    monkeypatch.setattr("vicinal.cli.evaluate.check_source", interrupted)
    assert main(["evaluate", "photos"]) == 130
    assert capsys.readouterr().err == ("" if rank else "vicinal evaluate: error: interrupted\n")
