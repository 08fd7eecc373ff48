"""What the page changes, if it was started with `--write`: launches, sizes, ends."""

from collections.abc import Callable, Mapping

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from launcher.api import job as jobs
from launcher.api import knobs
from launcher.api.plan import compile as compiled
from launcher.common.problems import fail
from launcher.ui import addresses, explorer
from launcher.ui.guard import fields
from launcher.ui.rendering import page
from launcher.ui.state import indexed_of, job_of, opened, ui_of

Given = Mapping[str, list[str]]
Action = Callable[[Request, Given], str]
"""Does something to a job, and returns the name of the folder of the job that it led to."""


async def act(request: Request) -> Response:
    """Do one thing to a job, then show the job that it led to."""
    given = await _given(request)
    action = request.path_params["action"]
    if action not in _ACTIONS:
        raise HTTPException(404, "No such action.")
    return await run_in_threadpool(_answer, request, given, action, _ACTIONS[action])


async def launch(request: Request) -> Response:
    """Write the bundle of a plan and, unless only that is wanted, launch it."""
    return await run_in_threadpool(_answer, request, await _given(request), "launch", _launch)


async def _given(request: Request) -> Given:
    """Return the fields of the form.

    Raises:
        ProblemsFound: The page only reads (E743), or the request has no form (E744).
    """
    given = await fields(request)  # read in any case, or the connection would break while it is sent
    if not ui_of(request).may_write:
        raise fail("E743", "recipes ui", "this page only reads", remedy="start it with recipes ui --write")
    return given


def _answer(request: Request, given: Given, action: str, do: Action) -> Response:
    """Ask whether an action is meant, or do it and show the job that it led to."""
    return _question(request, given, action) or RedirectResponse(addresses.of_job(do(request, given)), 303)


def _question(request: Request, given: Given, action: str) -> Response | None:
    """Return a page that asks whether an action is meant; None once the script or that page has asked."""
    if "confirmed" in given:
        return None
    name = indexed_of(request).title if "job" in request.path_params else _one(given, "recipe")
    title, said = _QUESTIONS[action]
    if action == "launch" and _one(given, "what") == "write":
        title, said = "Write the bundle", "The bundle of {name} is written to the results folder, and not launched."
    return page(
        request,
        "confirm.html",
        title=title,
        said=said.format(name=name, nodes=_one(given, "nodes")),
        action=addresses.path_of(request),
        fields=[(key, value) for key, values in given.items() for value in values],
        back=addresses.of_job(request.path_params["job"]) if "job" in request.path_params else "/recipes",
    )


def _scale(request: Request, given: Given) -> str:
    text = _one(given, "nodes")
    if (nodes := addresses.number(text, 6)) is None:
        raise fail("E744", "nodes", "is not a number of nodes", value=text)
    job = job_of(request)
    job.scale(nodes)
    return job.folder.name


def _cancel(request: Request, given: Given) -> str:
    job = job_of(request)
    job.cancel()
    return job.folder.name


def _rerun(request: Request, given: Given) -> str:
    return job_of(request).rerun(allow_changes="allow_changes" in given).folder.name


def _relaunch(request: Request, given: Given) -> str:
    row = indexed_of(request)
    if row.record is None:
        return jobs.launched(row.folder).folder.name
    return opened(row).relaunch(again="again" in given).folder.name


def _launch(request: Request, given: Given) -> str:
    ui = ui_of(request)
    words = given.get("override", [])
    explorer.refuse_own(words)
    plan = compiled(_one(given, "recipe"), words, session=ui.session)
    plan = plan.with_overrides({"base_results_dir": knobs.literal(str(ui.results))})
    if _one(given, "what") == "write":
        return plan.write().name
    return plan.submit().folder.name


_QUESTIONS = {
    "scale": ("Scale", "{name} is to change its number of nodes to {nodes}."),
    "cancel": ("Cancel the job", "{name} is to end, with all of its processes."),
    "rerun": ("Rerun as a new job", "The recipe and overrides of {name} are to be launched as a new job."),
    "relaunch": ("Launch", "{name} is to be launched; it resumes from its last checkpoint, if it has one."),
    "launch": ("Launch", "{name} is to be launched with the fields that were filled in."),
}
"""Action to the title of its question, and what will happen."""
_ACTIONS: dict[str, Action] = {
    "scale": _scale,
    "cancel": _cancel,
    "rerun": _rerun,
    "relaunch": _relaunch,
}


def _one(given: Given, name: str) -> str:
    return given.get(name, [""])[-1]
