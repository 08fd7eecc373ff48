"""Jobs and commands that a signal ends, as processes: SIGTERM, SIGHUP, a closed terminal, a reader that goes away."""

import os
import pty
import signal
import subprocess
import sys

import pytest
from background import await_true
from conftest import ROOT
from whole_jobs import finish, left_behind, mlflow_run, program_of, start

from launcher.common import interrupts

pytest.importorskip("hyperpod_elastic_agent", reason="pip install --no-deps hyperpod-elastic-agent==1.1.3")
pytestmark = [pytest.mark.whole_job, pytest.mark.usefixtures("store")]

STEPS = """
import itertools, time
for step in itertools.count(1):
    print(f"step {step}/100000  loss 1.0", flush=True)
    time.sleep(0.1)
"""


@pytest.fixture
def steps(tmp_path):
    """Return the override that runs steps without end."""
    return program_of(STEPS, tmp_path)


def until_line(process, start):
    return next(line for line in process.stdout if line.startswith(start))


def nothing_is_left(folder):
    await_true(lambda: not left_behind(folder), "the end of every process")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_ends_a_job_here_as_ctrl_c_does(tmp_path, steps, number):
    process = start(steps, cwd=tmp_path)
    until_line(process, "step ")
    process.send_signal(number)
    code, out, err = finish(process)
    assert code == 128 + number and "Traceback" not in err
    said = err.splitlines()
    again = f"({number.name} again: stop immediately, without one)"
    assert f"stopping; an elastic job saves a checkpoint first {again}" in said
    assert f"cancelled  stopped by {number.name}" in said
    assert "\nlogs results/" in f"\n{out}" and "\nmlflow run " in out
    assert mlflow_run(tmp_path)[1].info.status == "KILLED"
    nothing_is_left(tmp_path)


def test_a_signal_while_the_job_starts_ends_it_too(tmp_path, steps):
    process = start(steps, cwd=tmp_path)
    until_line(process, "bundle ")
    run_dir = await_true(lambda: list(tmp_path.glob("results/*/run/operator.log")), "the operator")[0].parent
    process.send_signal(signal.SIGTERM)
    code, _, err = finish(process)
    assert code == 143 and "Traceback" not in err and "cancelled  stopped by SIGTERM" in err
    assert mlflow_run(tmp_path)[1].info.status == "KILLED"
    nothing_is_left(tmp_path)
    assert run_dir.exists()


def test_a_job_whose_output_nobody_reads_any_more_ends_and_says_so_in_its_run(tmp_path, steps):
    process = start(steps, cwd=tmp_path)
    until_line(process, "step ")
    process.stdout.close()
    assert process.wait(200) == 141
    err = process.stderr.read()
    process.stderr.close()
    assert "Traceback" not in err and "cancelled  stopped by SIGPIPE" in err
    assert mlflow_run(tmp_path)[1].info.status == "KILLED"
    nothing_is_left(tmp_path)


def test_closing_the_terminal_ends_the_job(tmp_path, steps):
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(sys.executable, [sys.executable, str(ROOT / "main.py"), steps], os.environ | {"TERM": "xterm"})
    shown = b""
    while b"/100000" not in shown:
        shown += os.read(master, 4096)
    os.close(master)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGHUP
    assert mlflow_run(tmp_path)[1].info.status == "KILLED"
    nothing_is_left(tmp_path)


def test_nohup_keeps_a_job_from_hearing_that_the_terminal_closed(tmp_path, steps):
    words = ["nohup", sys.executable, str(ROOT / "main.py"), steps]
    pipe = subprocess.PIPE
    process = subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
    until_line(process, "step ")
    process.send_signal(signal.SIGHUP)
    for _ in range(2):
        until_line(process, "step ")
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 143
    nothing_is_left(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
@pytest.mark.parametrize("words", ["wait", "logs -f", "events -f"])
def test_commands_that_follow_a_job_end_by_a_signal_with_its_code_and_leave_the_job_alone(
    following, tmp_path, words, number
):
    process = start(*words.split(), following, cwd=tmp_path.parent / "following", module=True)
    until_line(process, {"wait": "running", "logs -f": "step", "events -f": "20"}[words])
    process.send_signal(number)
    code, _, err = finish(process)
    assert (code, err.strip()) == (128 + number, "")


@pytest.fixture(scope="module")
def following(tmp_path_factory):
    """Yield the name of a job that runs until the module's tests have ended."""
    folder = tmp_path_factory.getbasetemp() / "following"
    folder.mkdir()
    untracked = "recipes.training_config.mlflow.enabled=false"
    process = start(program_of(STEPS, folder), untracked, cwd=folder)
    until_line(process, "step ")
    (bundle,) = (path.parent for path in folder.glob("results/*/bundle.json"))
    yield bundle.name
    assert process.poll() is None
    process.terminate()
    assert finish(process)[0] == 143


def test_a_sweep_that_a_signal_ends_starts_no_further_job(tmp_path, steps):
    process = start("--multirun", steps, "recipes.training_config.training_args.seed=1,2", cwd=tmp_path)
    until_line(process, "step ")
    process.send_signal(signal.SIGTERM)
    code, out, _ = finish(process)
    assert code == 143 and out.count("bundle results/") == 0
    assert len(list((tmp_path / "results").glob("*/bundle.json"))) == 1
    nothing_is_left(tmp_path)


@pytest.mark.sample
def test_only_streams_that_nobody_reads_are_muted(tmp_path):
    code = (
        "import os, sys, launcher.common.interrupts as i; reader, writer = os.pipe(); os.dup2(writer, 1);"
        "os.close(reader); os.close(writer); i.mute_lost_streams();"
        "print('lost', flush=True); print('kept', file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "kept\n")


@pytest.mark.sample
def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts.signals_as_interrupts() as taken:
            signal.raise_signal(signal.SIGHUP)
        assert taken == []
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.sample
def test_the_exit_codes_are_those_of_the_signals():
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGPIPE, 141)):
        assert interrupts.exit_code(interrupts.Interrupted(number)) == code
    assert interrupts.exit_code(KeyboardInterrupt()) == 130
