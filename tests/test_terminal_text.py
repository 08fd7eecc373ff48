"""What others wrote reaches a terminal as text only; the lines of a job, its end and its progress."""

import contextlib
import io
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from launch_records import Job
from terminals import python_on_a_terminal

from launcher import timeline
from launcher.api import launching
from launcher.cli import terminal
from launcher.common import console
from launcher.common.problems import Problem
from launcher.common.texts import plain, size_text
from launcher.model.job_spec import Bundle, JobHandle, JobState, JobStatus, LogLine

HOSTILE = {
    "colour": ("\x1b[31mred\x1b[0m", "red"),
    "clear": ("a\x1b[2J\x1b[Hb", "ab"),
    "cursor": ("a\x1b[10Ab\x1b[?25lc", "abc"),
    "title": ("\x1b]0;owned\x07a", "a"),
    "title with st": ("\x1b]2;owned\x1b\\a", "a"),
    "title without end": ("a\x1b]0;owned", "a"),
    "clipboard": ("\x1b]52;c;cm0gLXJm\x07a", "a"),
    "link": ("\x1b]8;;http://x\x1b\\text\x1b]8;;\x1b\\", "text"),
    "device control": ("\x1bP+q544e\x1b\\a", "a"),
    "8 bit": ("\x9b31mred\x9d0;owned\x9ca", "reda"),
    "reset": ("\x1bca\x1b(0b", "ab"),
    "lone escape": ("a\x1b", "a"),
    "bell and backspace": ("a\x07\x08\x08b\x00c\x7f", "abc"),
    "reversed": ("a\u202egpj.exe\u2066", "agpj.exe"),
    "progress": ("\r 0%|  |\r50%|# |\r99%|##|", "99%|##|"),
    "progress, ended": ("a\n 0%\r 50%\r\nb", "a\n 50%\nb"),
    "ordinary": ("a\tb\nc é 日本 ─ …", "a\tb\nc é 日本 ─ …"),
}


@pytest.mark.parametrize(("text", "shown"), HOSTILE.values(), ids=HOSTILE)
def test_control_sequences_are_removed_and_the_text_stays(text, shown):
    assert plain(text) == shown


def test_a_long_sequence_takes_bounded_time():
    for text in ("\x1b]0;" * 200_000, "\x1b[" + ";" * 1_000_000, "\r" * 1_000_000, "\x1bP" + "x" * 1_000_000):
        began = time.process_time()
        assert "\x1b" not in plain(text)
        assert time.process_time() - began < 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1.5 * 2**20, "1.5 MiB"),
        (2**30, "1.0 GiB"),
        (2**52, "4096.0 TiB"),
    ],
)
def test_bytes_have_a_unit(num_bytes, text):
    assert size_text(num_bytes) == text


def test_a_log_a_problem_and_a_name_reach_a_terminal_as_text():
    code = """
from launcher.cli import terminal
from launcher.common import console
from launcher.common.problems import Problem
from launcher.model.job_spec import LogLine
bad = "\\x1b]0;owned\\x07\\x1b[2J\\x1b]52;c;cm0=\\x07text\\x9b5m"
lines = [LogLine("line", 0, text) for text in (bad, "step 1/2  loss " + bad, "\\r10%\\r20%")]
terminal.follow(iter([*lines, LogLine("fault", None, bad)]))
console.say(bad, "bold")
console.say(bad)
console.say_all([(bad, "bold"), (bad, "")])
console.show_problems((Problem("E001", bad, bad),))
console.show_table(["a", "b"], [[bad, bad]])
with console.while_waiting(bad):
    pass
"""
    written = python_on_a_terminal("-c", code)
    assert written.count("text") >= 10 and "20%" in written and "Traceback" not in written
    for forbidden in ("\x1b]", "\x1b[2J", "owned", "cm0", "\x9b"):
        assert forbidden not in written


def test_output_that_is_piped_is_text_too(capsys):
    console.say("\x1b]0;owned\x07text")
    console.show_problems((Problem("E001", "a\x1b[2J", "b\x1bc"),))
    out, err = capsys.readouterr()
    assert out == "text\n" and "\x1b" not in err


@pytest.fixture
def bundle(tmp_path, monkeypatch) -> Bundle:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launching, "run_of", lambda bundle: None)
    return Bundle("job", tmp_path / "my results" / "job", {"a": "", "b": ""}, "0123456789abcdef")


