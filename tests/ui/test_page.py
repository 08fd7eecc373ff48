"""The page in a real browser, as a process of its own serves it."""

import contextlib
import json
import os
import re
import shutil
from pathlib import Path

import page_server
import pytest
from background import await_true
from browser import no_faults, pictured, serious_faults
from launch_records import Job as Course
from log_runs import log_path
from result_folders import a_job

import launcher
from launcher import timeline
from launcher.job_store import registry
from launcher.model.failure import Cause, ErrorLine, Failure
from launcher.model.job_spec import JobHandle, JobState, JobStatus
from launcher.operator.snapshot import Attempt, Snapshot, publish
from launcher.timeline import to_json

ARGS = "recipes.training_config.training_args"

pytest_plugins = ("browser",)
pytestmark = pytest.mark.slow
HOSTILE = """"><img src=x onerror=document.title='owned'><script>document.title='owned'</script>\x1b]0;owned\x07'"""
PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"
LLAMA = "fine-tuning/llama/llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lora"
VIEWS = ("/jobs", "/recipes", "/sweeps", "/compare")
OF_A_JOB = ("", "/logs", "/plan", "/configuration", "/files")


def finished(results: Path, name: str, status: JobStatus, **settings) -> Path:
    """Write a whole bundle, its record, and the records of an elastic run with two changes of size."""
    session = launcher.Session(suffix=lambda: name[-5:], user="ada", clock=lambda: "2026-01-02T03:04:05+00:00")
    plan = launcher.compile("tiny_lm_cpu", {"base_results_dir": str(results), "run.name": name[:-6]}, session=session)
    folder = plan.write()
    handle = JobHandle("local", folder.name, folder)
    registry.write(
        folder,
        registry.JobRecord(handle, plan.bundle.digest, "2026-01-02T03:04:06+00:00", "ada", ended=status, **settings),
    )
    course = Course(folder / "run", nodes=2)
    course.start([0, 1])
    course.train(60)
    course.save()
    course.decide("scale-up", 3, course.now)
    course.event("stopping", 0.1, attempt=0, nodes=[0, 1], graceful=True)
    course.event("stopped", 0.6, attempt=0, saved=True)
    course.start([0, 1, 2])
    course.train(80)
    course.event("fault", 0.1, message="node 2 was lost", node=2, cause="lost")
    course.decide("recover", 2, course.now)
    course.event("stopped", 0.4, attempt=1, saved=False)
    course.start([0, 1], step=100)
    course.train(60)
    course.save()
    course.event("ended", 1.0, message=status.message, state=status.state.value)
    (folder / "run" / "timeline.json").write_text(json.dumps(to_json(timeline.read(folder / "run")), indent=1))
    nodes = ((0, 1), (0, 1, 2), (0, 1))
    attempts = tuple(Attempt(number, 0, each, 1_700_000_000.0) for number, each in enumerate(nodes))
    publish(folder / "run", Snapshot(status.state, 0, status.message, 2, os.getpid(), 0, attempts))
    for attempt in attempts:
        for rank in range(2 * len(attempt.nodes)):
            for stream, text in (
                ("stdout", f"attempt {attempt.number} begins\nstep 1 loss 2.0\n{HOSTILE}\n"),
                ("stderr", ""),
            ):
                path = log_path(folder, attempt.number, rank // 2, rank % 2, stream)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Serve jobs of several states, two of them with a course; yield the server and the results folder."""
    base = tmp_path_factory.mktemp("site")
    results = base / "results"
    finished(results, "elastic-aaaaa", JobStatus(JobState.SUCCEEDED, 0, "completed", restarts=2))
    cause = Cause("cuda_oom", "memory", "The GPU had too little memory.", "recipes.training_config.x=1", "docs")
    line = ErrorLine("RuntimeError: CUDA out of memory", 0, "node-0", 1_700_000_050.0, 1)
    failed = JobStatus(JobState.FAILED, 0, "rank 0 failed", restarts=2)
    finished(results, "broken-bbbbb", failed, failure=Failure(line, cause))
    a_job(results, "strange", state=JobState.FAILED, message=HOSTILE, recipe=HOSTILE, user=HOSTILE)
    for number in range(130):
        a_job(results, f"many-{number:03}", submitted=f"2025-01-01T00:{number // 60:02}:{number % 60:02}+00:00")
    with page_server.served(results, base / "state") as server:
        yield server, results


@pytest.fixture
def opened(site, window):
    """Return a function that opens a path in a window of its own."""

    def go(path: str = "/jobs", **settings):
        page = window(**settings)
        page.goto(site[0].url)
        page.goto(site[0].origin + path)
        return page

    return go


@pytest.mark.parametrize("name", ["ui-jobs.png", "ui-job.png", "ui-plan.png"])
def test_the_pictures_in_the_pages_are_of_this_page(opened, site, name, request):
    """They are looked at, and written anew with --rewrite-goldens. Fonts differ by machine, so bytes may, too."""
    paths = {
        "ui-jobs.png": "/jobs?q=tiny",
        "ui-job.png": "/jobs/elastic-aaaaa",
        "ui-plan.png": f"/recipes/{LLAMA}?cluster=k8s&elastic=true",
    }
    page = opened(paths[name], viewport={"width": 1180, "height": 760}, timezone_id="UTC", locale="en-GB")
    page.locator("main h1").wait_for()
    if request.config.getoption("--rewrite-goldens"):
        pictured(page, PICTURES / name)
    assert (PICTURES / name).stat().st_size < 250_000


def test_the_page_opens_in_a_browser(tmp_path, window):
    (tmp_path / "results").mkdir()
    with page_server.served(tmp_path / "results", tmp_path / "state") as server:
        page = window()
        page.goto(server.url)
        assert page.title() == "Jobs · recipes"
        assert "token" not in page.url
        with no_faults(page):
            page.get_by_role("link", name="Recipes", exact=True).click()
            page.get_by_role("heading", name="Recipes").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", [*VIEWS, *(f"/jobs/elastic-aaaaa{each}" for each in OF_A_JOB), "/jobs/broken-bbbbb",
                                  "/recipes/training/tiny/tiny_lm_cpu", "/nothing"])  # fmt: skip
