"""Every address of the page and its view."""

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from launcher.common.problems import ProblemsFound
from launcher.ui import actions, catalogue, compare, explorer, job_page, job_table, live, logs, sweeps
from launcher.ui.later import damaged
from launcher.ui.live import View
from launcher.ui.rendering import asset, page
from launcher.ui.state import Ui, indexed_of, ui_of

_ASSETS = {
    "page.css": "text/css",
    "charts.css": "text/css",
    "page.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_MAKERS: dict[str, Callable[[Request], View]] = {
    "/live/jobs": lambda request: job_table.JobsView(ui_of(request), job_table.Filters.of(request.query_params)),
    "/live/jobs/{job}": lambda request: job_page.JobView.shared(ui_of(request), indexed_of(request)),
    "/live/sweeps/{sweep}": sweeps.view,
}
"""Address of a stream to what it follows."""


def app_of(ui: Ui) -> Starlette:
    """Return the application without its guard."""
    routes = [
        Route("/", _home),
        Route("/jobs", job_table.jobs),
        Route("/parts/jobs", job_table.rows),
        Route("/jobs/{job}", _of_files(job_page.overview)),
        Route("/jobs/{job}/plan", _of_files(job_page.plan)),
        Route("/jobs/{job}/configuration", _of_files(job_page.configuration)),
        Route("/jobs/{job}/files", _of_files(job_page.files)),
        Route("/jobs/{job}/logs", _of_files(logs.logs)),
        Route("/parts/jobs/{job}/logs", _of_files(logs.lines)),
        Route("/jobs/{job}/raw", _of_files(logs.raw)),
        Route("/jobs/{job}/actions/{action}", actions.act, methods=["POST"]),
        Route("/actions/launch", actions.launch, methods=["POST"]),
        Route("/recipes", catalogue.recipes),
        Route("/parts/recipes", catalogue.rows),
        Route("/recipes/{name:path}", explorer.recipe),
        Route("/parts/explore/{name:path}", explorer.result),
        Route("/compare", _of_files(compare.compare)),
        Route("/sweeps", _of_files(sweeps.sweeps)),
        Route("/sweeps/{sweep}", _of_files(sweeps.sweep)),
        Route("/files/{name}", _file),
        *(Route(path, _following(make)) for path, make in _MAKERS.items()),
    ]
    handlers = {HTTPException: _refused, ProblemsFound: _problems, 404: _refused, Exception: _fault}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.state.ui = ui
    return app


def _of_files(view: Callable[[Request], Response]) -> Callable[[Request], Response]:
    """Return a view that shows a Problem if it meets damage that no reader has named; the terminal shows where."""

    def tolerant(request: Request) -> Response:
        try:
            return view(request)
        except (HTTPException, ProblemsFound):
            raise
        except Exception as error:
            name = str(next(iter(request.path_params.values()), request.url.path))
            raise damaged(name, request.url.path, error) from error

    return tolerant


def _home(request: Request) -> Response:
    return RedirectResponse("/jobs", 303)


def _file(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _ASSETS:
        raise HTTPException(404, "No such file.")
    content, tag = asset(name)
    headers = {"cache-control": "private, no-cache", "etag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=_ASSETS[name], headers=headers)


def _following(make: Callable[[Request], View]) -> Callable[[Request], Awaitable[Response]]:
    """Return the stream of what is made for a request."""

    async def follow(request: Request) -> Response:
        view = await run_in_threadpool(make, request)  # refuses what does not exist
        if request.method == "HEAD":  # a stream without a body would keep its connection for ever
            return Response(media_type="text/event-stream")
        return live.stream(ui_of(request).hub.follow(f"{request.url.path}?{request.url.query}", view))

    return follow


def _refused(request: Request, error: Exception) -> Response:
    status, said = (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, str(error))
    titles = {404: "Not found", 405: "Not allowed", 403: "Refused", 409: "Not launched"}
    return page(request, "error.html", status, title=titles.get(status, "Refused"), said=said, found=())


def _problems(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemsFound)
    said = error.outcome or ("Nothing was changed." if request.method == "POST" else "")
    return page(request, "error.html", 422, title="Refused", said=said, found=error.problems)


def _fault(request: Request, error: Exception) -> Response:
    said = "This is a fault of the program; the terminal of the server shows where."
    if request.method == "POST":
        said += " It is not known what was changed: look at the jobs."
    return page(request, "error.html", 500, title="A fault", said=said, found=())
