"""The page of a job's logs: what it chooses, follows, searches and hands out, and what it never opens."""

import html
import re
import threading
from dataclasses import replace

import pytest
from log_runs import a_run, log_path
from result_folders import a_bundle, a_job
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from launcher.api import job_index
from launcher.common import locks
from launcher.common.problems import ProblemsFound
from launcher.job_store import registry
from launcher.model.failure import ErrorLine, Failure
from launcher.model.job_spec import JobState, JobStatus
from launcher.ui import logs
from launcher.ui.state import Ui

HOSTILE = "\x1b]0;owned\x07<script>alert(1)</script> \x1b[31m&amp; \"'"
TOKEN = "ghp_" + "a1B2" * 9
MANY = "".join(f"line {number}\n" for number in range(3000))


@pytest.fixture
def results(tmp_path):
    return tmp_path / "results"


@pytest.fixture
def site(results, monkeypatch):
    """Return a client of the three views."""
    monkeypatch.setattr(job_index, "_LOOK_S", 0.0)
    results.mkdir()
    views = [
        Route("/jobs/{job}/logs", logs.logs),
        Route("/parts/jobs/{job}/logs", logs.lines),
        Route("/jobs/{job}/raw", logs.raw),
    ]
    app = Starlette(routes=views)
    app.state.ui = Ui.of(results, may_write=False)
    with TestClient(app) as client:
        yield client
    app.state.ui.answers.close()


@pytest.fixture
def running(site, results):
    """Return a function that writes the logs of a job that runs, as far as its files show, and returns its folder."""
    folder = a_job(results, "a", state=None)
    (folder / "run").mkdir()

    def run(attempts, **settings):
        a_run(folder, attempts, state=JobState.RUNNING, **settings)
        return folder

    with locks.lock(folder / "run"):
        yield run


def texts(reply):
    """Return the texts of the lines of a reply."""
    assert reply.status_code == 200, reply.text
    items = re.findall(r"<li(?: [^>]*)?>(.*?)</li>", reply.text.partition('class="log-part"')[2], re.S)
    return [html.unescape(re.sub(r"<[^>]+>", "", re.sub(r'^<a class="at" .*?</a> ', "", each))) for each in items]


def value(reply, name):
    """Return an attribute of the part; None if it has none."""
    found = re.search(rf'\bdata-{name}="([^"]*)"', reply.text)
    return html.unescape(found[1]) if found else None


def link(reply, label):
    found = re.search(rf'<a href="([^"]*)"[^>]*>{label}</a>', reply.text)
    return html.unescape(found[1]) if found else None


def test_the_newest_attempt_of_rank_0_is_shown_and_others_can_be_chosen(site, results):
    a_run(a_job(results, "a"), [(0, 1), (0,)])
    assert texts(site.get("/jobs/a/logs")) == ["stdout of rank 0 in attempt 1"]
    assert texts(site.get("/jobs/a/logs?attempt=0&rank=3&stream=stderr")) == ["stderr of rank 3 in attempt 0"]
    missing = site.get("/jobs/a/logs?attempt=1&rank=3")
    assert "Attempt 1 has no" in missing.text and texts(missing) == []
    page = site.get("/jobs/a/logs").text
    assert '<option value="">newest</option>' in page and '<option value="1">1</option>' in page
    assert '<option value="1" selected>1</option>' in site.get("/jobs/a/logs?attempt=1").text
    assert "<h1>a</h1>" in page and 'aria-current="page">Logs' in page
    assert value(site.get("/jobs/a/logs"), "follow") is None
    assert texts(site.get("/parts/jobs/a/logs?attempt=0")) == ["stdout of rank 0 in attempt 0"]


def test_the_stream_that_has_text_is_shown(site, results):
    folder = a_job(results, "a")
    a_run(folder, [(0,)])
    log_path(folder, 0, 0, 0, "stdout").write_text("")
    assert texts(site.get("/jobs/a/logs")) == ["stderr of rank 0 in attempt 0"]
    log_path(folder, 0, 0, 0, "stderr").write_text("")
    assert "Nothing was written" in site.get("/jobs/a/logs").text


