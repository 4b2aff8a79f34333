"""The page's answers: files for a browser, records of runs, news as they come."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from fedwright import __version__
from fedwright.server_runtime.page.actions import export, take_order
from fedwright.server_runtime.page.answers import PageState, body_of, encoded, no_such, page_of, problem
from fedwright.server_runtime.page.feed import Feed
from fedwright.server_runtime.page.guard import COOKIE, REPORT_POLICY
from fedwright.server_runtime.page.people import SESSION_S, Person
from fedwright.server_runtime.page.runs import device_page, run_page, shown
from fedwright.server_runtime.watch.run_watch import RunWatch

STATIC = Path(__file__).parent / "static"
MOST_LISTENERS = 64
REPORT = "report.html"


def make_app(state: PageState) -> Starlette:
    """The app without its guard."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        for feed in state.feeds.values():
            await feed.close()

    routes = [
        Route("/", _index),
        Mount("/static", StaticFiles(directory=STATIC)),
        Route("/login", _login, methods=["POST"]),
        Route("/logout", _logout, methods=["POST"]),
        Route("/api/me", _me),
        Route("/api/runs", _runs),
        Route("/api/runs/{run}", _one(run_page)),
        Route("/api/runs/{run}/fleet", _one(lambda watch: [shown(row) for row in watch.fleet()])),
        Route("/api/runs/{run}/rounds/{number:int}", _round),
        Route("/api/runs/{run}/devices/{device}", _device),
        Route("/api/runs/{run}/events", _events),
        Route("/api/runs/{run}/orders", take_order, methods=["POST"]),
        Route("/api/runs/{run}/export", export, methods=["POST"]),
        Route("/bench/report", _report),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={404: _missing, 500: _broken})
    app.state.page = state
    return app


async def _index(request: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})


async def _me(request: Request) -> Response:
    person: Person | None = request.state.person
    known = {"version": __version__, "bench": _report_file(page_of(request)) is not None}
    if person is None:
        return JSONResponse({**known, "name": None})
    return JSONResponse({**known, "name": person.name, "role": person.role, "word": request.state.people.word(person)})


async def _login(request: Request) -> Response:
    token = (await body_of(request)).get("token")
    person = request.state.people.by_token(token) if isinstance(token, str) else None
    if person is None:
        return problem(401, "this is nobody's token; ask whoever runs the server for one")
    answer = JSONResponse({"name": person.name, "role": person.role})
    cookie = request.state.people.open_session(person)
    secure = page_of(request).secure
    answer.set_cookie(COOKIE, cookie, max_age=int(SESSION_S), secure=secure, httponly=True, samesite="strict")
    return answer


async def _logout(request: Request) -> Response:
    answer = JSONResponse({})
    answer.delete_cookie(COOKIE)
    return answer


async def _runs(request: Request) -> Response:
    return encoded(await page_of(request).runs.summaries())


def _one(make: Callable[[RunWatch], Any]) -> Callable[[Request], Awaitable[Response]]:
    """An answer made of one run."""

    async def answer(request: Request) -> Response:
        async with page_of(request).runs.looked_at(request.path_params["run"]) as watch:
            found = None if watch is None else make(watch)
        return no_such("run") if found is None else encoded(found)

    return answer


async def _round(request: Request) -> Response:
    number, evaluation = request.path_params["number"], "evaluation" in request.query_params
    return await _one(lambda watch: shown(watch.stage(number, evaluation=evaluation)))(request)


async def _device(request: Request) -> Response:
    device = request.path_params["device"]
    return await _one(lambda watch: device_page(watch, device))(request)


async def _events(request: Request) -> Response:
    state, name = page_of(request), request.path_params["run"]
    async with state.runs.looked_at(name) as watch:
        if watch is None:
            return no_such("run")
    if sum(feed.listeners for feed in state.feeds.values()) >= MOST_LISTENERS:
        return problem(503, "too many browsers watch already; close one")
    feed = state.feeds.setdefault(name, Feed(state.runs, name))
    return StreamingResponse(feed.listen(), media_type="text/event-stream")


def _report_file(state: PageState) -> Path | None:
    file = None if state.bench is None else state.bench / REPORT
    return file if file is not None and file.is_file() else None


async def _report(request: Request) -> Response:
    file = _report_file(page_of(request))
    if file is None:
        return problem(404, "there is no report yet; make one with `fedwright bench report`")
    return FileResponse(file, headers={"Content-Security-Policy": REPORT_POLICY}, media_type="text/html")


async def _missing(request: Request, err: Exception) -> Response:
    return no_such("page")


async def _broken(request: Request, err: Exception) -> Response:
    # What went wrong stands in the log; a visitor learns nothing of this machine from it.
    return problem(500, "the page could not answer this; its log says why")
