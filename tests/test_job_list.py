"""Listing, filtering, naming and removing the jobs of a results folder."""

import fcntl
import json
import os
import pty
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import commands
import pytest
from conftest import ELASTIC, LLAMA_K8S, ROOT, frozen_context

from benchmarks import job_store
from launcher import pipeline
from launcher.api import comparing
from launcher.bundle import store as bundles
from launcher.cli import launch
from launcher.cli import main as cli
from launcher.common.locks import LOCK_FILE
from launcher.common.names import ADOPTED_FILE, JOB_FILE, NAME_FILE
from launcher.common.problems import Problem, ProblemsFound, fail
from launcher.job_store import registry, removal
from launcher.job_store.listing import STATES, Filter, ListedJob, listing
from launcher.model import backend_registry
from launcher.model.job_spec import Bundle, JobHandle, JobState, JobStatus
from launcher.operator.snapshot import OPERATOR_LOG

UNTRACKED = "recipes.training_config.mlflow.enabled=false"
NOW = datetime.now(UTC)


def at(age):
    return (NOW - age).isoformat(timespec="seconds")


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Return a results folder: of each state a job that its backend reports, and a dry run."""
    monkeypatch.chdir(tmp_path)
    context = frozen_context(tmp_path)._replace(created=at(timedelta(days=40)))
    words = (
        "recipes=training/tiny/tiny_lm_cpu",
        "cluster=k8s",
        "container=me/image:1",
        "instance_type=ml.m5.2xlarge",
    )
    first = pipeline.render(pipeline.prepare(words, context), context)
    pipeline.write(first)
    dry = first.directory.rename(tmp_path / "results" / "dry")
    llama = pipeline.render(pipeline.prepare((*LLAMA_K8S, ELASTIC), context), context)
    pipeline.write(llama)
    llama.directory.rename(tmp_path / "results" / "succeeded")
    ages = {"running": timedelta(hours=2), "failed": timedelta(days=3), "succeeded": timedelta(days=30)}
    for state, age in ages.items():
        folder = tmp_path / "results" / state
        if not folder.exists():
            shutil.copytree(dry, folder)
        backend = "local" if state == "failed" else "k8s"
        handle = JobHandle(backend, state, folder, native_id=state, namespace="team", context="prod", uid=state)
        registry.write(folder, registry.JobRecord(handle, "digest", at(age), "ada"))
    return tmp_path / "results"


class Cluster:
    """A cluster whose jobs are named after their states."""

    name = "k8s"

    def __init__(self):
        self.asked = []
        self.changes = {}

    def status(self, handle):
        self.asked.append(handle.native_id)
        if handle.native_id == "unknown":
            raise ProblemsFound((Problem("E341", "cluster", "does not answer"),))
        return JobStatus(JobState(self.changes.get(handle.native_id, handle.native_id)), 1)


@pytest.fixture
def cluster(monkeypatch):
    found = Cluster()
    monkeypatch.setattr(backend_registry, "load_backend", lambda name: found)
    return found


def make_unknown(results):
    folder = results / "unknown"
    shutil.copytree(results / "running", folder)
    record = json.loads((folder / JOB_FILE).read_text())
    record["native"]["native_id"] = record["job_name"] = "unknown"
    (folder / JOB_FILE).write_text(json.dumps(record))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((), {"running", "failed", "succeeded"}),
        (("--all",), {"running", "failed", "succeeded", "dry"}),
        (("--state", "failed"), {"failed"}),
        (("--state", "failed", "--state", "running"), {"failed", "running"}),
        (("--state", "rendered"), {"dry"}),
        (("--backend", "k8s"), {"running", "succeeded"}),
        (("--backend", "k8s", "--all"), {"running", "succeeded", "dry"}),
        (("--recipe", "LLAMA3"), {"succeeded"}),
        (("--recipe", "tiny"), {"running", "failed"}),
        (("--older-than", "1d"), {"failed", "succeeded"}),
        (("--older-than", "1w", "--all"), {"succeeded", "dry"}),
        (("--newer-than", "12h"), {"running"}),
        (("--newer-than", "200000w"), {"running", "failed", "succeeded"}),
        (("--older-than", "60m", "--newer-than", "4d"), {"running", "failed"}),
        (("--state", "failed", "--recipe", "llama"), set()),
    ],
    ids=lambda value: " ".join(sorted(value)),
)
def test_jobs_are_filtered(results, cluster, capsys, words, found):
    assert cli.run(["jobs", *words, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {each["job"] for each in listed} == found


@pytest.mark.parametrize("created", ["2026-01-31T12:00:00", "2026-01-31", "yesterday", 3])
def test_a_bundle_of_an_odd_time_hides_no_job(results, cluster, capsys, created):
    manifest = results / "dry" / "bundle.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"created": created}))
    for words in (["--newer-than", "12h"], ["--older-than", "1w"]):
        assert cli.run(["jobs", "--all", *words]) == 0
    assert cli.run(["jobs", "remove", "--all", "--older-than", "520w", "--yes"]) == 0
    assert cluster.asked == ["running", "succeeded"]


def test_a_cluster_is_asked_only_for_jobs_that_a_filter_may_select(results, cluster, capsys):
    assert cli.run(["jobs", "--older-than", "1w"]) == 0
    assert cluster.asked == ["succeeded"]


def test_dry_runs_are_left_out_and_mentioned(results, cluster, capsys):
    assert cli.run(["jobs"]) == 0
    said = capsys.readouterr()
    assert "dry" not in said.out and said.err == "1 dry run not shown; --all shows it\n"
    assert cli.run(["jobs", "--state", "cancelled"]) == 0
    assert capsys.readouterr().out == ""


def test_conditions_that_no_job_can_meet_are_problems_all_at_once(results, cluster, capsys):
    words = ["--state", "fialed", "--backend", "k9s", "--older-than", "week", "--newer-than", "-1d"]
    assert cli.run(["jobs", *words]) == 2
    err = capsys.readouterr().err
    assert err.count("E818 --") == 4 and "did you mean failed" in err and "did you mean k8s" in err
    assert cli.run(["jobs", "--cluster", "--state", "failed"]) == 2
    assert "E801 recipes jobs" in capsys.readouterr().err
    assert set(STATES) >= {state.value for state in JobState}


def test_remove_shows_the_states_of_named_jobs(results, cluster, capsys):
    assert cli.run(["jobs", "remove", "failed", "dry", "--yes"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert {row[0]: row[1] for row in rows[1:3]} == {"failed": "failed", "dry": "rendered"}


def test_remove_deletes_what_the_filters_select_and_has_ended(results, cluster, capsys):
    outside = results.parent / "precious"
    outside.mkdir()
    (outside / "file").write_text("data")
    (results / "failed" / "link").symlink_to(outside)
    (results / "failed" / "file").symlink_to(outside / "file")
    assert cli.run(["jobs", "remove", "--backend", "local", "--yes"]) == 0
    said = capsys.readouterr()
    assert "failed" in said.out and "KiB" in said.out and "removed 1 bundle" in said.out
    assert sorted(path.name for path in results.iterdir()) == ["dry", "running", "succeeded"]
    assert (outside / "file").read_text() == "data"


def test_remove_keeps_what_may_still_run_and_says_so(results, cluster, capsys):
    make_unknown(results)
    before = sorted(path.name for path in results.iterdir())
    assert cli.run(["jobs", "remove", "--newer-than", "1d", "--yes"]) == 0
    said = capsys.readouterr()
    assert "kept running: its job has not ended: running" in said.err
    assert "kept unknown: the state of its job is unknown: does not answer" in said.err
    assert sorted(path.name for path in results.iterdir()) == before


def test_remove_refuses_named_jobs_all_at_once_and_removes_none(results, cluster, capsys):
    make_unknown(results)
    (results / "link").symlink_to(results / "failed")
    other = results.parent / "other" / "elsewhere"
    shutil.copytree(results / "failed", other)
    before = sorted(path.name for path in results.iterdir())
    names = ["running", "unknown", "nothing", "link", "../other/elsewhere", str(other), "..", "failed"]
    assert cli.run(["jobs", "remove", *names, "--yes"]) == 2
    err = capsys.readouterr().err
    assert "7 problems; nothing was done" in err
    assert err.count("E718") == 5 and err.count("E703") == 2
    assert sorted(path.name for path in results.iterdir()) == before and other.exists()
    assert cli.run(["jobs", "remove", "results/failed", "--json", "--yes"]) == 0
    (removed,) = json.loads(capsys.readouterr().out)
    assert removed["job"] == "failed" and removed["bytes"] > 1000 and not (results / "failed").exists()


def test_a_job_here_that_has_lost_its_run_folder_is_unknown_and_can_be_removed(results, capsys):
    assert cli.run(["jobs", "--backend", "local", "--json"]) == 0
    assert [(each["job"], each["state"]) for each in json.loads(capsys.readouterr().out)] == [("failed", None)]
    for command in (["status", "failed"], ["wait", "failed"], ["cancel", "failed"]):
        assert cli.run(command) == 2
        assert "E414" in (err := capsys.readouterr().err) and "run/state.json\n" in err
    assert cli.run(["jobs", "remove", "failed", "--yes"]) == 0
    assert not (results / "failed").exists()


@pytest.mark.parametrize("words", [[], ["--all"], ["failed", "--state", "failed"], ["failed", "--all"]], ids=" ".join)
def test_remove_needs_jobs_or_filters(results, cluster, capsys, words):
    assert cli.run(["jobs", "remove", "--yes", *words]) == 2
    assert "E801 recipes jobs remove" in capsys.readouterr().err and (results / "failed").exists()


def test_nothing_is_removed_through_a_link(results, cluster, capsys):
    linked = results.parent / "linked"
    linked.symlink_to(results)
    for words in (["--older-than", "1d"], ["failed"]):
        assert cli.run(["jobs", "remove", "--folder", "linked", *words, "--yes"]) == 2
        assert "E718 linked" in capsys.readouterr().err
    (results / "another").symlink_to(results / "failed")
    assert cli.run(["jobs", "remove", "--state", "failed", "--yes"]) == 0
    assert "kept another: is a link" in capsys.readouterr().err
    assert not (results / "failed").exists() and (results / "another").is_symlink()


def test_what_a_removal_that_was_killed_left_is_no_job_and_is_removed_by_the_next(results, cluster, capsys):
    left = results / ".succeeded.removed-by-recipes"
    (results / "succeeded").rename(left)
    assert cli.run(["jobs", "--all", "--json"]) == 0
    assert {each["job"] for each in json.loads(capsys.readouterr().out)} == {"running", "failed", "dry"}
    assert cli.run(["jobs", "remove", "dry", "--yes"]) == 0
    assert not left.exists() and (results / "failed").exists()


def test_a_job_with_the_name_of_one_whose_removal_was_killed_is_removed(results, cluster):
    (results / ".dry.removed-by-recipes" / "run").mkdir(parents=True)
    assert cli.run(["jobs", "remove", "dry", "--yes"]) == 0
    assert not list(results.glob("*dry*")) and not list(results.glob(".*dry*"))


def test_a_job_that_runs_here_is_kept_though_its_record_says_nothing_of_it(results, cluster, capsys):
    (results / "dry" / "run").mkdir()
    with (results / "dry" / "run" / LOCK_FILE).open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert cli.run(["jobs", "remove", "dry", "--yes"]) == 2
        assert "E718 dry" in (err := capsys.readouterr().err) and "running on this machine" in err
    assert cli.run(["jobs", "remove", "dry", "--yes"]) == 0


def test_a_job_that_is_launched_meanwhile_is_kept(results, cluster):
    chosen = removal.named(results, ["failed", "dry"])
    cluster.changes["failed"] = "running"
    registry.write(results / "failed", replace(registry.read(results / "failed"), ended=None))  # as a launch does
    with registry.launching(results / "dry"):
        outcome = []
        thread = threading.Thread(target=lambda: outcome.extend(map(removal.remove, chosen)))
        thread.start()
        thread.join()
    assert outcome == [False, False] and (results / "failed").exists() and (results / "dry").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "is_removed"), [("y\n", True), ("\n", False), ("n\n", False), ("\x04", False)])
def test_remove_asks_on_a_terminal(results, answer, is_removed):
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "dumb", "COLUMNS": "100", "PYTHONPATH": str(ROOT)}
        os.execv(sys.executable, [sys.executable, "-m", "launcher", "jobs", "remove", "dry"])
    written = b""
    try:
        while part := os.read(terminal, 65536):
            written += part
            if b"[y/N]" in written and answer:
                os.write(terminal, answer.encode())
                answer = ""
    except OSError:  # the terminal is gone with its last process
        pass
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0
    assert "remove 1 bundle, " in written.decode() and (results / "dry").exists() is not is_removed


@pytest.mark.slow
def test_without_a_terminal_nothing_is_removed_unasked(results):
    command = [sys.executable, "-m", "launcher", "jobs", "remove", "dry"]
    done = commands.run(
        command, input="y\n", capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 2 and "E718 --yes" in done.stderr and (results / "dry").exists()


def main(*words, cwd):
    command = [sys.executable, str(ROOT / "main.py"), *words]
    return commands.run(command, cwd=cwd, capture_output=True, text=True, timeout=200)


@pytest.mark.slow
def test_a_job_s_name_stands_for_it_wherever_a_job_is_named(tmp_path, monkeypatch, capsys):
    done = main("--name", "baseline", "dry_run=true", UNTRACKED, cwd=tmp_path)
    assert done.returncode == 0 and "(baseline)" in done.stdout
    monkeypatch.chdir(tmp_path)
    (folder,) = Path("results").iterdir()
    digest = bundles.read(folder)[0].digest
    assert bundles.locate("baseline") == bundles.locate_job("results/baseline") == folder
    assert comparing.of_bundle(bundles.locate("baseline"), None, is_sized=False).title.startswith(str(folder))
    assert "baseline" in bundles.job_names()
    handle = JobHandle("local", folder.name, folder.resolve(), native_id="1")
    registry.record(Bundle(folder.name, folder, {}, digest), handle, "ada")
    (folder / "run").mkdir()
    (folder / "run" / OPERATOR_LOG).touch()  # its operator is about to begin
    assert cli.run(["status", "baseline"]) == 0
    assert "name      baseline\n" in capsys.readouterr().out
    assert cli.run(["status", "baseline", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "baseline"
    assert cli.run(["jobs"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["job", "name"] and row.split()[:2] == [folder.name, "baseline"]
    for command in ("logs", "events"):
        assert cli.run([command, "baseline"]) == 0
    assert cli.run(["status", "baselin"]) == 2
    assert "did you mean baseline?" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--name", "base line"), "is not a valid job name"),
        (("--name", "../x"), "is not a valid job name"),
        (("--name=-x",), "has no value"),
        (("--name",), "has no value"),
        (("--name", "x", "--name=y"), "is given twice"),
        (("--name", "taken"), "is already the name of"),
        (("--name", "x" * 64), "is not a valid job name"),
        (("--name", "x", "--multirun", "recipes.trainer.num_nodes=1,2"), "--multirun starts several"),
        (("--name", "x", "--multi", "recipes.trainer.num_nodes=1,2"), "--multirun starts several"),
    ],
    ids=["blank", "path", "flag", "missing", "twice", "taken", "long", "several", "abbreviated"],
)
def test_a_name_that_cannot_be_given_is_a_problem_and_nothing_is_written(tmp_path, words, says):
    assert main("--name", "taken", "dry_run=true", UNTRACKED, cwd=tmp_path).returncode == 0
    before = list((tmp_path / "results").iterdir())
    done = main("dry_run=true", UNTRACKED, *words, cwd=tmp_path)
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr
    assert list((tmp_path / "results").iterdir()) == before


def test_faults_of_the_name_and_of_the_recipe_are_reported_together(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert launch.main(["dry_run=true", "recipes.nonsense=1"], "a b") == 2
    err = capsys.readouterr().err
    assert "E717 --name" in err and "E101 recipes.nonsense" in err and not Path("results").exists()


@pytest.mark.slow
def test_a_bundle_is_named_when_it_is_rendered_or_launched(recipes, monkeypatch):
    assert recipes("render", "tiny_lm_cpu", UNTRACKED, "--name", "first")[0] == 0
    assert recipes("render", "tiny_lm_cpu", UNTRACKED, "--name", "first")[0] == 2
    assert recipes("render", "tiny_lm_cpu", UNTRACKED, "--name", "x", "--stdout")[0] == 2
    (folder,) = Path("results").iterdir()
    launched = []
    monkeypatch.setattr(launch, "launch", lambda bundle, *_, **__: launched.append(bundle.digest) or 0)
    assert recipes("launch", "first", "--name", "second")[0] == 0
    assert launched == [bundles.read(folder)[0].digest]
    assert bundles.given_name(folder) == "second" and (folder / NAME_FILE).read_text() == "second\n"
    assert recipes("launch", "first")[0] == 2

    def refuse(*_, **__):
        raise fail("E405", "cluster", "this bundle's job is already running")

    monkeypatch.setattr(launch, "launch", refuse)
    assert recipes("launch", "second", "--name", "third")[0] == 2
    assert bundles.given_name(folder) == "second"
    (folder / NAME_FILE).unlink()
    assert recipes("launch", folder.name, "--name", "third")[0] == 2
    assert bundles.given_name(folder) is None


def test_of_two_jobs_that_are_named_alike_at_once_one_is_refused(results):
    from launcher.job_store import job_names

    outcomes = []

    def give(folder):
        try:
            job_names.give(folder, "same")
            outcomes.append("given")
        except ProblemsFound as error:
            outcomes.append(error.problems[0].code)

    threads = [threading.Thread(target=give, args=(results / name,)) for name in ("dry", "failed", "succeeded")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["E717", "E717", "given"]


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--version"], ["--vers"], ["--version", "recipes=nonsense"]], ids=" ".join)
def test_version_is_this_program_s(tmp_path, words):
    project = (ROOT / "pyproject.toml").read_text().partition('name = "')[2].partition('"')[0]
    done = main(*words, cwd=tmp_path)
    name, version = done.stdout.split()
    assert (done.returncode, done.stderr, name) == (0, "", project)
    assert version.count(".") == 2
    if words == ["--version"]:
        command = [sys.executable, "-m", "launcher", "--version"]
        said = commands.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
        assert (said.stdout, said.returncode) == (done.stdout, 0)


def test_a_listed_bundle_without_a_plan_has_no_recipe(tmp_path):
    assert (ListedJob(tmp_path).recipe, ListedJob(tmp_path).time, ListedJob(tmp_path).backend) == (None, None, None)


@pytest.mark.parametrize("name", ["sm_local", "contract"])
def test_a_backend_is_filtered_by_its_choice_of_cluster_and_by_its_recorded_name(tmp_path, name):
    (tmp_path / "plan.json").write_text('{"backend": "contract"}', encoding="utf-8")
    wanted = Filter(backend=name)
    assert wanted.problems() == () and wanted.selects(ListedJob(tmp_path))
    assert not Filter(backend="k8s").selects(ListedJob(tmp_path))


COUNTING = """
import collections, json, os, sys
opened, scanned = collections.Counter(), collections.Counter()

