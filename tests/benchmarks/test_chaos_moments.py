"""A process of `bench chaos` waits where it is asked to, and nowhere else."""

import threading
from pathlib import Path

from fedwright.benchmarks.processes.chaos_moments import START, Moments, Watched


class Work:
    """Something that moments are put into."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def do(self, what: str) -> str:
        self.done.append(what)
        return what


def test_a_process_stands_still_at_the_moment_until_it_is_released(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "a")
    watched.forget()
    moments = Moments(tmp_path, "a")

    class Marked(Work):
        pass

    moments.before(Marked, "do", "doing", when=lambda work: "first" in work.done)
    work = Marked()
    assert work.do("first") == "first"
    assert watched.last() == START

    thread = threading.Thread(target=work.do, args=("second",))
    assert not watched.wait("elsewhere", lambda s: False, wait_s=60.0)
    thread_started = threading.Event()

    def goes_on(_wait_s: float) -> bool:
        if not thread_started.is_set():
            thread_started.set()
            thread.start()
        return True

    assert watched.wait("doing", goes_on, wait_s=60.0)
    assert (watched.last(), work.done) == ("doing", ["first"])
    watched.release()
    thread.join()
    assert work.done == ["first", "second"]


def test_a_moment_after_a_call_comes_when_its_work_is_done(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "a")
    watched.forget()

    class Marked(Work):
        pass

    Moments(tmp_path, "a").after(Marked, "do", "done")
    assert Marked().do("it") == "it"
    assert watched.last() == "done"
    watched.forget()
    assert watched.last() == START
