"""Figures of a process for Prometheus: plain records here, and a small HTTP server for /metrics, /healthz and /readyz.

Nothing of it is imported or runs unless somebody asks for it; prometheus-client, which writes the figures down, comes
with the extra `metrics`.
"""

import importlib.util
import itertools
import logging
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedwright.protocol.errors import ConfigError

if TYPE_CHECKING:
    from fedwright.protocol.link.base import Link

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
# A scraper that reads this slowly gets nothing.
PATIENCE_S = 5.0
# Who comes while so many are answered is sent away.
AT_ONCE = 16
# Whatever devices call themselves: no figure has more series than this, and no label is longer.
MOST_SERIES = 2000
MOST_LABEL = 128


@dataclass(frozen=True)
class Metric:
    """One figure: its values by those of its label, if it has one. Names and units as Prometheus wants them."""

    name: str
    help: str
    values: Mapping[str, float]
    label: str = ""
    kind: Literal["gauge", "counter"] = "gauge"


@dataclass(frozen=True)
class Histogram:
    """How values are spread over buckets; bounds grow, and the last bucket has none."""

    name: str
    help: str
    values: Sequence[float]
    bounds: tuple[float, ...]


@dataclass(frozen=True)
class About:
    """What a process is, in words; its name ends in _info."""

    name: str
    help: str
    words: Mapping[str, str]


Figure = Metric | Histogram | About
Collect = Callable[[], Iterable[Figure]]


def gauge(name: str, help: str, value: float) -> Metric:
    """A figure of one value that may fall again."""
    return Metric(name, help, {"": value})


def counter(name: str, help: str, value: float) -> Metric:
    """A figure of one value that only grows."""
    return Metric(name, help, {"": value}, kind="counter")


def disk_figures(folder: Path) -> Iterator[Figure]:
    """How full the disk is that a process keeps its state on."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return
    yield gauge("fedwright_disk_free_bytes", "Free space where state is kept.", usage.free)
    yield gauge("fedwright_disk_size_bytes", "Size of the disk where state is kept.", usage.total)


def link_figures(link: "Link", *, role: str = "") -> Iterator[Figure]:
    """What went over a connection to a broker; role: whose, where a process has several."""
    name = f"fedwright_{role}link"
    yield gauge(f"{name}_up", "Whether the broker is reached.", link.connected)
    yield counter(f"{name}_connects_total", "How often the connection came up.", link.connects)
    yield counter(f"{name}_sent_bytes_total", "Payload handed to the broker.", link.sent_bytes)
    yield counter(f"{name}_received_bytes_total", "Payload taken from the broker.", link.received_bytes)


def parse_listen(text: str) -> tuple[str, int]:
    """Where to listen: `9100` is that port of this machine alone, `host:9100` of an address that others reach.

    Port 0 is any free one.
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) <= 65_535):
        raise ConfigError(f"{text!r} is no place to serve metrics; give a port such as 9100, or host:port")
    return (host.strip("[]") or LOOPBACK), int(port)


def check_installed() -> None:
    """Raise ConfigError unless what writes the figures is here."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise ConfigError('metrics need prometheus-client; install it with pip install "fedwright[metrics]"')


@dataclass(frozen=True)
class Endpoint:
    """What is served: figures, and why the process is not ready to work ("" when it is)."""

    collect: Collect
    problem: Callable[[], str]
    lock: threading.Lock = field(default_factory=threading.Lock)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """All figures as the scraper wants them, and the type of that text."""
        from prometheus_client.exposition import choose_encoder

        encode, kind = choose_encoder(accept)
        # Collectors read files and remember where they were.
        with self.lock:
            return encode(_Registry(self.collect)), kind


class _Registry:
    """Gives figures in the form that prometheus-client writes down, with those of the process itself."""

    def __init__(self, collect: Collect) -> None:
        self._collect = collect

    def collect(self) -> Iterator[Any]:
        """As a registry of prometheus-client does."""
        from prometheus_client import ProcessCollector

        yield from (_family(figure) for figure in self._collect())
        yield from ProcessCollector(registry=None).collect()


def _family(figure: Figure) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    if isinstance(figure, Histogram):
        return _histogram(figure)
    if isinstance(figure, About):
        info = GaugeMetricFamily(figure.name, figure.help, labels=list(figure.words))
        info.add_metric([_label(word) for word in figure.words.values()], 1.0)
        return info
    kind = CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily
    family = kind(figure.name, figure.help, labels=[figure.label] if figure.label else None)
    for label, value in itertools.islice(figure.values.items(), MOST_SERIES):
        family.add_metric([_label(label)] if figure.label else [], float(value))
    return family


def _histogram(figure: Histogram) -> Any:
    from prometheus_client.core import HistogramMetricFamily

    buckets = [(str(bound), float(sum(value <= bound for value in figure.values))) for bound in figure.bounds]
    buckets.append(("+Inf", float(len(figure.values))))
    family = HistogramMetricFamily(figure.name, figure.help)
    family.add_metric([], buckets, sum(figure.values))
    return family


def _label(text: str) -> str:
    """A label that no log, terminal or query trips over."""
    return "".join(character if character.isprintable() else "?" for character in text[:MOST_LABEL])


class _Server(ThreadingHTTPServer):
    """Answers a few at a time; a thread of its own for each."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._room = threading.BoundedSemaphore(AT_ONCE)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or not at all."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and make room."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A scraper that went away is not worth a line."""
        log.debug("a request for metrics ended early", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """One request; nothing that is sent along is read."""

    server: _Server
    timeout = PATIENCE_S
    server_version = "fedwright"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer what is asked for by name."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            body, kind = self.server.endpoint.exposition(self.headers.get("Accept") or "")
            self._answer(200, body, kind)
        elif path == "/healthz":
            self._answer(200, b"ok\n")
        elif path == "/readyz":
            problem = self.server.endpoint.problem()
            self._answer(503 if problem else 200, f"{problem or 'ok'}\n".encode())
        else:
            self._answer(404, b"there are /metrics, /healthz and /readyz\n")

    do_HEAD = do_GET

    def _answer(self, code: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """To the log instead of the terminal."""
        log.debug(format, *args)


@contextmanager
def served_metrics(listen: str, endpoint: Endpoint) -> Iterator[str]:
    """Inside the block the figures can be scraped; gives the address, "" when `listen` is empty."""
    if not listen:
        yield ""
        return
    check_installed()
    host, port = parse_listen(listen)
    try:
        server = _Server((host, port), endpoint)
    except OSError as err:
        raise ConfigError(
            f"metrics cannot be served at {host}:{port} ({err.strerror or err}); name another port"
        ) from err
    if not host.startswith("127.") and host not in ("localhost", "::1"):
        log.warning("metrics at %s:%d can be read by everybody who reaches this address", host, port)
    port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    log.info("metrics are at http://%s:%d/metrics", host, port)
    try:
        yield f"http://{host}:{port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
