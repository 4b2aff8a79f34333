"""Sums that hide their parts, beside sums made in the open; devices leave at any stage or send what is wrong."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from fedwright.protocol.errors import DeviceError, ProtocolError
from fedwright.protocol.secure import graph, masks, roster, shamir
from fedwright.protocol.secure.opening import Opening
from fedwright.protocol.secure.part import ROOT_BYTES, Part, public_keys
from fedwright.server_runtime.fleet.authority import Authority

LENGTH, REACH = 300, 2.0


def parts_of(count: int, **terms: Any) -> dict[str, Part]:
    """Everybody's part in one sum of so many devices."""
    rng = np.random.default_rng(count)
    roots = {f"d{number:03}": rng.bytes(ROOT_BYTES) for number in range(count)}
    members = [roster.Member(device, "s", *public_keys(root)) for device, root in roots.items()]
    packed = roster.pack_roster(members, **terms)
    return {device: Part(device, root, packed) for device, root in roots.items()}


class Sum:
    """A sum in which some leave before they share, before they send their part, or before they open."""

    def __init__(
        self,
        count: int,
        *,
        unshared: Collection[str] = (),
        unsent: Collection[str] = (),
        silent: Collection[str] = (),
        terms: dict[str, Any] | None = None,
    ) -> None:
        self.parts = parts_of(count, **(terms or {}))
        self.sharers = sorted(self.parts.keys() - set(unshared))
        self.present = sorted(set(self.sharers) - set(unsent))
        self.openers = sorted(set(self.present) - set(silent))
        rng = np.random.default_rng(1)
        self.changes = {d: rng.uniform(-REACH, REACH, LENGTH).astype(np.float32) for d in self.parts}
        self.sealed = {device: self.parts[device].sealed() for device in self.sharers}
        self.words = {}
        for device in self.present:
            self.words[device] = masks.to_words(self.changes[device], 1.0, devices=count, reach=REACH)
        self.masked = {device: words.copy() for device, words in self.words.items()}
        for device, words in self.masked.items():
            self.parts[device].mask(words, self.sharers)
        marks = {device: self.parts[device].marks() for device in self.sharers}
        self.opening = Opening(next(iter(self.parts.values())).roster, self.sharers, self.present, marks)

    def opened(self, holder: str) -> tuple[bytes, dict[str, bytes]]:
        """What a device opens: its own mask, and of each neighbour one share."""
        part = self.parts[holder]
        shares = {}
        for owner in set(part.neighbours) & set(self.sharers):
            own, key = part.unsealed(owner, self.sealed[owner][holder])
            shares[owner] = own if owner in self.present else key
        from fedwright.protocol.secure.part import own_mask

        return own_mask(part.root, part.digest), shares

    def open_all(self) -> None:
        for device in self.openers:
            self.opening.take(device, *self.opened(device))

    def plain(self) -> np.ndarray:
        """The sum by whole numbers in the open."""
        return sum(words.view(np.int32).astype(np.int64) for words in self.words.values())  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("count", "leavers"),
    [
        (3, {}),
        (9, {"unshared": ["d001"], "unsent": ["d004"], "silent": ["d000"]}),
        (9, {"unsent": ["d000", "d008"]}),
        (40, {"unshared": ["d005"], "unsent": ["d006", "d021", "d039"], "silent": ["d000", "d030"]}),
        (40, {"unsent": ["d006"], "silent": ["d030"], "terms": {"neighbours": 36, "threshold": 0.8}}),
    ],
    ids=["all stay", "one leaves at each stage", "first and last leave", "on a ring", "on a wider ring"],
)
def test_the_sum_is_exactly_that_of_who_stayed(count: int, leavers: dict[str, Any]) -> None:
    made = Sum(count, **leavers)
    made.open_all()

    total = made.opening.total(made.masked)

    assert made.opening.lacking == []
    np.testing.assert_array_equal(total.view(np.int32), made.plain())


