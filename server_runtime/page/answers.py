"""What all answers of the page are made with."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fedwright.protocol.support.unreadable import UNREADABLE
from fedwright.server_runtime.page.feed import Feed
from fedwright.server_runtime.page.runs import Runs

MOST_BODY_BYTES = 4096


@dataclass
class PageState:
    """What the answers share. bench: the folder that `fedwright bench report` wrote. secure: the page is behind TLS."""

    runs: Runs
    bench: Path | None = None
    secure: bool = False
    feeds: dict[str, Feed] = field(default_factory=dict)


def page_of(request: Request) -> PageState:
    """What the answers share."""
    found: PageState = request.app.state.page
    return found


def encoded(data: Any, status: int = 200) -> Response:
    """Records as JSON."""
    return Response(msgspec.json.encode(data), status, media_type="application/json")


def problem(status: int, sentence: str, **headers: str) -> JSONResponse:
    """An error in one sentence."""
    return JSONResponse({"error": sentence}, status, headers)


def no_such(what: str) -> Response:
    """The answer about something that is not there."""
    return problem(404, f"there is no such {what} here, or no longer")


async def body_of(request: Request) -> dict[str, Any]:
    """The table that came with a request; an empty one when it is none, or too long."""
    taken = b""
    async for part in request.stream():
        taken += part
        if len(taken) > MOST_BODY_BYTES:
            return {}
    try:
        return msgspec.json.decode(taken, type=dict[str, Any])
    except UNREADABLE:
        return {}