def test_every_view_is_free_of_serious_faults(opened, path, scheme, tmp_path):
    page = opened(path, color_scheme=scheme)
    assert serious_faults(page) == []
    assert page.locator("main h1").count() == 1
    if path != "/nothing":
        assert page.faults == []
    pictured(page, tmp_path / "view.png", full_page=True)
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_filters_live_in_the_address_and_answer_while_they_are_typed(opened, site):
    page = opened("/jobs")
    with no_faults(page):
        assert page.locator("tbody tr").count() == 100
        page.get_by_label("Search").fill("broken")
        page.locator("tbody tr").nth(1).wait_for(state="detached")
        assert page.locator("tbody tr").count() == 1
        assert page.url.endswith("/jobs?q=broken")
        page.reload()
        assert page.locator("tbody th a").all_inner_texts() == ["broken-bbbbb"]
        page.goto(f"{site[0].origin}/jobs?state=failed")
        assert page.locator("tbody tr").count() == 2
        page.goto(f"{site[0].origin}/jobs?page=2")
        assert page.locator("tbody tr").count() == 33


def test_the_page_works_without_its_script(opened):
    page = opened("/jobs", java_script_enabled=False)
    page.get_by_label("Search").fill("elastic")
    page.get_by_role("button", name="Filter").click()
    assert page.locator("tbody tr").count() == 1
    page.get_by_role("link", name="elastic-aaaaa").click()
    assert page.locator("svg.chart").count() >= 3
    page.get_by_role("link", name="Logs").click()
    assert "attempt 2 begins" in page.locator("main").inner_text()