@pytest.mark.parametrize(("threshold", "needed"), [(2 / 3, 7), (0.85, 8)])
def test_a_higher_threshold_takes_more_openings(threshold: float, needed: int) -> None:
    made = Sum(10, unsent=["d009"], terms={"threshold": threshold})
    lacking = []
    for device in made.openers:
        made.opening.take(device, *made.opened(device))
        lacking.append("d009" in made.opening.lacking)
    assert lacking.index(False) + 1 == needed


def test_the_mean_is_within_the_stated_error() -> None:
    made = Sum(5)
    made.open_all()

    mean = masks.to_mean(made.opening.total(made.masked), 5.0, devices=5, scale=masks.scale_of(5, REACH))

    true = np.mean([change.astype(np.float64) for change in made.changes.values()], axis=0)
    # Five devices, each off by at most half a step of 1 / scale = 5 * 2 / 2^30.
    assert np.max(np.abs(mean - true)) <= 5 * REACH / 2**31


def test_any_pattern_of_leavers_gives_the_exact_sum_or_says_what_is_lacking() -> None:
    rng = np.random.default_rng(0)
    outcomes = set()
    for _ in range(25):
        drawn = rng.choice(5, size=7, p=[0.6, 0.1, 0.1, 0.1, 0.1])
        names = [f"d{number:03}" for number in range(7)]
        leavers: dict[str, Any] = {
            kind: [name for name, what in zip(names, drawn, strict=True) if what == number]
            for number, kind in ((1, "unshared"), (2, "unsent"), (3, "silent"))
        }
        made = Sum(7, **leavers)
        made.open_all()
        enough = not made.opening.lacking and bool(made.present)
        outcomes.add(enough)
        if enough:
            np.testing.assert_array_equal(made.opening.total(made.masked).view(np.int32), made.plain())
    assert outcomes == {True, False}


def test_a_part_looks_random_and_hides_under_every_single_mask() -> None:
    made = Sum(4)
    zeros = np.zeros(4096, np.uint32)

    made.parts["d000"].mask(zeros, made.sharers)

    # Mean and spread of whole numbers that are all equally likely, within six standard errors.
    assert abs(zeros.mean() / 2**32 - 0.5) < 6 / np.sqrt(12 * 4096)
    assert len(np.unique(zeros)) > 4090


def test_too_few_openings_give_no_sum() -> None:
    made = Sum(7, unsent=["d003"])
    for device in made.openers[:3]:
        made.opening.take(device, *made.opened(device))

    assert "d003" in made.opening.lacking
    with pytest.raises(ProtocolError, match="3 shares are here but 5 are needed"):
        made.opening.total(made.masked)


def test_a_wrong_share_is_named_and_does_not_count() -> None:
    made = Sum(7, unsent=["d003"])
    own, shares = made.opened("d000")

    with pytest.raises(ProtocolError, match="d000 opened a share of d003 that is not the one that was promised"):
        made.opening.take("d000", own, shares | {"d003": b"\0" * shamir.SHARE_BYTES})
    with pytest.raises(ProtocolError, match="d000 opened another mask"):
        made.opening.take("d000", bytes(32), shares)
    for device in made.openers[1:]:
        made.opening.take(device, *made.opened(device))

    np.testing.assert_array_equal(made.opening.total(made.masked).view(np.int32), made.plain())


def test_a_share_of_the_key_of_one_who_stayed_is_not_taken() -> None:
    made = Sum(5)
    own, shares = made.opened("d000")
    _, key = made.parts["d000"].unsealed("d001", made.sealed["d001"]["d000"])

    with pytest.raises(ProtocolError, match="not the one that was promised"):
        made.opening.take("d000", own, shares | {"d001": key})


def test_the_mask_of_another_sum_is_noticed() -> None:
    made = Sum(5)
    made.open_all()
    made.parts["d002"].mask(made.masked["d002"], made.sharers)

    with pytest.raises(ProtocolError, match="no changes can add up to"):
        masks.to_mean(made.opening.total(made.masked), 5.0, devices=5, scale=masks.scale_of(5, REACH))


