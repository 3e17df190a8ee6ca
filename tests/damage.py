"""Files with a flipped bit, and what is said about them."""

from collections.abc import Callable

from vicinal.utils.errors import InputError


def flipped(content: bytes, place: int, bit: int = 0) -> bytes:
    return content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]


def refusal(call: Callable[[], object]) -> str | None:
    """The message of the InputError that a call raises, in one line; None if it succeeds."""
    try:
        call()
    except InputError as error:
        message = str(error)
    else:
        return None
    assert "\n" not in message
    return message
