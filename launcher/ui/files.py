"""The files of a job's bundle."""

from starlette.requests import Request
from starlette.responses import Response

from launcher.api import bundles
from launcher.common.problems import Problem, ProblemsFound
from launcher.ui.rendering import page
from launcher.ui.state import indexed_of

_FIRST = ("plan.md", "recipe.yaml")
_MOST = 500_000
"""Characters of a file that are shown."""


def files(request: Request) -> Response:
    """Show the names of a bundle's files, and the content of one. Only what its manifest names is opened."""
    row = indexed_of(request)
    found: tuple[Problem, ...] = ()
    texts: dict[str, str] = {}
    try:
        texts = bundles.bundle_files(row.folder)
    except ProblemsFound as error:
        found = error.problems
    name = request.query_params.get("name") or next((each for each in _FIRST if each in texts), "")
    text = texts.get(name, "")
    if len(text) > _MOST:
        text = f"{text[:_MOST]}\n… {len(text) - _MOST:,} characters more"
    return page(
        request,
        "job_files.html",
        code=200 if name in texts or not name else 404,
        row=row,
        tab="files",
        names=list(texts),
        name=name if name in texts else "",
        text=text,
        found=found,
    )
