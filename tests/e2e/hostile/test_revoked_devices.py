"""A revoked device on a real mosquitto: no new connection, no word in the old one, deaf ears at the server."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from fedwright.protocol import topics
from fedwright.protocol.errors import LinkError
from fedwright.protocol.link import Link, Received, connect
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.link.security import Bundle, read_bundle
from fedwright.server_runtime.config import config_from_dict
from fedwright.server_runtime.fleet.trust import Authority, enroll, enroll_edge, enroll_server, revoke
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.run import execute
from helpers.data_files import save_points
from helpers.links import closed_broker, take, wait_until

pytestmark = pytest.mark.broker
FLEET = "home"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "trust")


@pytest.fixture
def broker(authority: Authority) -> Iterator[Broker]:
    with closed_broker(authority, FLEET) as running:
        yield running


def bundle_of(authority: Authority, broker: Broker, name: str, *, folder: Path | None = None) -> Bundle:
    return read_bundle(enroll(authority, name, fleet=FLEET, broker=broker.url, folder=folder))


def join(bundle: Bundle, stack: ExitStack) -> Link:
    name = bundle.info.device
    link = stack.enter_context(closing(connect(bundle.info.broker, client_id=name, tls=bundle.tls())))
    link.subscribe(topics.down(FLEET, name))
    return link


def is_let_in(bundle: Bundle) -> bool:
    try:
        connect(bundle.info.broker, client_id="again", tls=bundle.tls()).close()
    except LinkError:
        return False
    return True


def test_a_revoked_device_is_out_and_the_others_stay(broker: Broker, authority: Authority, stack: ExitStack) -> None:
    server = stack.enter_context(closing(connect(broker.url, client_id="server", tls=enroll_server(authority))))
    server.subscribe(topics.up_all(FLEET))
    bundles = {name: bundle_of(authority, broker, name) for name in ("lost", "stolen", "kept")}
    links = {name: join(bundle, stack) for name, bundle in bundles.items()}

    # One after the other within a second: the later list must count.
    for name in ("lost", "stolen"):
        revoke(authority, name)
        broker.reload()
    wait_until(lambda: not is_let_in(bundles["stolen"]))
    for name, link in links.items():
        link.send(topics.up(FLEET, name), b"report")
        server.send(topics.down(FLEET, name), b"task")

    assert [is_let_in(bundles[name]) for name in ("lost", "stolen")] == [False, False]
    assert take(links["kept"], 1) == [Received(topics.down(FLEET, "kept"), b"task")]
    assert take(server, 1) == [Received(topics.up(FLEET, "kept"), b"report")]
    assert [links[name].receive(0.1) for name in ("lost", "stolen")] == [None, None]
    assert links["kept"].connects == 1
    # Last, because one certificate has one connection: this one throws the link out.
    assert is_let_in(bundles["kept"])


def test_a_device_enrolled_anew_comes_in_with_its_new_certificate_only(
    broker: Broker, authority: Authority, stack: ExitStack, tmp_path: Path
) -> None:
    server = stack.enter_context(closing(connect(broker.url, client_id="server", tls=enroll_server(authority))))
    server.subscribe(topics.up_all(FLEET))
    old = bundle_of(authority, broker, "pi-1")
    revoke(authority, "pi-1")

    new = bundle_of(authority, broker, "pi-1", folder=tmp_path / "new")
    broker.reload()
    wait_until(lambda: not is_let_in(old))
    join(new, stack).send(topics.up(FLEET, "pi-1"), b"here again")

    assert take(server, 1) == [Received(topics.up(FLEET, "pi-1"), b"here again")]


def test_a_broker_that_starts_later_knows_it_too(broker: Broker, authority: Authority) -> None:
    bundle = bundle_of(authority, broker, "pi-1")
    assert is_let_in(bundle)
    revoke(authority, "pi-1")

    broker.restart()

    assert not is_let_in(bundle)


EDGE = """
[edge]
name = "site"
folder = "{folder}"
bundle = "{bundle}"
once = true
[host]
broker = "{broker}"
fleet = "home"
"""


def test_what_a_revoked_device_learnt_is_not_used_through_an_edge_either(
    broker: Broker, authority: Authority, tmp_path: Path
) -> None:
    """Real processes of an edge and three devices; one is revoked as soon as its first update is taken.

    The broker hears nothing of it, as one that somebody else runs: what keeps it out is the server's own list.
    """
    devices = ("kept-1", "kept-2", "stolen")
    site = enroll_edge(authority, "site", fleet=FLEET, broker=broker.url)
    (tmp_path / "edge.toml").write_text(EDGE.format(folder=tmp_path / "edges", bundle=site, broker=broker.url))
    commands = [["server", "edge", str(tmp_path / "edge.toml")]]
    for seed, device in enumerate(devices):
        bundle = enroll(authority, device, fleet=FLEET, broker=broker.url, edges=["site"])
        save_points(tmp_path / f"{device}.npz", seed=seed)
        words = ["--bundle", str(bundle), "--data", f"npz:{tmp_path}/{device}.npz", "--state", str(tmp_path / "state")]
        commands.append(["device", "run", *words, "--threads", "1", "--once"])
    broker.reload()
    fleet = {"name": FLEET, "devices": 2, "broker": broker.url, "trust": str(authority.folder), "deadline_s": 20}
    run = {"rounds": 4, "folder": str(tmp_path / "runs")}
    config = config_from_dict(
        {"run": run, "fleet": fleet, "model": {"model": "mlp"}, "method": {"name": "fedavg"}}, where="test"
    )
    taken: list[str] = []
    late: list[str] = []

    def watch(event: events.Event) -> None:
        if isinstance(event, events.UpdateTaken):
            (late if "stolen" in taken else taken).append(event.device)
            if event.device == "stolen" and not late:
                revoke(authority, "stolen")

    with ExitStack() as stack:
        log = stack.enter_context((tmp_path / "log").open("wb"))
        for command in commands:
            process = subprocess.Popen([sys.executable, "-m", "fedwright", *command], stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
        link = stack.enter_context(closing(connect(broker.url, client_id="server", tls=enroll_server(authority))))
        execute(config, "", link=link, observer=watch)

    assert is_let_in(read_bundle(authority.folder / "devices" / "stolen"))
    assert "stolen" in taken
    assert "stolen" not in late
    assert {"kept-1", "kept-2"} <= set(late)
