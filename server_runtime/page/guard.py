"""What stands before every answer of the page: how often, from where, who, and what a browser may do with it."""

import math
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedwright.server_runtime.page.address import LOOPBACK
from fedwright.server_runtime.page.answers import problem
from fedwright.server_runtime.page.people import LOCAL, People, Person
from fedwright.server_runtime.page.rates import Rates

COOKIE = "fedwright-page"
WORD = "x-fedwright-word"
# Nothing from elsewhere, nothing written into the page itself, and nobody may put it into a frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# A report is a page of its own with its style inside: it may show itself, and do nothing.
REPORT_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
# What anybody may have: the page without a word about any run, and the way to say who one is.
PUBLIC = ("/", "/login", "/api/me")
LOOKS_PER_S, LOOKS_AT_ONCE = 50.0, 300.0
ORDERS_PER_S, ORDERS_AT_ONCE = 1.0, 20.0
TRIES_PER_S, TRIES_AT_ONCE = 0.1, 5.0


@dataclass
class Guard:
    """Lets a request through to the app or answers it. local: the page listens on a loopback address only."""

    app: ASGIApp
    people: People
    local: bool
    looks: Rates = field(default_factory=lambda: Rates(LOOKS_PER_S, LOOKS_AT_ONCE))
    orders: Rates = field(default_factory=lambda: Rates(ORDERS_PER_S, ORDERS_AT_ONCE))
    tries: Rates = field(default_factory=lambda: Rates(TRIES_PER_S, TRIES_AT_ONCE))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        connection = HTTPConnection(scope)
        person = self._who(connection)
        refusal = self._refusal(connection, scope["method"], person)
        if refusal is not None:
            await refusal(scope, receive, dressed)
            return
        scope.setdefault("state", {})
        scope["state"] |= {"person": person, "people": self.people}
        await self.app(scope, receive, dressed)

    def _refusal(self, connection: HTTPConnection, method: str, person: Person | None) -> Response | None:
        """Why a request is not let through; None when it is."""
        host = _host_of("//" + connection.headers.get("host", ""))
        if self.local and host not in LOOPBACK:
            # A name of somebody else's that points here would make his page and ours one.
            return problem(400, "this page is open under localhost only")
        path, visitor = connection.url.path, connection.client.host if connection.client else ""
        changes = method not in ("GET", "HEAD")
        rates = self.tries if path == "/login" and changes else self.orders if changes else self.looks
        wait_s = rates.wait_s(visitor)
        if wait_s:
            return problem(429, "too many requests; wait a little", **{"Retry-After": str(math.ceil(wait_s))})
        if changes and not self._is_own(connection, path, person):
            return problem(403, "the order does not come from this page; load it anew and try again")
        if person is None and path not in PUBLIC and not path.startswith("/static/"):
            return problem(401, "say who you are first, with your token")
        if changes and path != "/login" and path != "/logout" and (person is None or person.role != "act"):
            return problem(403, "you may look and not act; ask for a token with the role act")
        return None

    def _is_own(self, connection: HTTPConnection, path: str, person: Person | None) -> bool:
        """Whether a page of ours, or a program with a token, sends this, and not a page of somebody else's."""
        headers = connection.headers
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != headers.get("host"):
            return False
        if path == "/login" or _bearer(connection):
            return headers.get("content-type", "").startswith("application/json")
        return person is not None and headers.get(WORD) == self.people.word(person)

    def _who(self, connection: HTTPConnection) -> Person | None:
        if self.people.is_open:
            return LOCAL
        token = _bearer(connection)
        if token:
            return self.people.by_token(token)
        peer = connection.scope.get("state", {}).get("peer") or ""
        return self.people.by_certificate(peer) or self.people.by_session(connection.cookies.get(COOKIE, ""))


def _host_of(address: str) -> str:
    """The host of an address; empty where there is none, or no address."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def _bearer(connection: HTTPConnection) -> str:
    kind, _, token = connection.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""