def test_of_a_failed_job_the_first_error_is_shown(site, results):
    failure = Failure(ErrorLine("RuntimeError: no", 3, "node-1", None, 0), None)
    folder = a_job(results, "a", state=JobState.FAILED)
    a_run(folder, [(0, 1), (0,)], state=JobState.FAILED, failure=failure)
    assert texts(site.get("/jobs/a/logs")) == ["stderr of rank 3 in attempt 0"]
    assert texts(site.get("/jobs/a/logs?attempt=1")) == ["stdout of rank 0 in attempt 1"]


def test_a_long_file_is_read_in_windows_whose_places_are_addresses(site, results):
    a_run(a_job(results, "a"), [(0,)], text=MANY)
    every = MANY.splitlines()
    reply = site.get("/jobs/a/logs")
    assert texts(reply) == every[-300:] and link(reply, "later") is None
    earlier = site.get(link(reply, "earlier"))
    assert texts(earlier) == every[-600:-300]
    assert texts(site.get(link(earlier, "later"))) == every[-300:]
    assert texts(site.get(link(earlier, "end"))) == every[-300:]
    assert texts(site.get(link(earlier, "start"))) == every[:300]
    assert link(site.get(link(earlier, "start")), "earlier") is None
    place = re.search(
        r'<li id="([^"]+)"><a class="at" tabindex="-1" aria-label="[^"]+" href="([^"]+)#\1"', earlier.text
    )
    around = site.get(html.unescape(place[2]))
    assert f'<li id="{place[1]}" class="target">' in around.text
    assert re.search(r"<mark>(.*?)</mark>", around.text)[1] == every[-600]
    assert texts(around) == every[-750:-450]


@pytest.mark.parametrize(
    "place", ["offset=999999999999", "at=99999999", "offset=-1", "offset=x", "at=1e9", "before=../x"]
)
def test_a_place_that_is_none_is_ignored_or_the_end(site, results, place):
    a_run(a_job(results, "a"), [(0,)])
    assert site.get(f"/jobs/a/logs?{place}").status_code == 200


def test_lines_are_escaped_cleaned_and_masked(site, results):
    a_run(a_job(results, "a"), [(0,)], text=f"{HOSTILE}\n{TOKEN}\n\xa0  two blanks\n")
    for address in (
        "/jobs/a/logs",
        "/jobs/a/logs?grep=.",
        "/jobs/a/logs?rank=all",
        "/jobs/a/logs?grep=script&rank=all",
    ):
        reply = site.get(address)
        assert texts(reply)[0] == "<script>alert(1)</script> &amp; \"'"
        assert "<script>alert" not in reply.text and "\x1b" not in reply.text and TOKEN not in reply.text
        assert 'style="' not in reply.text
    assert texts(site.get("/jobs/a/logs"))[1:] == ["…", "\xa0  two blanks"]
    hostile = site.get("/jobs/a/logs", params={"grep": '"><script>alert(2)</script>'})
    assert "<script>alert" not in hostile.text


@pytest.mark.slow
def test_a_search_shows_the_last_matches_and_goes_on_in_both_directions(site, results):
    a_run(a_job(results, "a"), [(0,)], text=MANY)
    every = [each for each in MANY.splitlines() if re.search("[02468]$", each)]
    reply = site.get("/jobs/a/logs", params={"grep": "[02468]$"})
    assert texts(reply) == every[-300:]
    assert reply.text.count("<mark>8</mark>") == 60
    earlier = site.get(link(reply, "earlier"))
    assert texts(earlier) == every[-600:-300]
    assert texts(site.get(link(earlier, "later"))) == every[-300:]
    first = site.get(link(earlier, "first matches"))
    assert texts(first) == every[:300] and link(first, "first matches") is None
    assert texts(site.get(link(first, "later"))) == every[300:600]
    assert "0 lines of the file match." in site.get("/jobs/a/logs?grep=nothing").text


@pytest.mark.slow
def test_a_long_search_stops_and_says_where_it_goes_on(site, results, monkeypatch):
    monkeypatch.setattr(logs, "_SEARCH_S", 0.0)
    a_run(a_job(results, "a"), [(0,)], text="needle\n" + "hay\n" * 300_000)
    reply = site.get("/jobs/a/logs?grep=needle")
    assert "The search goes on" in reply.text and texts(reply) == []
    for _ in range(9):
        if texts(reply):
            break
        reply = site.get(link(reply, "earlier"))
    assert texts(reply) == ["needle"]
    assert "only the end was searched" in site.get("/jobs/a/logs?grep=needle&rank=all").text