class Screen(io.StringIO):
    """A terminal with colours."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def coloured(monkeypatch):
    """Return a function that yields standard output and standard error of a terminal of 100 columns."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)

    @contextlib.contextmanager
    def screens():
        with contextlib.redirect_stdout(Screen()) as out, contextlib.redirect_stderr(Screen()) as err:
            yield out, err

    return screens


def test_a_bundle_is_shown_with_the_command_that_launches_it(bundle, capsys):
    terminal.show_bundle(bundle, "llama", is_only_written=True)
    terminal.show_bundle(bundle, None, is_only_written=False)
    assert capsys.readouterr().out.splitlines() == [
        "bundle my results/job (llama)  2 files, digest 012345   next: recipes launch 'my results/job'",
        "bundle my results/job  2 files, digest 012345",
    ]


HERE = Path("/nowhere")
RAY = JobHandle("k8s", "job", HERE, "job-1", "RayJob", "team", "east", is_new=False)


@pytest.mark.parametrize(
    ("handle", "name"),
    [
        (RAY, "RayJob/job-1 (namespace team, context east)"),
        (JobHandle("slurm", "job", HERE, "17"), "17"),
        (JobHandle("k8s", "job", HERE, "job-1", context="east"), "job-1 (context east)"),
        (JobHandle("k8s", "job", HERE, kind="RayJob", namespace="team"), "RayJob (namespace team)"),
    ],
    ids=["all", "id", "context", "namespace"],
)
def test_a_job_is_named_as_its_cluster_does(handle, name):
    assert terminal.native_name(handle) == name


def test_a_submitted_job_is_shown_with_its_commands(bundle, coloured):
    with coloured() as (out, _):
        terminal.show_submitted(JobHandle("slurm", "job", bundle.directory, "17"), bundle.directory)
        terminal.show_submitted(RAY)
        terminal.show_next(bundle)
    bold, dim = (f"\x1b[{code}m{{}}\x1b[0m\n" for code in (1, 2))
    assert out.getvalue() == "".join(
        [
            bold.format("submitted 17  'my results/job'"),
            bold.format(
                "RayJob/job-1 (namespace team, context east) was already submitted from this bundle; "
                "nothing was submitted"
            ),
            dim.format("recipes logs -f 'my results/job'  its log"),
            dim.format("recipes wait 'my results/job'  until it has ended"),
            dim.format("recipes cancel 'my results/job'  cancels it"),
        ]
    )


@pytest.mark.parametrize(
    ("status", "line", "colour"),
    [
        (JobStatus(JobState.RUNNING, 2), "running  2 nodes", "32"),
        (JobStatus(JobState.RUNNING, 1), "running  1 node", "32"),
        (JobStatus(JobState.SCALING, 1, target_nodes=3), "scaling  1 -> 3 nodes", "33"),
        (JobStatus(JobState.SCALING, 0, target_nodes=1), "scaling  0 -> 1 nodes", "33"),
        (JobStatus(JobState.SCALING, 2, "drained", 0), "scaling  2 -> 0 nodes  drained", "33"),
        (JobStatus(JobState.PENDING, 0, "no room"), "pending  no room", "33"),
        (JobStatus(JobState.SUCCEEDED, 0), "succeeded", "1;32"),
        (JobStatus(JobState.FAILED, 0, "out of memory"), "failed  out of memory", "1;31"),
        (JobStatus(JobState.CANCELLED, 0), "cancelled", "1;31"),
        (JobStatus(JobState.DELETED, 0), "deleted", "1;31"),
    ],
    ids=lambda value: value.state.value if isinstance(value, JobStatus) else None,
)
def test_a_status_is_one_line_in_the_colour_of_its_state(status, line, colour, coloured):
    with coloured() as (out, _):
        terminal.show_status(status)
    assert out.getvalue() == f"\x1b[{colour}m{line}\x1b[0m\n"


FAILURE = SimpleNamespace(lines=lambda: (("first error", "no space left"), ("remedy", "free some")))


