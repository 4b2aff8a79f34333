"""Bytes that are nearly what a decoder expects: valid ones with bits turned, pieces moved and lengths that lie."""

import random
from collections.abc import Callable, Sequence

# What counts and lengths like to be mistaken about.
NUMBERS = (0, 1, 127, 128, 255, 256, 32767, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
# Heads of msgpack with lengths that nothing follows, numbers and strings of JSON, tags of protobuf.
WORDS = (
    b"\xc1",
    b"\xdf\xff\xff\xff\xff",
    b"\xdd\x7f\xff\xff\xff",
    b"\xdb\x00\xff\xff\xff",
    b"\xc6\x7f\xff\xff\xff",
    b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",
    b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xc0",
    b"null",
    b"1e999",
    b"-1",
    b"99999999999999999999",
    b"NaN",
    b'""',
    b"\\ud800",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80",
    b"../../x",
    b"\n",
    b"\x00",
)
NESTS = (b"\x91", b"\x81\xa1a", b"[", b'{"a":', b"[[", b"a.", b"\x3a\x7f", b"\x0a\x7f")
# Deeper than any reader follows, and no deeper than a message is long.
DEPTHS = (3, 40, 600, 5000)
MOST_BYTES = 64 * 1024

Mutation = Callable[[bytearray, random.Random, Sequence[bytes]], None]


def mutated(seeds: Sequence[bytes], rng: random.Random) -> bytes:
    """One seed with up to four changes."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.randint(1, 4)):
        rng.choice(MUTATIONS)(data, rng, seeds)
        del data[MOST_BYTES:]
    return bytes(data)


def _flip(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    del seeds
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    del seeds
    if data:
        data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _cut(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    del seeds
    del data[rng.randint(0, len(data)) :]


def _drop(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    del seeds
    start = rng.randint(0, len(data))
    del data[start : start + rng.randint(1, 16)]


def _repeat(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    del seeds
    start = rng.randint(0, len(data))
    data[start:start] = data[start : start + rng.randint(1, 64)]


def _insert(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    del seeds
    start = rng.randint(0, len(data))
    data[start:start] = rng.choice((rng.choice(WORDS), rng.randbytes(rng.randint(1, 16))))


def _overwrite(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    del seeds
    word = rng.choice(WORDS)
    start = rng.randint(0, len(data))
    data[start : start + len(word)] = word


def _number(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    del seeds
    size = rng.choice((1, 2, 4, 8))
    value = rng.choice(NUMBERS) & (256**size - 1)
    start = rng.randint(0, len(data))
    data[start : start + size] = value.to_bytes(size, rng.choice(("big", "little")))


def _digits(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    """Another number in a text."""
    del seeds
    places = [place for place in range(min(len(data), 4096)) if 48 <= data[place] < 58]
    if places:
        place = rng.choice(places)
        data[place : place + 1] = str(rng.choice((-1, rng.choice(NUMBERS)))).encode()


def _splice(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    """The end of another seed behind the beginning of this one."""
    other = rng.choice(seeds)
    data[rng.randint(0, len(data)) :] = other[rng.randint(0, len(other)) :]


def _nest(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    del seeds
    start = rng.randint(0, len(data))
    data[start:start] = rng.choice(NESTS) * rng.choice(DEPTHS)


# Small changes get further into a decoder than large ones.
MUTATIONS: tuple[Mutation, ...] = (
    *(_flip, _flip, _flip, _set, _set, _number, _number, _digits),
    *(_cut, _drop, _repeat, _insert, _overwrite, _splice, _nest),
)
