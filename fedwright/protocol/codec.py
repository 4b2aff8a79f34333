"""Envelope bytes: msgpack with a version that is looked at first, a size limit and typed decoding."""

import time
import uuid

import msgspec

from fedwright.protocol.errors import BadMessage
from fedwright.protocol.messages import VERSION, Envelope, Message

# A chunk of the largest allowed size plus its envelope fits; nothing legitimate is larger.
MAX_MESSAGE_BYTES = 8 * 1024 * 1024


class _Head(msgspec.Struct):
    version: int


_encoder = msgspec.msgpack.Encoder()
_head_decoder = msgspec.msgpack.Decoder(_Head)
_decoder = msgspec.msgpack.Decoder(Envelope)


def new_id() -> str:
    """A random id for a message, a boot, a task or a run."""
    return uuid.uuid4().hex


def encode(body: Message, *, sender: str, boot: str, message_id: str | None = None) -> bytes:
    """Wrap a message for the wire."""
    return _encoder.encode(
        Envelope(
            version=VERSION,
            id=message_id or new_id(),
            sender=sender,
            boot=boot,
            sent_s=time.time(),
            body=body,
        )
    )


def decode(payload: bytes) -> Envelope:
    """Unwrap a message; BadMessage says which field is wrong."""
    if len(payload) > MAX_MESSAGE_BYTES:
        raise BadMessage(f"message of {len(payload)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
    try:
        version = _head_decoder.decode(payload).version
        if version != VERSION:
            raise BadMessage(
                f"message has version {version} but this side speaks {VERSION}; "
                f"install the same fedwright release on both sides"
            )
        return _decoder.decode(payload)
    except msgspec.MsgspecError as err:
        raise BadMessage(f"message cannot be decoded: {err}") from err
    except RecursionError as err:
        raise BadMessage("message cannot be decoded: it is nested too deeply") from err
    except UnicodeDecodeError as err:
        raise BadMessage("message cannot be decoded: a text field is not UTF-8") from err