def test_a_job_that_succeeded_ends_with_its_logs_and_its_run(bundle, monkeypatch, coloured):
    run = SimpleNamespace(run_id="r1", tracking_uri="sqlite:///a")
    with coloured() as (out, err):
        terminal.show_end(bundle, JobStatus(JobState.SUCCEEDED, 0, "all done"), is_here=True, can_resume=False)
        monkeypatch.setattr(launching, "run_of", lambda found: run if found == bundle else None)
        monkeypatch.setattr(launching, "ui_command", lambda uri: f"mlflow ui {uri}")
        terminal.show_end(bundle, JobStatus(JobState.SUCCEEDED, 0), is_here=False, can_resume=False)
        monkeypatch.setattr(launching, "ui_command", lambda uri: None)
        terminal.show_end(bundle, JobStatus(JobState.SUCCEEDED, 0), is_here=False, can_resume=False)
    assert out.getvalue().splitlines() == [
        *("\x1b[1;32msucceeded\x1b[0m", "logs my results/job/run/logs"),
        *("\x1b[1;32msucceeded\x1b[0m", "logs: recipes logs 'my results/job'", "mlflow run r1 in sqlite:///a"),
        "mlflow ui sqlite:///a",
        *("\x1b[1;32msucceeded\x1b[0m", "logs: recipes logs 'my results/job'", "mlflow run r1 in sqlite:///a"),
    ]
    assert err.getvalue() == ""


def test_a_job_that_failed_ends_with_its_first_error_and_how_to_resume_it(bundle, monkeypatch, coloured):
    monkeypatch.setattr(terminal, "failure_of", lambda folder: FAILURE if folder == bundle.directory else None)
    with coloured() as (out, err):
        terminal.show_end(bundle, JobStatus(JobState.FAILED, 0, "exited with 3"), is_here=True, can_resume=True)
        terminal.show_end(bundle, JobStatus(JobState.CANCELLED, 0, "by you"), is_here=True, can_resume=False)
    assert out.getvalue().splitlines() == ["logs my results/job/run/logs"] * 2
    assert err.getvalue().splitlines() == [
        *("\x1b[1;31mfailed  exited with 3\x1b[0m", "first error no space left", "remedy      free some"),
        "resume from the last checkpoint with: recipes launch 'my results/job'",
        "\x1b[1;31mcancelled  by you\x1b[0m",
    ]


def test_a_failure_is_shown_where_it_is_wanted_and_none_where_nothing_is_known(bundle, capsys):
    terminal.show_failure(FAILURE)
    terminal.show_failure(None)
    assert terminal.failure_of(bundle.directory) is None
    assert capsys.readouterr() == ("first error no space left\nremedy      free some\n", "")


def step(number: int, text: str = "loss 2.5") -> LogLine:
    return LogLine("line", 0, f"step {number}/20  {text}")


def test_a_pipe_gets_the_lines_of_a_log(capsys):
    lines = (LogLine("line", 0, "hello"), step(1), LogLine("fault", None, "node 1"), LogLine("attempt", 0, "second"))
    terminal.follow(iter(lines))
    assert capsys.readouterr().out == "hello\nstep 1/20  loss 2.5\nfault  node 1\n== second\n"


