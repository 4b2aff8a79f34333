"""Devices spread over edges alike, and only those of a lost edge go elsewhere."""

from collections import Counter

from fedwright.protocol.rendezvous import preferred, shard_names

DEVICES = [f"d{number}" for number in range(4000)]


def test_devices_spread_alike() -> None:
    counts = Counter(preferred(shard_names("site", 4), device)[0] for device in DEVICES)

    # 1,000 each; five standard deviations of a fair draw are 137.
    assert all(abs(counts[name] - 1000) < 137 for name in ("site-0", "site-1", "site-2", "site-3"))


def test_a_lost_edge_moves_only_its_own_devices_and_to_all_others() -> None:
    names = shard_names("site", 4)
    before = {device: preferred(names, device) for device in DEVICES}
    after = {device: preferred(names[1:], device)[0] for device in DEVICES}
    moved = [device for device in DEVICES if before[device][0] != after[device]]

    assert {before[device][0] for device in moved} == {"site-0"}
    # Where such a device goes is the second of its own order, which it knew all along.
    assert all(after[device] == before[device][1] for device in moved)
    assert all(count > 200 for count in Counter(after[device] for device in moved).values())
