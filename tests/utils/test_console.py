"""What is printed cannot control a terminal, and can be printed in any encoding."""

import io
import sys
import time

import pytest

from vicinal.cli.flags import fail, print_result
from vicinal.utils.console import log, printable, shorten, track

HOSTILE = "a\x1b]0;title\x07\x9b2J\u202egpj\u2066\u200f\u061c\x00\x7f\r\ud800\u2028z"
SAFE = "a\\x1b]0;title\\x07\\x9b2J\\u202egpj\\u2066\\u200f\\u061c\\x00\\x7f\\r\\ud800\\u2028z"


def test_controlling_characters_are_escaped_and_no_others() -> None:
    assert printable(HOSTILE) == SAFE
    ordinary = "Größe 猫 عربى 👩\u200d👧 é\n\tend"
    assert printable(ordinary) == ordinary


def test_messages_and_errors_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    log(HOSTILE)
    assert fail("vicinal", HOSTILE, 2) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == SAFE
    assert second == "vicinal: error: " + SAFE.replace("\\r", " ").replace("\\u2028", " ")


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_results(monkeypatch: pytest.MonkeyPatch) -> None:
    for encoding, stream, expected in (
        ("utf-8", Terminal, "猫\\x1b[2J"),
        ("ascii", Terminal, "\\u732b\\x1b[2J"),
        ("utf-8", io.TextIOWrapper, "猫\x1b[2J"),  # a file or another program gets the data as they are
        ("ascii", io.TextIOWrapper, "\\u732b\x1b[2J"),
    ):
        buffer = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", stream(buffer, encoding=encoding, write_through=True))
        print_result("猫\x1b[2J")
        written = buffer.getvalue()
        monkeypatch.undo()
        assert written.decode(encoding) == expected + "\n"


def test_without_a_terminal_a_long_job_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    seconds = iter([0.0, 0.0, 50.0, 60.0, 90.0, 3725.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(seconds))
    assert list(track("abcde", "letters", total=1200)) == [*"abcde"]
    assert capsys.readouterr().err.splitlines() == [
        "letters: 2 of 1,200 in 1 min 0 s",
        "letters: 4 of 1,200 in 1 h 2 min",
    ]
    assert list(track("abc", "letters", show=False)) == [*"abc"]


@pytest.mark.parametrize("text", ["Garant-Ecological-Medium-Fat-Milk", "a" * 50, "a b" * 20, "-" * 30, "-a" + "b" * 30])
@pytest.mark.parametrize("length", [4, 9, 18, 24, 36])
def test_no_label_is_longer_than_it_may_be(text: str, length: int) -> None:
    short = shorten(text, length)
    assert len(short) <= length
    start, _, end = short.partition("…")
    assert text.startswith(start)
    assert text.endswith(end)
    assert bool(end) == (len(text) > length)