def note(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and "results/" in arguments[0]:
        opened[tuple(arguments[0].split("/")[-2:])] += 1
    elif event in ("os.scandir", "os.listdir") and "results" in os.fsdecode(arguments[0]):
        scanned[os.fsdecode(arguments[0])] += 1

from launcher.cli import main
if sys.argv[1] == "complete":
    from launcher.cli.commands.arguments import complete_job as work
else:
    work = main.run
sys.addaudithook(note)
work(sys.argv[2]) if sys.argv[1] == "complete" else work(sys.argv[1:])
print(json.dumps([[*name, number] for name, number in opened.items()] + [scanned]), file=sys.stderr)
"""
"""Runs a command and prints how often it opened each file of results/, and read each folder."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "files", "num_scans"),
    [
        pytest.param(["jobs"], {JOB_FILE, NAME_FILE}, 1, id="jobs"),
        pytest.param(["jobs", "--json", "--all"], {JOB_FILE, NAME_FILE}, 1, id="json"),
        pytest.param(["complete", "mi"], {NAME_FILE}, 2, id="completion"),
    ],
)
def test_a_listing_opens_each_file_once(finished, words, files, num_scans):
    opened, scanned = counted(words)
    assert {file for _, file in opened} == files
    assert set(opened.values()) == {1} and len(opened) == len(files) * len(finished)
    assert scanned == {"results": num_scans}