def test_the_keyboard_is_enough(opened):
    page = opened("/jobs")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.name") == "q"
    page.keyboard.type("elastic")
    page.locator("tbody tr").nth(1).wait_for(state="detached")
    page.get_by_role("link", name="elastic-aaaaa").focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Nodes over time").wait_for()


def test_a_job_shows_its_course_its_failure_and_who_set_each_value(opened, site):
    page = opened("/jobs/broken-bbbbb")
    assert page.locator("footer").inner_text().endswith(str(site[1]))
    text = page.locator("main").inner_text()
    for each in ("CUDA out of memory", "The GPU had too little memory.", "recipes.training_config.x=1", "rank 0"):
        assert each in text
    page.get_by_text("As a table").click()
    assert page.locator("#transition-rows tbody tr").count() == 3
    page.get_by_role("link", name="Configuration").click()
    page.get_by_role("searchbox", name="Search").fill("learning_rate")
    page.keyboard.press("Enter")
    rows = page.locator("tbody tr").filter(has_text="training_args.learning_rate")
    assert "tiny/lm.yaml:" in rows.first.inner_text()
    page.get_by_role("link", name="Files").click()
    page.get_by_role("link", name="recipe.yaml").click()
    assert "training_config" in page.locator("#content").inner_text()
    page.get_by_role("link", name="Plan", exact=True).click()
    assert page.locator("tbody tr").count() == 4


@pytest.mark.parametrize(
    "path",
    [
        "/jobs?q=strange",
        "/jobs/strange",
        "/jobs/elastic-aaaaa/logs",
        f"/jobs?q={HOSTILE}",
        "/jobs/strange/logs",
        "/compare?a=strange&b=elastic-aaaaa",
    ],
)
def test_no_text_of_a_job_runs_as_a_script(opened, path):
    page = opened(path)
    page.wait_for_load_state("load")
    assert page.title() != "owned"
    assert page.locator("main img").count() == 0
    assert "\x1b" not in page.content()
    assert [each for each in page.faults if "owned" in each] == []


def test_the_page_of_another_site_can_neither_read_nor_act(site, window):
    server, _ = site
    page = window()
    page.goto(server.url)
    page.context.route(
        "http://evil.test/**", lambda route: route.fulfill(body="<h1>evil</h1>", content_type="text/html")
    )
    page.goto("http://evil.test/")
    for call in (
        f"fetch('{server.origin}/jobs', {{credentials: 'include'}}).then(() => 'read', () => 'blocked')",
        f"fetch('{server.origin}/jobs/many-000/actions/cancel', {{method: 'POST', credentials: 'include',"
        " headers: {'content-type': 'application/x-www-form-urlencoded'}}).then(() => 'read', () => 'blocked')",
        f"new Promise((done) => {{ const s = new EventSource('{server.origin}/live/jobs', {{withCredentials: true}});"
        " s.onmessage = () => done('read'); s.onerror = () => done('blocked'); })",
    ):
        assert page.evaluate(call) == "blocked"
    page.evaluate(
        f"() => {{ const f = document.createElement('form'); f.method = 'post'; document.body.append(f);"
        f" f.action = '{server.origin}/jobs/many-000/actions/cancel'; f.submit(); }}"
    )
    page.wait_for_url(re.compile("127.0.0.1"))
    assert page.locator("body").inner_text().startswith(("Not signed in", "This request did not come"))
    page.goto("http://evil.test/")
    page.evaluate(
        f"() => {{ const f = document.createElement('iframe'); f.src = '{server.origin}/jobs';"
        " document.body.append(f); }"
    )
    page.wait_for_timeout(300)
    assert all("Jobs" not in (frame.title() or "") for frame in page.frames[1:] if "127.0.0.1" in frame.url)


def test_nothing_is_loaded_from_elsewhere(site, window):
    page, asked = window(), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(site[0].url)
    for path in (*VIEWS, "/jobs/elastic-aaaaa", "/recipes/training/tiny/tiny_lm_cpu"):
        page.goto(site[0].origin + path)
    assert asked
    assert all(url.startswith(site[0].origin) for url in asked)


