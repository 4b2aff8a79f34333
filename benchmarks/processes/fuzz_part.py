"""One part of `fedwright bench fuzz`: some thousand examples for one decoder, in a process with little memory.

Run as `python -m fedwright.benchmarks.processes.fuzz_part DECODER SEED EXAMPLES FOLDER WORK` where FOLDER holds the
valid examples and WORK is empty; the last line it prints is what it found, as JSON.
"""

import logging
import random
import resource
import signal
import sys
import time
import types
from pathlib import Path

import msgspec

from fedwright.benchmarks.harness.decoders import ARTIFACT, DECODERS, Read
from fedwright.benchmarks.harness.mutations import mutated
from fedwright.device_runtime import facts

# What an example of at most 64 KiB may make a decoder take.
ROOM_BYTES = 256 * 1024 * 1024
HANG_S = 20
MOST_FAULTS = 5
SHOWN_BYTES = 400


class Hung(Exception):
    """An example took too long."""


class PartFound(msgspec.Struct):
    """What came of the examples; slowest_s: processor time of the slowest of them."""

    examples: int = 0
    accepted: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    faults: int = 0
    shown: list[str] = []


def main(arguments: list[str]) -> None:
    """Try the examples and print what came of them."""
    name, seed, count = arguments[0], int(arguments[1]), int(arguments[2])
    folder, work = Path(arguments[3]), Path(arguments[4])
    # Warnings about single examples would be gigabytes.
    logging.disable(logging.CRITICAL)
    decoder = DECODERS[name]
    valid = msgspec.msgpack.decode((folder / f"{name}.valid").read_bytes(), type=list[bytes])
    (work / ARTIFACT).write_bytes((folder / ARTIFACT).read_bytes())
    read = decoder.reader(work)
    warm = PartFound()
    for example in valid:
        attempt(read, example, decoder.errors, warm)
    resource.setrlimit(resource.RLIMIT_DATA, (facts.data_bytes() + ROOM_BYTES,) * 2)
    signal.signal(signal.SIGPROF, _stop)
    found, rng = PartFound(), random.Random(f"{name} {seed}")
    began_s = time.monotonic()
    for _ in range(count):
        attempt(read, mutated(valid, rng), decoder.errors, found)
    found.seconds = time.monotonic() - began_s
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")


def attempt(read: Read, example: bytes, errors: tuple[type[Exception], ...], found: PartFound) -> None:
    """Try one example and note what came of it."""
    # Processor time: on a busy machine any example may wait for its turn.
    signal.setitimer(signal.ITIMER_PROF, HANG_S)
    began_s = time.thread_time()
    try:
        read(example)
        found.accepted += 1
    except errors:
        pass
    except Exception as err:  # noqa: BLE001  (any other error is what is looked for)
        found.faults += 1
        if len(found.shown) < MOST_FAULTS:
            found.shown.append(f"{type(err).__name__}: {err} from {example[:SHOWN_BYTES].hex()} ({len(example)} bytes)")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    found.examples += 1
    found.slowest_s = max(found.slowest_s, time.thread_time() - began_s)


def _stop(number: int, frame: types.FrameType | None) -> None:
    raise Hung(f"more than {HANG_S} s")


if __name__ == "__main__":
    main(sys.argv[1:])