@pytest.mark.slow
def test_a_job_is_found_by_its_given_name_without_the_records_of_others(finished):
    opened, scanned = counted(["status", "mine"])
    assert {folder for folder, file in opened if file != NAME_FILE} == {finished[-1].name}
    assert max(opened.values()) <= 2 and scanned == {"results": 1}


def counted(words):
    """Run words in a process of its own; return how often it opened each file and read each folder."""
    done = subprocess.run([sys.executable, "-c", COUNTING, *words], capture_output=True, text=True, check=True)
    *opened, scanned = json.loads(done.stderr.splitlines()[-1])
    return {(folder, file): number for folder, file, number in opened}, scanned


@pytest.fixture
def finished(tmp_path, monkeypatch):
    """Return the folders of jobs that have ended, the last of which has a name."""
    monkeypatch.chdir(tmp_path)
    job_store.write(Path("results"), 12)
    folders = sorted(Path("results").iterdir())
    for folder in folders:
        (folder / NAME_FILE).unlink(missing_ok=True)
    (folders[-1] / NAME_FILE).write_text("mine\n")
    return folders


def test_a_folder_being_written_or_removed_is_no_job(results):
    for name in (".draft.1", ".dry.removed"):
        shutil.copytree(results / "dry", results / name)
        (results / name / NAME_FILE).write_text("half\n")
    assert {each.name for each in listing(results)} == {"running", "failed", "succeeded", "dry"}
    assert bundles.job_names() == ["dry", "failed", "running", "succeeded"]
    assert list(bundles.given_names(results)) == [] and bundles.find("half") is None