def test_a_change_beyond_the_range_stays_on_the_device() -> None:
    with pytest.raises(DeviceError, match=r"an entry of 2\.5, which is beyond the 2"):
        masks.to_words(np.array([0.0, -2.5], np.float32), 1.0, devices=3, reach=REACH)
    with pytest.raises(DeviceError, match="an entry of nan"):
        masks.to_words(np.array([np.nan], np.float32), 1.0, devices=3, reach=REACH)


def test_shares_of_another_sum_or_for_somebody_else_cannot_be_read() -> None:
    made, other = Sum(4), Sum(5)

    with pytest.raises(ProtocolError, match="the shares of d001 cannot be read"):
        made.parts["d000"].unsealed("d001", made.sealed["d001"]["d002"])
    with pytest.raises(ProtocolError, match="cannot be read"):
        made.parts["d000"].unsealed("d001", other.sealed["d001"]["d000"])


def test_a_secret_comes_back_from_any_three_of_five_shares_and_no_two() -> None:
    secret, randomness = bytes(range(32)), np.random.default_rng(0).bytes(2 * shamir.COEFFICIENT_BYTES)
    shares = shamir.split(secret, randomness, threshold=3, places=[1, 2, 3, 4, 5])

    assert shamir.join({place: shares[place] for place in (1, 3, 5)}, threshold=3) == secret
    assert shamir.join({place: shares[place] for place in (2, 3, 4)}, threshold=3) == secret
    with pytest.raises(ProtocolError, match="2 shares are here but 3 are needed"):
        shamir.join({place: shares[place] for place in (1, 2)}, threshold=3)


def test_neighbours_are_mutual_and_as_many_as_promised() -> None:
    names = [f"d{number}" for number in range(60)]
    found = graph.neighbours_of(names, b"digest")

    assert {len(others) for others in found.values()} == {graph.NEIGHBOURS}
    assert all(device in found[other] for device in names for other in found[device])
    assert found != graph.neighbours_of(names, b"another")


def test_a_part_of_the_ring_that_leavers_cut_off_is_not_connected() -> None:
    ring = {f"d{n}": frozenset({f"d{(n - 1) % 8}", f"d{(n + 1) % 8}"}) for n in range(8)}

    assert graph.is_connected(ring, ["d0", "d1", "d2"])
    assert not graph.is_connected(ring, ["d0", "d1", "d4", "d5"])
    assert not graph.is_connected(ring, [])


@pytest.mark.parametrize(("devices", "needed"), [(3, 3), (4, 3), (10, 7), (99, 67)])
def test_two_quorums_have_more_than_a_third_in_common(devices: int, needed: int) -> None:
    assert graph.quorum(devices) == needed
    assert 2 * needed - devices > devices / 3


@pytest.mark.parametrize(("share", "needed"), [(2 / 3, 23), (0.7, 24), (0.8, 28), (0.9, 31)])
def test_a_higher_threshold_asks_for_more_and_never_for_fewer_than_two_thirds(share: float, needed: int) -> None:
    assert graph.quorum(34, share) == graph.threshold(34, share) == needed
    assert graph.quorum(34, 0.5) == 23
    assert all(graph.quorum(n, 2 / 3) == 2 * n // 3 + 1 for n in range(1, 1001))


@pytest.mark.parametrize(
    "terms",
    [{"neighbours": 31}, {"neighbours": 1001}, {"threshold": 0.66}, {"threshold": 0.91}, {"threshold": float("nan")}],
    ids=str,
)
def test_a_roster_whose_terms_hide_too_little_is_refused(terms: Any) -> None:
    packed = roster.pack_roster([roster.Member("d0", "s", bytes(32), bytes([1] * 32))], **terms)
    with pytest.raises(ProtocolError, match="is not taken part in"):
        roster.unpack_roster(packed)


def test_who_is_told_other_terms_is_in_another_sum() -> None:
    members = [roster.Member("d0", "s", bytes(32), bytes([1] * 32))]
    told: list[Any] = [{}, {"neighbours": 40}, {"threshold": 0.8}]
    assert len({roster.digest_of(roster.pack_roster(members, **terms)) for terms in told}) == 3


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("trust") / "trust")