@pytest.mark.parametrize("columns", [99, 100])
def test_a_terminal_gets_a_bar_below_the_lines_of_a_log(coloured, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    event = LogLine("event", None, "step 7/20  [b]is no step[/b]")
    with coloured() as (screen, _):
        terminal.follow(iter([LogLine("line", 0, "hello [b]you[/b]"), step(3), event, step(5, "loss 1.5")]))
    out = screen.getvalue()
    assert "hello [b]you[/b]\n" in out and "\x1b[33mevent  step 7/20  [b]is no step[/b]\x1b[0m\n" in out
    (last,) = [line for line in plain(out).splitlines() if "ended" in line][-1:]
    assert " 5/20 " in last and last.startswith("step ") and last.rstrip().endswith("ended; last step: loss 1.5")
    assert sum(map(last.count, "━╸╺")) == (20 if columns == 100 else 0)
    assert "remaining" not in last and "7/20  loss" not in out


WAITING, RESTARTING = "waiting ({} s since the last step)", "restarting ({} s since the last step)"


@pytest.mark.parametrize(
    ("happened", "now_s", "words"),
    [
        ([], 50.0, "starting"),
        ([LogLine("fault", None, "a")], 50.0, "restarting"),
        ([10.0, 11.0], 16.0, "at 11"),
        ([10.0, 11.0], 17.0, WAITING.format(6)),
        ([10.0, 20.0], 50.0, "at 20"),
        ([10.0, 20.0], 51.0, WAITING.format(31)),
        ([10.0, 20.0, 21.0], 27.0, WAITING.format(6)),
        ([10.0, LogLine("fault", None, "a")], 11.0, RESTARTING.format(1)),
        ([10.0, LogLine("fault", None, "a -> 0 b")], 11.0, RESTARTING.format(1)),
        ([10.0, LogLine("scale", None, "2 -> 0 nodes")], 11.0, "waiting for nodes (1 s since the last step)"),
        ([10.0, LogLine("scale", None, "2 -> 3 nodes")], 11.0, "at 10"),
        ([10.0, LogLine("scale", None, "2 -> 3 nodes")], 19.0, RESTARTING.format(9)),
        ([10.0, LogLine("scale", None, "given up")], 19.0, WAITING.format(9)),
        ([10.0, LogLine("event", None, "2 -> 0 nodes")], 11.0, "at 10"),
        ([10.0, LogLine("event", None, "2 -> 3 nodes")], 19.0, WAITING.format(9)),
        ([10.0, LogLine("fault", None, "a"), 15.0], 21.0, RESTARTING.format(6)),
        ([10.0, LogLine("fault", None, "a"), 16.0], 22.0, WAITING.format(6)),
    ],
)
def test_the_activity_of_a_job_is_its_last_step_or_why_there_is_none(happened, now_s, words):
    pulse = terminal._Pulse()
    for each in happened:
        pulse.news(each) if isinstance(each, LogLine) else pulse.step(f"at {each:.0f}", each)
    assert pulse.words(now_s) == words


def test_the_activity_of_a_job_that_is_over_is_its_end():
    pulse = terminal._Pulse()
    assert not pulse.is_over
    with pulse.until_over():
        assert not pulse.is_over and pulse.words(0.0) == "starting"
    assert pulse.is_over and pulse.words(0.0) == "ended"
    pulse.step("loss 2.5", 1.0)
    assert pulse.words(50.0) == "ended; last step: loss 2.5"
    with pulse.until_over():
        assert not pulse.is_over


def test_a_timeline_is_shown_in_the_width_of_the_terminal_with_its_picture(tmp_path, monkeypatch, coloured):
    monkeypatch.chdir(tmp_path)
    job = Job(tmp_path / "run", nodes=1)
    job.now += 3
    job.start([0])
    job.train(3)
    course = timeline.read(tmp_path / "run")
    head, *rows = timeline.text(course, 100).splitlines()
    with coloured() as (out, _):
        terminal.show_timeline(course, ())
        (tmp_path / "run" / "timeline.txt").touch()
        (tmp_path / "run" / "timeline.svg").touch()
        terminal.show_timeline(course, timeline.report_files(tmp_path / "run"))
    shown = [f"\x1b[1m{head}\x1b[0m", *rows]
    ends = ["no picture: it needs matplotlib (pip install '.[local]')"], ["picture run/timeline.svg"]
    assert rows and out.getvalue().splitlines() == [*shown, *ends[0], *shown, *ends[1]]


def test_progress_is_erased_however_wide_it_became(monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", screen)
    with console.progress("done") as show:
        show(9, 12345)
        show(10, 12345)
    assert screen.getvalue() == f"\r9 of 12345 done\r10 of 12345 done\r{' ' * 16}\r"


def test_a_table_without_rows_is_its_heading_on_a_terminal_too(monkeypatch, capsys):
    monkeypatch.setattr(console, "width", lambda: 80)
    console.show_table(["node", "state"], [])
    assert capsys.readouterr().out.split() == ["node", "state"]


def test_a_table_on_a_narrow_terminal_names_every_column(monkeypatch, capsys):
    monkeypatch.setattr(console, "width", lambda: 20)
    console.show_table(
        ["nodes", "ranks", "samples per rank", "USD"],
        [[" 1", "  8", "16 on 1", "   5.04"], ["16", "128", "", "80.64"]],
    )
    shown = " ".join(capsys.readouterr().out.split())
    assert shown == "nodes ranks 1 8 samples per rank 16 on 1, USD 5.04 16 128 USD 80.64"