@pytest.mark.parametrize("name", ["dry", "running"])
def test_a_folder_that_is_removed_during_a_listing_is_left_out(results, monkeypatch, name):
    def read_late(folder, *more):
        if folder.name == name:
            folder.rename(folder.with_name(f".{name}.removed"))
        return registry.read(folder, *more)

    monkeypatch.setattr("launcher.job_store.listing.read", read_late)
    assert {each.name for each in listing(results)} == {"running", "failed", "succeeded", "dry"} - {name}


def test_what_is_not_a_job_is_not_listed(results):
    (results / "notes.txt").write_text("mine")
    (results / "empty").mkdir()
    (results / "nowhere").symlink_to(results / "gone")
    (results / "loop").symlink_to(results / "loop")
    (results / "adopted").mkdir()
    (results / "adopted" / ADOPTED_FILE).write_text("{}")
    assert {each.name for each in listing(results)} == {"running", "failed", "succeeded", "dry", "adopted"}
    for elsewhere in (results / "notes.txt", results / "gone", results / "loop", results / ("x" * 200)):
        assert listing(elsewhere) == ()


def test_jobs_are_listed_through_links_under_their_real_paths(results, tmp_path):
    (results / "running").rename(tmp_path / "elsewhere")
    (results / "running").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "link").symlink_to(results)
    found = {each.name: each.record.handle.bundle_dir for each in listing(Path("link")) if each.record}
    assert found == {
        "running": tmp_path / "elsewhere",
        "failed": results / "failed",
        "succeeded": results / "succeeded",
    }


def test_records_that_cannot_be_read_hide_no_other_job(results, cluster, capsys):
    (results / "failed" / JOB_FILE).write_text("{")
    (results / "succeeded" / JOB_FILE).unlink()
    (results / "succeeded" / JOB_FILE).mkdir()
    assert cli.run(["jobs", "--json"]) == 0
    states = {each["job"]: (each["state"], each.get("problem", "")) for each in json.loads(capsys.readouterr().out)}
    assert states["running"] == ("running", "") and set(states) == {"running", "failed", "succeeded"}
    assert "is damaged" in states["failed"][1] and "cannot be read: Is a directory" in states["succeeded"][1]