@pytest.mark.parametrize("address", ["/jobs/a/logs", "/parts/jobs/a/logs", "/jobs/a/logs?rank=all"])
def test_a_pattern_that_is_none_is_a_problem_beside_the_form(site, results, address):
    a_run(a_job(results, "a"), [(0,)])
    reply = site.get(address, params={"grep": "(<b>", "rank": "all" if "all" in address else "0"})
    assert reply.status_code == 200
    assert "E728" in reply.text and "(&lt;b&gt;" in reply.text


def test_all_ranks_are_shown_as_blocks(site, results):
    folder = a_job(results, "a")
    a_run(folder, [(0, 1)], text=MANY)
    log_path(folder, 0, 1, 1, "stderr").write_text("")
    reply = site.get("/jobs/a/logs?rank=all&stream=stderr")
    assert re.findall(r"<h2[^>]*><a [^>]*>(.*?)</a>", reply.text) == [
        f"rank {rank} on node {rank // 2}, stderr" for rank in range(3)
    ]
    assert texts(reply) == 3 * MANY.splitlines()[-40:]
    ids = re.findall(r'\bid="([^"]+)"', reply.text)
    assert len(ids) == len(set(ids))
    assert re.findall(r"<h2[^>]*><a [^>]*>(.*?)</a>", site.get("/jobs/a/logs?rank=all&grep=line 7$").text)


def test_the_whole_file_is_handed_out_masked(site, results):
    a_run(a_job(results, "a"), [(0, 1)], text=f"{HOSTILE}\nwith {TOKEN}\n" + MANY)
    address = link(site.get("/jobs/a/logs?rank=2&stream=stderr"), "download")
    reply = site.get(address)
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    assert reply.headers["content-disposition"] == 'attachment; filename="a-attempt-0-rank-2-stderr.log"'
    assert reply.text == f"{HOSTILE}\nwith …\n" + MANY


@pytest.mark.slow
def test_what_a_running_job_writes_is_followed(site, running):
    path = log_path(running([(0,)]), 0, 0, 0, "stdout")
    reply = site.get("/jobs/a/logs")
    path.write_text(path.read_text() + "two\nthr")
    reply = site.get(value(reply, "follow"))
    assert texts(reply) == ["two", "thr"] and "<form" not in reply.text
    path.write_text(path.read_text() + "ee\n" + MANY)
    seen, number = list[str](), 0
    while True:
        reply = site.get(value(reply, "follow"))
        seen += texts(reply)
        number += 1
        if value(reply, "more") is None:
            break
    assert seen == ["three", *MANY.splitlines()] and number == 11
    assert texts(site.get(value(reply, "follow"))) == []
    path.write_text("cut\n")
    reply = site.get(value(reply, "follow"))
    assert [each for each in texts(reply) if not each.startswith("The file is shorter")] == ["cut"]


def test_matches_of_a_running_job_are_followed(site, running):
    path = log_path(running([(0,)]), 0, 0, 0, "stdout")
    reply = site.get("/jobs/a/logs?grep=wo$")
    assert texts(reply) == []
    path.write_text(path.read_text() + "one\ntwo\nt")
    reply = site.get(value(reply, "follow"))
    assert texts(reply) == ["two"]
    path.write_text(path.read_text() + "wo\n")
    assert texts(site.get(value(reply, "follow"))) == ["two"]


def test_following_goes_on_in_newer_attempts(site, running):
    began = 1_700_000_000.0
    folder = running([(0, 1)], begun=began)
    reply = site.get("/jobs/a/logs?rank=2&stream=stdout")
    path = log_path(folder, 0, 1, 0, "stdout")
    running([(0, 1), (0,), (0, 1)], begun=began)
    path.write_text(path.read_text() + "last words")
    reply = site.get(value(reply, "follow"))
    first, heading = texts(reply)
    assert first == "last words" and heading.startswith(
        "Attempt 1 begins, with 2 ranks. It has no such log of rank 2"
    )
    reply = site.get(value(reply, "follow"))
    assert texts(reply)[0] == "stdout of rank 0 in attempt 1"
    assert texts(reply)[1] == "Attempt 2 begins, with 4 ranks."
    reply = site.get(value(reply, "follow"))
    assert texts(reply) == ["stdout of rank 0 in attempt 2"]
    assert value(reply, "follow") and value(reply, "more") is None
    assert value(site.get("/jobs/a/logs?attempt=0&rank=0"), "follow") is None