def test_a_page_that_is_printed_has_its_content_and_no_controls(opened):
    page = opened("/jobs/elastic-aaaaa")
    page.emulate_media(media="print")
    assert not page.locator("header.top").is_visible()
    assert page.locator("svg.chart").first.is_visible()


def test_two_tabs_follow_and_survive_a_new_server_and_a_removed_job(tmp_path, window):
    results = tmp_path / "results"
    folder = a_job(results, "first", state=None, backend="sm_jobs")
    shutil.rmtree(folder)
    a_job(results, "first")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(page_server.served(results, tmp_path / "state"))
        port = server.origin.rpartition(":")[2]
        tabs = [window(), window()]
        for tab in tabs:
            tab.goto(server.url)
        a_job(results, "second", submitted="2026-03-01T00:00:00+00:00")
        for tab in tabs:
            tab.get_by_role("link", name="second").wait_for()
        tabs[1].goto(f"{server.origin}/jobs/second")
        server.process.terminate()
        server.process.wait(30)
        tabs[0].locator("#connection").wait_for(state="visible")
        a_job(results, "third", submitted="2026-04-01T00:00:00+00:00")
        shutil.rmtree(results / "second")  # its page asks anew, and is refused
        again = stack.enter_context(page_server.served(results, tmp_path / "state", "--port", port))
        assert again.url == server.url
        tabs[0].get_by_role("link", name="third").wait_for()
        tabs[0].locator("#connection").wait_for(state="hidden")
        tabs[0].reload()
        tabs[0].get_by_role("link", name="third").wait_for()
        tabs[0].get_by_role("link", name="second").wait_for(state="detached")
        tabs[1].get_by_text("it may have been removed").wait_for()
        tabs[0].goto(f"{server.origin}/jobs/third")
        tabs[0].locator("#connection").wait_for(state="hidden")
        shutil.rmtree(results / "third")
        tabs[0].get_by_text("it may have been removed").wait_for()
        tabs[1].reload()
        tabs[1].get_by_role("heading", name="Not found").wait_for()


@pytest.mark.whole_job
@pytest.mark.sample
def test_a_running_job_is_followed_scaled_and_cancelled_from_the_page(tmp_path, window):
    results = tmp_path / "results"
    results.mkdir()
    with page_server.served(results, tmp_path / "state", "--write") as server:
        page = window()
        page.on("dialog", lambda dialog: dialog.accept())
        page.goto(server.url)
        page.goto(f"{server.origin}/recipes/training/tiny/tiny_lm_cpu")
        page.get_by_label("Further overrides").fill(
            f"{ARGS}.max_epochs=5000\n{ARGS}.min_step_seconds=0.05\nrecipes.training_config.mlflow.enabled=false"
        )
        page.get_by_role("button", name="Launch").wait_for()
        await_true(lambda: "max_epochs=5000" in page.locator("#command").inner_text())
        page.get_by_role("button", name="Launch").dblclick()  # is sent once
        page.wait_for_url(re.compile(r"/jobs/tiny-lm-cpu-\w{5}$"))
        (job,) = launcher.jobs(results)
        page.locator(".state-running").wait_for()
        page.get_by_role("heading", name="Throughput").or_(page.locator("svg.chart-lines").first).first.wait_for()
        page.locator("#scale select").select_option("3")
        page.get_by_role("button", name="Scale").click()
        page.locator(".figures div").filter(has_text="nodes").get_by_text("3", exact=True).wait_for()
        assert job.status.nodes == 3
        page.get_by_role("button", name="Cancel").click()
        page.locator(".state-cancelled").wait_for()
        assert job.status.state is JobState.CANCELLED
        with no_faults(page):
            page.get_by_role("link", name="Logs").click()
            page.get_by_text("step").first.wait_for()
