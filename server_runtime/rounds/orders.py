"""What people order of a run while it goes on: written into its folder by anybody who may, obeyed by its server.

An order is one file, durable before whoever gave it hears that it was taken, and known by an id: given twice it counts
once. Each says how things shall be, never by how much they change. The server looks at every tick; what it has taken is
in the audit log first, then in force (`orders.json`), so that a server which is killed in between takes it again.
"""

import re
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct, structs

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.files import replace_file
from fedwright.protocol.support.unreadable import UNREADABLE
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.audit import AUDIT, read_audit

GIVEN = "orders"
IN_FORCE = "orders.json"
LOOK_S = 0.5
# Ids that are remembered, and orders that may wait.
MOST_KNOWN, MOST_WAITING = 1000, 100
MOST_ROUNDS = 1_000_000

OrderKind = Literal["pause", "resume", "end", "rounds", "sample-ratio", "take-out", "let-in", "profile"]
OF_DEVICE = ("take-out", "let-in", "profile")
_ID = re.compile(r"[A-Za-z0-9_\-]{8,64}")


class Order(Struct, frozen=True, forbid_unknown_fields=True):
    """One order; `id` is made by whoever gives it."""

    id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_\-]{8,64}\Z")]
    kind: OrderKind
    device: Annotated[str, Meta(max_length=64)] = ""
    rounds: Annotated[int, Meta(ge=0, le=MOST_ROUNDS)] = 0
    sample_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.0
    by: Annotated[str, Meta(max_length=128)] = ""
    given_s: float = 0.0

    def check(self) -> None:
        """Raise ConfigError for an order that says too little or too much."""
        if (self.kind in OF_DEVICE) != bool(self.device):
            raise ConfigError(f"{self.kind} {'needs' if self.kind in OF_DEVICE else 'is not for'} a device")
        if (self.kind == "rounds") != (self.rounds > 0):
            raise ConfigError(f"{self.kind} {'needs a number of' if self.kind == 'rounds' else 'is not about'} rounds")
        if (self.kind == "sample-ratio") != (self.sample_ratio > 0):
            needs = "needs a ratio above 0 and up to 1" if self.kind == "sample-ratio" else "is not about a ratio"
            raise ConfigError(f"{self.kind} {needs}")


def make_order(data: Mapping[str, object]) -> Order:
    """An order from plain data; ConfigError in one sentence for what is none."""
    try:
        order = msgspec.convert(data, Order)
    except msgspec.ValidationError as err:
        raise ConfigError(f"this is no order: {err}; see `fedwright server ctl --help`") from err
    order.check()
    return order


class InForce(Struct, frozen=True):
    """What orders have made of a run; known: ids of those that were taken, oldest first."""

    paused: bool = False
    taken_out: list[str] = []
    sample_ratio: float | None = None
    rounds: int | None = None
    known: list[str] = []

    def after(self, order: Order, *, begun: int) -> "InForce":
        """As an order makes it; begun: the round that was begun last, which cannot be taken back."""
        known = [*self.known, order.id][-MOST_KNOWN:]
        changes: dict[str, object] = {}
        if order.kind in ("pause", "resume"):
            changes["paused"] = order.kind == "pause"
        elif order.kind in ("rounds", "end"):
            changes["rounds"] = max(1, begun, order.rounds)
        elif order.kind == "sample-ratio":
            changes["sample_ratio"] = order.sample_ratio
        elif order.kind in ("take-out", "let-in"):
            out = set(self.taken_out) - {order.device}
            changes["taken_out"] = sorted(out | {order.device} if order.kind == "take-out" else out)
        # A run that shall end need not stay paused for ever.
        if order.kind == "end":
            changes["paused"] = False
        return structs.replace(self, known=known, **changes)

    def shown(self) -> dict[str, object]:
        """What the audit log keeps of it."""
        return {"paused": self.paused, "taken_out": self.taken_out, "sample_ratio": self.sample_ratio} | (
            {} if self.rounds is None else {"rounds": self.rounds}
        )


def read_in_force(folder: Path) -> InForce:
    """What is in force for the run of a folder; nothing when nothing was ever ordered."""
    try:
        return msgspec.json.decode((folder / IN_FORCE).read_bytes(), type=InForce)
    except FileNotFoundError:
        return InForce()
    except UNREADABLE as err:
        raise ConfigError(f"{folder / IN_FORCE} is damaged ({err}); remove it and give the orders again") from err


def give_order(folder: Path, order: Order) -> bool:
    """Make an order durable for the server of a run; False when it was given before."""
    order.check()
    given = folder / GIVEN
    if order.id in read_in_force(folder).known or (given / f"{order.id}.json").exists():
        return False
    given.mkdir(exist_ok=True)
    if sum(1 for _ in given.glob("*.json")) >= MOST_WAITING:
        raise ConfigError(f"{MOST_WAITING} orders wait for the server of this run already; start it first")
    replace_file(given / f"{order.id}.json", msgspec.json.encode(structs.replace(order, given_s=time.time())))
    return True


def waiting_orders(folder: Path) -> list[Order]:
    """Orders that no server has taken yet, oldest first; what is none is left alone."""
    found = []
    for path in (folder / GIVEN).glob("*.json"):
        try:
            order = msgspec.json.decode(path.read_bytes(), type=Order)
            order.check()
        except (FileNotFoundError, ConfigError, *UNREADABLE):
            continue
        if path.stem == order.id and _ID.fullmatch(order.id):
            found.append(order)
    return sorted(found, key=lambda order: (order.given_s, order.id))


def ordered_rounds(folder: Path) -> int | None:
    """The rounds that a waiting order gives a run, for a server that is about to start."""
    wanted = [order.rounds for order in waiting_orders(folder) if order.kind == "rounds"]
    return wanted[-1] if wanted else None


class OrderBook:
    """The server's side of the orders of a run; without a folder nobody orders anything.

    arrive: brings orders into the folder that were given elsewhere, but for those that are known.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        arrive: Callable[[Collection[str]], None] = lambda known: None,
    ) -> None:
        self._folder, self._arrive = folder, arrive
        self._clock = clock
        self._looked_s = -LOOK_S
        self.force = InForce() if folder is None else read_in_force(folder)
        self._told: set[str] | None = None

    def take(self, observe: events.Observer, apply: Callable[[Order, InForce], None], begun: Callable[[], int]) -> None:
        """Obey what was ordered since the last look.

        apply: does what an order asks, beyond what is in force; it must not mind to be called twice.
        """
        if self._folder is None or self._clock() - self._looked_s < LOOK_S:
            return
        self._looked_s = self._clock()
        self._arrive(self.force.known)
        for order in waiting_orders(self._folder):
            if order.id not in self.force.known:
                force = self.force.after(order, begun=begun())
                self._tell(order, force, observe)
                apply(order, force)
                self.force = force
                replace_file(self._folder / IN_FORCE, msgspec.json.encode(force))
            (self._folder / GIVEN / f"{order.id}.json").unlink(missing_ok=True)

    def _tell(self, order: Order, force: InForce, observe: events.Observer) -> None:
        """Put an order into the log, once: a server that was killed right after had done so already."""
        if self._told is None and self._folder is not None:
            there = (self._folder / AUDIT).exists()
            lines = read_audit(self._folder) if there else iter(())
            self._told = {str(line.get("order")) for line in lines if line.get("what") == "ordered"}
        if order.id not in (self._told or ()):
            observe(events.Ordered(order.id, order.kind, order.device, order.by, force.shown()))
