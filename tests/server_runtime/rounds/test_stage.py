"""Figures of a stage, made of what its devices tell."""

from typing import Any

from fedwright.protocol.messages import Stats, Update
from fedwright.server_runtime.rounds.stage import fleet_metrics
from fedwright.server_runtime.rounds.store.base import Reply

STATS: dict[str, Any] = {"samples": 8, "steps": 1, "train_s": 0.1, "cpu_s": 0.1, "peak_rss_bytes": 1, "holdout": 4}


def reply(task: str, **figures: Any) -> Reply:
    stats = Stats(**(STATS | figures))
    return Reply(task, "update", Update(task, 1, stats))


def test_measures_of_a_goal_are_means_over_held_out_samples() -> None:
    replies = {"a": reply("a", measures_after={"mae": 1.0}), "b": reply("b", measures_after={"mae": 4.0}, holdout=8)}

    # Four samples of 1 and eight of 4 make 36 over twelve.
    assert fleet_metrics(replies) == {"updates": 2.0, "mae_after": 3.0}


def test_a_device_names_no_figure_of_the_servers_own() -> None:
    lies = {"loss": 0.0, "accuracy": 9.0, "spoilt": 1.0}
    replies = {"a": reply("a", correct_before=2, loss_first=3.0, measures_before=lies)}

    assert fleet_metrics(replies) == {"updates": 1.0, "accuracy_before": 0.5, "loss_before": 3.0}
