"""What an edge says of its devices when one of them lies: as much as the middle one bears out."""

from typing import Any

import numpy as np
import pytest
from msgspec import structs

from fedwright.protocol import codec
from fedwright.protocol.messages import Part, Report, Stats, Task, Update
from fedwright.server_runtime.edge.pooled_update import PooledReply
from fedwright.server_runtime.edge.shard import believed_members
from fedwright.server_runtime.edge.shard_report import report_of
from fedwright.server_runtime.rounds.pooled_tasks import total
from helpers.any_fleet import usual_summary
from helpers.fleet import report

USUAL = usual_summary((1, 8, 8), 4)
HONEST = report(data=USUAL)
STATS = Stats(samples=40, steps=4, train_s=1.0, cpu_s=1.0, peak_rss_bytes=1, holdout=8)


def shard(honest: Report = HONEST, said: Any = None, **claims: Any) -> Report:
    """The report of five devices, one of which lies, as the host reads it."""
    liar = structs.replace(honest, data=structs.replace(honest.data, **(said or {})), **claims)
    found = report_of(honest.board, {**dict.fromkeys("abcd", honest), "liar": liar})
    heard: Any = codec.decode(codec.encode(found, sender="edge", boot="b")).body
    assert isinstance(heard, Report)
    return heard


def test_the_honest_report_is_the_sum() -> None:
    found = shard()

    assert (found.data.samples, found.data.holdout, found.stands_for) == (5 * USUAL.samples, 5 * USUAL.holdout, 5)
    assert (found.data.classes, found.free_bytes) == (USUAL.classes, HONEST.free_bytes)


CLAIMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "samples": ({"samples": 2**53, "holdout": 2**53, "class_counts": [2**53] * 4}, {}),
    "no memory": ({}, {"free_bytes": 1}),
    "no time": ({}, {"round_s": 1e-9}),
    "no traffic": ({}, {"round_bytes": 1}),
    "classes": ({"classes": 1_000_000}, {}),
    "names": ({"class_names": ["a", "b", "c", "d"]}, {}),
    "a descriptor without end": ({"descriptor": [3e38] * 4}, {}),
    "a descriptor of nothing": ({"descriptor": [float("nan")] * 4}, {}),
    "a descriptor of another length": ({"descriptor": [1.0] * 9}, {}),
    "spread": ({"pixel_std": 1e308}, {}),
    "words": ({"score_counts": [2**53] * 4}, {}),
}


@pytest.mark.parametrize(("said", "claims"), CLAIMS.values(), ids=CLAIMS)
def test_one_device_does_not_decide_what_an_edge_says(said: dict[str, Any], claims: dict[str, Any]) -> None:
    rich = structs.replace(USUAL, descriptor=[1.0, 2.0, 3.0, 4.0], pixel_std=0.5, score_counts=[5, 6, 7, 8])
    honest = structs.replace(HONEST, data=rich, round_s=60.0, round_bytes=10**8)

    found = shard(honest, said, **claims)

    assert found.free_bytes == HONEST.free_bytes
    assert (found.round_s, found.round_bytes) == (60.0, 10**8)
    assert found.data.samples <= 14 * rich.samples
    assert found.data.holdout <= 104 * rich.samples
    assert (found.data.classes, found.data.class_names) == (rich.classes, None)
    assert found.data.descriptor == pytest.approx([1.0, 2.0, 3.0, 4.0])
    assert found.data.pixel_std == pytest.approx(0.5)
    assert max(found.data.score_counts or [0]) <= 14 * 26


def test_names_that_the_middle_device_does_not_bear_out_are_none_of_the_shard() -> None:
    named = structs.replace(
        HONEST, data=structs.replace(USUAL, classes=2, class_names=["cat", "dog"], class_counts=[3, 4])
    )
    many = [f"class-{number}" for number in range(9000)]
    liar = structs.replace(
        named, data=structs.replace(named.data, class_names=many, classes=9000, class_counts=[1] * 9000)
    )

    found = report_of(HONEST.board, {**dict.fromkeys("abcd", named), "liar": liar}).data

    assert (found.class_names, found.classes) == (["cat", "dog"], 2)


def reply(device: str, task: Task, samples: int) -> PooledReply:
    return PooledReply(device, task, Update(task.task, 1, structs.replace(STATS, samples=samples)))


def test_a_device_counts_for_no_more_than_it_reported() -> None:
    task: Any = structs.replace(Update("t", 1, STATS))
    members = [reply("a", task, 40), reply("liar", task, 2**53), reply("gone", task, 2**53)]
    reports = dict.fromkeys(("a", "b", "liar"), HONEST)

    found = [member.update.stats.samples for member in believed_members(members, reports)]

    assert found == [min(40, USUAL.samples), USUAL.samples, 10 * USUAL.samples]


def test_figures_of_a_pool_can_be_read_whatever_its_devices_claim() -> None:
    huge = {name: 2**53 for name in ("samples", "steps", "holdout", "bytes_up", "bytes_down", "correct_before")}
    whole = total([Part(name, structs.replace(STATS, **huge)) for name in "ab"])

    payload = codec.encode(Update("t", 1, whole), sender="edge", boot="b")
    heard: Any = codec.decode(payload).body
    assert heard.stats.samples == heard.stats.bytes_up == 2**53
    assert np.isfinite(heard.stats.cpu_s)
