"""An executor on a Ray cluster: workers that keep what they have begun with, and calls that outlive any of them.

What is submitted may be done twice, where a worker is lost or slow, and counts once: it must change nothing but what it
returns. Arguments and results travel by Ray's object store, from worker to worker, and only as pickles of ours: a
cluster is as trusted as the server itself.
"""

import contextlib
import queue
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import fedwright
from fedwright.protocol.errors import EngineError
from fedwright.server_runtime.engine.places import Place, worker_places

# A second call waits at each worker, so that none is idle while an answer travels.
AHEAD = 2
# A call is lost for good when so many workers died at it.
MOST_DEATHS = 3
# A call that takes so many times as long as others, and this long, is begun anew where nobody has anything to do.
SLOW_TIMES, SLOW_S = 4.0, 2.0
REMEMBERED = 200
START_S = 120.0
# Objects that a worker keeps for its next calls.
KEPT_HELD = 4

Begin = tuple[Callable[..., None], tuple[Any, ...]]


@dataclass(frozen=True)
class Held:
    """Stands for an object in Ray's store: a worker fetches it once, from whoever has it."""

    ref: Any


class Seat:
    """What a worker runs: it begins once, and then does calls one after the other."""

    def __init__(self, begin: Begin | None) -> None:
        self._value = lru_cache(maxsize=KEPT_HELD)(ray.get)
        if begin is not None:
            begin[0](*begin[1])

    def version(self) -> str:
        """Of Fedwright, as installed there."""
        return fedwright.__version__

    def call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Do one call, with what its arguments stand for."""
        return function(*(self._value(arg.ref) if isinstance(arg, Held) else arg for arg in args))


@dataclass(eq=False)
class _Call:
    """Something to be done, and where it is being done."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    future: "Future[Any]"
    began: float = 0.0
    copies: int = 0
    deaths: int = 0


@dataclass(eq=False)
class _Worker:
    """One seat in the cluster; ready when it has answered since it was last lost."""

    actor: Any
    ready: bool = False
    asked: bool = False
    calls: list[_Call] = field(default_factory=list)