def test_a_job_that_is_launched_again_is_followed_from_its_first_attempt(site, running):
    folder = running([(0,), (0,)], begun=1_700_000_000.0)
    reply = site.get("/jobs/a/logs")
    state = folder / "run" / "state.json"
    state.unlink()
    reply = site.get(value(reply, "follow"))
    assert texts(reply) == [] and value(reply, "more") is None
    running([(0,), (0,)], begun=1_700_009_000.0, text="anew\n", replaces=True)
    reply = site.get(value(reply, "follow"))
    heading, first, following = texts(reply)
    assert heading == "The job was launched again. Attempt 0 begins, with 2 ranks."
    assert (first, following) == ("anew", "Attempt 1 begins, with 2 ranks.")


def test_following_ends_with_the_job(site, running, results):
    folder = running([(0,)])
    reply = site.get("/jobs/a/logs")
    assert value(site.get("/jobs/a/logs?rank=all"), "refresh")
    record = registry.submitted(folder)
    path = log_path(folder, 0, 0, 0, "stdout")
    path.write_text(path.read_text() + "the last line\n")
    registry.write(folder, replace(record, ended=JobStatus(JobState.SUCCEEDED, 0, "completed")))
    reply = site.get(value(reply, "follow"))
    assert texts(reply) == ["the last line"] and value(reply, "follow") is None
    assert value(site.get("/jobs/a/logs?rank=all"), "refresh") is None


OUTSIDE = [
    "..",
    "../../../../etc/passwd",
    "/etc/passwd",
    "%2e%2e%2f",
    "0/../0",
    "stdout.log",
    "\x00",
    "0 ",
    "٠",
    "-1",
]


@pytest.mark.parametrize("name", ["attempt", "rank", "stream"])
@pytest.mark.parametrize("text", OUTSIDE)
def test_no_part_of_an_address_is_a_path(site, results, name, text):
    a_run(a_job(results, "a"), [(0,)])
    (results / "secret").write_text("root:x:0")
    for path in ("/jobs/a/logs", "/parts/jobs/a/logs", "/jobs/a/raw"):
        given = {"attempt": "0", "rank": "0", "stream": "stdout", name: text}
        for further in ({}, {"after": "0", "began": "../x"}):
            reply = site.get(path, params=given | further)
            assert reply.status_code in (200, 404)
            assert "root:" not in reply.text
            if text != "0 " and not further:
                assert reply.status_code == 404
    for path in ("/jobs/..%2fsecret/logs", "/jobs/%2e%2e/raw", "/jobs/secret/raw", "/parts/jobs/nothing/logs"):
        assert site.get(path).status_code == 404


def test_a_bundle_that_was_never_launched_and_a_job_without_workers_have_no_log(site, results):
    a_bundle(results, "dry")
    assert "never launched" in site.get("/jobs/dry/logs").text
    assert site.get("/jobs/dry/raw?attempt=0&rank=0&stream=stdout").status_code == 404
    a_job(results, "unstarted")
    reply = site.get("/jobs/unstarted/logs")
    assert "There is no line yet." in reply.text
    assert site.get("/jobs/unstarted/logs?rank=..").status_code == 404
    assert site.get("/jobs/unstarted/logs?stream=../x").status_code == 404


def test_a_damaged_state_is_a_problem(site, results):
    folder = a_job(results, "a")
    a_run(folder, [(0,)])
    (folder / "run" / "state.json").write_text("{")
    assert "E414" in site.get("/jobs/a/logs").text
    assert site.get("/parts/jobs/a/logs").status_code == 200
    with pytest.raises(ProblemsFound, match="E414"):
        site.get("/jobs/a/raw?attempt=0&rank=0&stream=stdout")


def test_a_cluster_that_does_not_answer_is_a_problem(site, results, monkeypatch):
    monkeypatch.setenv("PATH", str(results))
    a_job(results, "far", backend="slurm")
    reply = site.get("/jobs/far/logs")
    assert reply.status_code == 200
    assert 'class="problem"' in reply.text and "<form" in reply.text


def test_few_pages_wait_for_clusters_at_the_same_time(site, results, monkeypatch):
    monkeypatch.setattr(logs, "_ASKING", threading.BoundedSemaphore(1))
    a_job(results, "far", backend="slurm")
    with logs._ASKING:
        assert site.get("/jobs/far/logs").status_code == 503
