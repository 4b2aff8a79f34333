"""Tasks are sent again until each device has said that it has them."""

from fedwright.server_runtime.transport.outgoing_tasks import RESEND_S, OutgoingTasks


class Trial:
    """Tasks on their way, with a clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.sent: list[str] = []
        self.tasks = OutgoingTasks(lambda device, what: self.sent.append(device), clock=lambda: self.now_s)

    def after(self, seconds: float) -> list[str]:
        """Who was sent something again, so much later."""
        self.sent.clear()
        self.now_s += seconds
        self.tasks.tend()
        return list(self.sent)


def test_only_those_who_said_nothing_are_sent_it_again() -> None:
    trial = Trial()
    trial.tasks.add("t", ["a", "b", "c"], b"task")
    trial.tasks.acknowledged("t", "b")

    assert trial.after(RESEND_S / 2) == []
    assert trial.after(RESEND_S) == ["a", "c"]
    assert trial.tasks.is_waiting("t", "a")
    assert not trial.tasks.is_waiting("t", "b")


def test_an_edge_acknowledges_for_the_one_device_that_a_task_is_for() -> None:
    trial = Trial()
    trial.tasks.add("t", ["behind"], b"task")
    trial.tasks.acknowledged("t", "edge")

    assert trial.after(2 * RESEND_S) == []


def test_nobody_else_acknowledges_a_task_of_several() -> None:
    trial = Trial()
    trial.tasks.add("t", ["a", "b"], b"task")
    trial.tasks.acknowledged("t", "stranger")

    assert trial.after(2 * RESEND_S) == ["a", "b"]


def test_a_task_that_is_withdrawn_goes_nowhere() -> None:
    trial = Trial()
    trial.tasks.add("t", ["a", "b"], b"task")
    trial.tasks.withdraw("t")

    assert trial.after(2 * RESEND_S) == []
