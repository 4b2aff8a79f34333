"""Envelope bytes: msgpack with a version that is looked at first, a size limit and typed decoding."""

import time
import uuid
from collections.abc import Callable
from typing import NamedTuple

import msgspec
from msgspec import structs

from fedwright.protocol.crypto.signing import SIGNATURE_BYTES
from fedwright.protocol.errors import BadMessage
from fedwright.protocol.messages import (
    VERSION,
    Ack,
    Answer,
    Ask,
    Chunk,
    Dismiss,
    Envelope,
    Message,
    SumAnswer,
    SumAsk,
    Task,
    Update,
)

# A chunk of the largest allowed size plus its envelope fits; nothing legitimate is larger.
MAX_MESSAGE_BYTES = 8 * 1024 * 1024

# A byte that msgpack never uses: what follows is a signature and then the envelope that it signs.
SIGNED = b"\xc1"
# Heads of bytes in msgpack: none, and any number with its length in four bytes.
EMPTY_BIN = b"\xc4\0"
BIN32 = b"\xc6"
# What a device does only on the word of its server. Chunks need no signature: a signed task names their hashes.
MUST_BE_SIGNED = (Task, Ack, Dismiss, Ask, SumAsk)
# What an enrolled device says with its own signature, so that nobody on the way need be trusted with it.
SIGNED_BY_DEVICES = (Update, Answer, SumAnswer)

Sign = Callable[[bytes], bytes]
Verify = Callable[[bytes, bytes], bool]
"""Takes a message and its signature."""


class Order(NamedTuple):
    """Where a message stands among all that its sender says: later ones are greater."""

    epoch: int = 0
    sequence: int = 0


UNORDERED = Order()


_UNSIGNED = "run the server with the signing key this device was enrolled with"
_WRONG = "enroll this device with the server that sends to it"


class _Head(msgspec.Struct):
    version: int


_encoder = msgspec.msgpack.Encoder()
_head_decoder = msgspec.msgpack.Decoder(_Head)
_decoder = msgspec.msgpack.Decoder(Envelope)


def new_id() -> str:
    """A random id for a message, a boot, a task or a run."""
    return uuid.uuid4().hex


def encode(
    body: Message,
    *,
    sender: str,
    boot: str,
    message_id: str | None = None,
    sign: Sign | None = None,
    order: Order = UNORDERED,
) -> bytes:
    """Wrap a message for the wire; `sign` signs those that are signed at all."""
    payload = _encoder.encode(
        Envelope(
            version=VERSION,
            id=message_id or new_id(),
            sender=sender,
            boot=boot,
            sent_s=time.time(),
            epoch=order.epoch,
            sequence=order.sequence,
            body=body,
        )
    )
    if sign is not None and isinstance(body, (*MUST_BE_SIGNED, *SIGNED_BY_DEVICES)):
        return SIGNED + sign(payload) + payload
    return payload


def encode_parts(
    body: Message, *, sender: str, boot: str, sign: Sign | None = None, order: Order = UNORDERED
) -> tuple[bytes, bytes | memoryview]:
    """A message as `encode` makes it, in two parts: the data of a chunk come second and are not copied."""
    if not isinstance(body, Chunk):
        return encode(body, sender=sender, boot=boot, sign=sign, order=order), b""
    # The data are the last field of the last field; msgpack writes them after the byte BIN32 and their length.
    empty = structs.replace(body, data=memoryview(b""))
    head = encode(empty, sender=sender, boot=boot, order=order).removesuffix(EMPTY_BIN)
    return head + BIN32 + len(body.data).to_bytes(4, "big"), body.data


def decode(
    payload: bytes | memoryview, *, verify: Verify | None = None, signed: tuple[type, ...] = MUST_BE_SIGNED
) -> Envelope:
    """Unwrap a message; BadMessage says which field is wrong, or (with `verify`) that a signature is.

    signed: the kinds that `verify` is asked about.
    """
    if len(payload) > MAX_MESSAGE_BYTES:
        raise BadMessage(f"message of {len(payload)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
    signature = b""
    if payload[:1] == SIGNED:
        signature = bytes(payload[1 : 1 + SIGNATURE_BYTES])
        payload = payload[1 + SIGNATURE_BYTES :]
    envelope = _decode_envelope(payload)
    if verify is not None and isinstance(envelope.body, signed):
        kind, by_device = type(envelope.body).__name__.lower(), isinstance(envelope.body, SIGNED_BY_DEVICES)
        if not signature:
            remedy = "update the agent on the device" if by_device else _UNSIGNED
            raise BadMessage(f"{kind} is not signed; {remedy}")
        if not verify(bytes(payload), signature):
            remedy = "somebody else made it, or the device must be enrolled anew" if by_device else _WRONG
            raise BadMessage(f"{kind} has a wrong signature; {remedy}")
    return envelope


def _decode_envelope(payload: bytes | memoryview) -> Envelope:
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