def signed_member(authority: Authority, folder: Path, device: str, *, name: str = "") -> roster.Member:
    """A member with keys signed by the certificate of `device`, who may call itself otherwise."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    from fedwright.protocol.crypto.device_signing import sign_with

    made = authority.issue_device(device, folder / device)
    cert = x509.load_pem_x509_certificate(made.cert.read_bytes()).public_bytes(Encoding.DER)
    member = roster.Member(name or device, "s", *public_keys(bytes(32)), cert)
    return structs.replace(member, signature=sign_with(made.key, member.word()))


def test_keys_signed_by_an_enrolled_device_are_believed(authority: Authority, tmp_path: Path) -> None:
    member = signed_member(authority, tmp_path, "pi")

    roster.Certificates(authority.ca.read_bytes()).check(
        member.device, member.certificate, member.word(), member.signature
    )


def test_neighbours_that_a_server_invents_are_not_believed(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority.create(tmp_path / "stranger")
    check = roster.Certificates(authority.ca.read_bytes()).check
    invented = signed_member(stranger, tmp_path / "invented", "pi")
    renamed = signed_member(authority, tmp_path / "renamed", "pi", name="nano")
    member = signed_member(authority, tmp_path / "real", "pi")

    with pytest.raises(ProtocolError, match="not one of this fleet's authority"):
        check(invented.device, invented.certificate, invented.word(), invented.signature)
    with pytest.raises(ProtocolError, match="that of somebody else"):
        check(renamed.device, renamed.certificate, renamed.word(), renamed.signature)
    with pytest.raises(ProtocolError, match="has not signed"):
        check(member.device, member.certificate, b"other keys", member.signature)
    with pytest.raises(ProtocolError, match="gives no certificate"):
        check("pi", b"", member.word(), b"")


# The version of a certificate, the curve of its key, and what it is signed by, each as one that nobody knows.
STRANGE = {
    "version": (bytes.fromhex("a003020102"), bytes.fromhex("a003020109")),
    "curve": (bytes.fromhex("06082a8648ce3d030107"), bytes.fromhex("06082a8648ce3d03017f")),
    "signature": (bytes.fromhex("06082a8648ce3d040302"), bytes.fromhex("06082a8648ce3d04037f")),
}


@pytest.mark.parametrize("part", sorted(STRANGE))
def test_a_certificate_of_a_kind_that_nobody_knows_is_refused_by_name(
    authority: Authority, tmp_path: Path, part: str
) -> None:
    member = signed_member(authority, tmp_path, "pi")
    strange = member.certificate.replace(*STRANGE[part])
    assert strange != member.certificate

    with pytest.raises(ProtocolError, match="the certificate of pi is not one of this fleet's authority"):
        roster.Certificates(authority.ca.read_bytes()).check("pi", strange, member.word(), member.signature)


def test_a_certificate_of_another_time_is_not_believed(authority: Authority, tmp_path: Path) -> None:
    import datetime

    later = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=800)
    member = signed_member(authority, tmp_path, "pi")
    certificates = roster.Certificates(authority.ca.read_bytes(), now=lambda: later)

    with pytest.raises(ProtocolError, match="not good at this time"):
        certificates.check(member.device, member.certificate, member.word(), member.signature)


def test_a_roster_with_somebody_twice_or_keys_of_another_sum_is_refused() -> None:
    one, two = (roster.Member(name, "s", *public_keys(bytes([place]) * 32)) for place, name in enumerate("ab"))
    same_key = roster.Member("c", "s", one.mask_key, public_keys(b"\7" * 32)[1])
    elsewhere = roster.Member("c", "t", *public_keys(b"\7" * 32))

    with pytest.raises(ProtocolError, match="twice"):
        roster.read_roster(roster.pack_roster([one, two, one]))
    with pytest.raises(ProtocolError, match="twice"):
        roster.read_roster(roster.pack_roster([one, two, same_key]))
    with pytest.raises(ProtocolError, match="made for another one"):
        roster.read_roster(roster.pack_roster([one, two, elsewhere]))
    with pytest.raises(ProtocolError, match="cannot be read"):
        roster.read_roster(b"\xc1")
