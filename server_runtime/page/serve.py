"""Serves the page: on a loopback address as it is, elsewhere only behind TLS and for people that a file names."""

import asyncio
import ssl
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedwright.server_runtime.page.address import PageSettings
from fedwright.server_runtime.page.answers import PageState
from fedwright.server_runtime.page.app import make_app
from fedwright.server_runtime.page.guard import Guard
from fedwright.server_runtime.page.people import People
from fedwright.server_runtime.page.runs import Runs


class PeerProtocol(H11Protocol):
    """Tells the app whose certificate a connection has shown; TLS has checked by then who issued it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio."""
        super().connection_made(transport)
        shown = transport.get_extra_info("peercert") or {}
        names = [value for part in shown.get("subject", ()) for key, value in part if key == "commonName"]
        self.app_state = {**self.app_state, "peer": names[0] if len(names) == 1 else ""}


def make_server(runs: Path, settings: PageSettings) -> uvicorn.Server:
    """A server that is ready to run."""
    settings.check()
    secure = settings.certificate is not None
    app = make_app(PageState(Runs(runs), settings.bench, secure))
    guard = Guard(app, People(settings.people), settings.is_local)
    optional = ssl.CERT_OPTIONAL if settings.client_ca is not None else ssl.CERT_NONE
    config = uvicorn.Config(
        guard,
        host=settings.host,
        port=settings.port,
        http=PeerProtocol,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        # Nobody stands between the page and its visitors whose word on their address would count.
        proxy_headers=False,
        timeout_graceful_shutdown=1,
        limit_concurrency=512,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
        ssl_ca_certs=None if settings.client_ca is None else str(settings.client_ca),
        ssl_cert_reqs=int(optional),
    )
    return uvicorn.Server(config)