class RayExecutor(Executor):
    """Calls on the workers of a cluster that this process is connected to.

    workers: how many; None takes all CPUs. begin: a function and its arguments, called once in each new worker. twice:
    what takes long is begun once more by a worker that is idle.
    """

    def __init__(self, workers: int | None = None, *, begin: Begin | None = None, twice: bool = True) -> None:
        places = worker_places(ray.nodes(), workers)  # type: ignore[no-untyped-call]
        self.workers = len(places)
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting: deque[_Call] = deque()
        self._running: dict[_Call, None] = {}
        self._took: deque[float] = deque(maxlen=REMEMBERED)
        self._refused, self._twice = "", twice
        # Kept, because a worker that is started again asks for it again.
        self._given = ray.put(begin)
        self._seats = [_Worker(_seat_at(place).remote(self._given)) for place in places]
        for worker in self._seats:
            self._await(worker)
        self._born = time.monotonic()
        self._thread = threading.Thread(target=self._dispatch, name="ray-executor", daemon=True)
        self._thread.start()

    def hold(self, value: Any) -> Held:
        """Something that many calls read, put once where all workers reach it."""
        return Held(ray.put(value))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Have it done by some worker."""
        call = _Call(partial(fn, **kwargs) if kwargs else fn, args, Future())
        self._events.put(partial(self._waiting.append, call))
        return call.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End; what was submitted is done before, unless it is cancelled."""
        self._events.put(partial(self._end, cancel_futures))
        if wait:
            self._thread.join()

    def _end(self, cancel: bool) -> None:
        if cancel:
            while self._waiting:
                self._waiting.popleft().future.cancel()
        self._events.put(None)

    def _dispatch(self) -> None:
        """The only thread that changes what is known of calls and workers."""
        ending, looked = False, time.monotonic()
        while not ending or self._waiting or self._running:
            with contextlib.suppress(queue.Empty):
                event = self._events.get(timeout=SLOW_S / 4 if self._running or self._waiting else None)
                ending = ending or event is None
                if event is not None:
                    event()
            if time.monotonic() - looked > SLOW_S / 4:
                looked = time.monotonic()
                self._look_for_trouble()
            self._hand_out()
        for worker in self._seats:
            ray.kill(worker.actor)

    def _hand_out(self) -> None:
        """Give what waits to those who have least to do."""
        if not self._seats:
            self._fail(EngineError(f"no worker of the Ray cluster can begin ({self._refused}); install the same there"))
        while self._waiting:
            free = [worker for worker in self._seats if worker.ready and len(worker.calls) < AHEAD]
            if not free:
                return
            call = self._waiting.popleft()
            if call.future.running() or call.future.set_running_or_notify_cancel():
                self._start(call, min(free, key=lambda worker: len(worker.calls)))

    def _start(self, call: _Call, worker: _Worker) -> None:
        call.began, call.copies = time.monotonic(), call.copies + 1
        self._running[call] = None
        worker.calls.append(call)
        answer = worker.actor.call.remote(call.function, call.args).future()
        answer.add_done_callback(lambda done: self._events.put(partial(self._take, call, worker, done)))

    def _take(self, call: _Call, worker: _Worker, done: "Future[Any]") -> None:
        """An answer, an error of what was called, or the loss of a worker."""
        error = done.exception()
        if isinstance(error, RayError) and not isinstance(error, RayTaskError):
            self._lost(call, worker, error)
            return
        worker.calls.remove(call)
        if call not in self._running:
            return
        del self._running[call]
        if error is None:
            self._took.append(time.monotonic() - call.began)
            call.future.set_result(done.result())
        else:
            call.future.set_exception(getattr(error, "cause", None) or error)

    def _lost(self, call: _Call, worker: _Worker, error: BaseException) -> None:
        """A worker died: what it did is done by the next one that is free, unless it is what workers die of."""
        if worker.ready:
            # Others only waited there.
            worker.calls[0].deaths += 1
            worker.ready = False
            self._await(worker)
        worker.calls.remove(call)
        call.copies -= 1
        if call not in self._running or call.copies:
            return
        del self._running[call]
        if call.deaths < MOST_DEATHS:
            self._waiting.appendleft(call)
            return
        text = f"{MOST_DEATHS} workers died at the same call, as they do where memory runs out ({_why(error)})"
        call.future.set_exception(EngineError(f"{text}; give their machines more, or lower engine.workers"))

    def _await(self, worker: _Worker) -> None:
        """Use a worker as soon as it answers; Ray starts one that was lost again."""
        worker.asked = True
        answer = worker.actor.version.remote().future()
        answer.add_done_callback(lambda done: self._events.put(partial(self._welcome, worker, done)))

    def _welcome(self, worker: _Worker, done: "Future[Any]") -> None:
        error, worker.asked = done.exception(), False
        if isinstance(error, ActorUnavailableError):
            return
        if error is None and done.result() == fedwright.__version__:
            worker.ready = True
            return
        self._seats.remove(worker)
        self._refused = (
            f"fedwright {done.result()} there, {fedwright.__version__} here" if error is None else _why(error)
        )

    def _look_for_trouble(self) -> None:
        """Ask again who was lost; see whether nobody has a place, or somebody is slow while others are idle."""
        for worker in self._seats:
            if not worker.ready and not worker.asked:
                self._await(worker)
        if not any(worker.ready for worker in self._seats):
            if time.monotonic() - self._born > START_S:
                self._fail(
                    EngineError("no worker of the Ray cluster has begun; look at `ray status` for what it lacks")
                )
            return
        limit = max(SLOW_S, SLOW_TIMES * statistics.median(self._took)) if self._took else float("inf")
        idle = [worker for worker in self._seats if self._twice and worker.ready and not worker.calls]
        slow = [call for call in self._running if call.copies == 1 and time.monotonic() - call.began > limit]
        for worker, call in zip(idle, slow, strict=False):
            self._start(call, worker)

    def _fail(self, error: EngineError) -> None:
        for call in [*self._waiting, *self._running]:
            if not call.future.done():
                call.future.set_exception(error)
        self._waiting.clear()
        self._running.clear()


def _seat_at(place: Place) -> Any:
    """Seats of a place; where its machine is lost they begin anew on any other that has what they need."""
    at = NodeAffinitySchedulingStrategy(place.node, soft=True)
    seat = ray.remote(Seat)
    return seat.options(num_cpus=1, num_gpus=place.gpus, max_restarts=-1, scheduling_strategy=at)


def _why(error: BaseException) -> str:
    cause = error if not isinstance(error, ActorDiedError) else (error.__cause__ or error)
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__
