"""What devices say in free words, fit for a log, a terminal and a page: one line, without characters that they obey."""

from typing import TypeVar

from msgspec import Struct, structs

from fedwright.protocol.messages import Message, Refusal, Report

Body = TypeVar("Body", bound=Struct)


def printable(text: str) -> str:
    """The text with a question mark for each character that is not shown as it is: line breaks, escapes, the like."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "?" for character in text)


def plain_words(message: Message) -> Message:
    """The message with printable words; names of classes stay, as devices know them by their exact letters."""
    if isinstance(message, Refusal):
        return _plain(message, ("detail", "rule"))
    if isinstance(message, Report):
        board = _plain(message.board, ("model", "machine", "runtime", "profile"))
        message = _plain(message, ("agent", "model"))
        return message if board is message.board else structs.replace(message, board=board)
    return message


def _plain(body: Body, fields: tuple[str, ...]) -> Body:
    changed = {name: printable(text) for name in fields if not (text := getattr(body, name)).isprintable()}
    return structs.replace(body, **changed) if changed else body
