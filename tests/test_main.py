"""The command line as a user meets it: a process, its output and its exit code."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import commands
import pytest
from conftest import ELASTIC, LLAMA, LLAMA_K8S, ROOT, in_process
from launch_records import Job, grow, lose, rehearse

from launcher import pipeline
from launcher.cli import launch, run_command, terminal
from launcher.cli import main as cli
from launcher.common import process
from launcher.job_store import registry, tracking
from launcher.model import backend_registry
from launcher.model.job_spec import Bundle, JobHandle, JobState, JobStatus, LogLine
from launcher.operator.event_log import log_line
from launcher.operator.snapshot import Attempt, Snapshot, publish
from launcher.timeline.records import OperatorEvent


def main(*arguments, cwd, **variables):
    return commands.run(
        [sys.executable, ROOT / "main.py", *arguments],
        cwd=cwd, env=os.environ | variables, capture_output=True, text=True, timeout=200,
    )  # fmt: skip


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


@pytest.mark.slow
def test_dry_run_prints_the_plan_and_writes_the_bundle(tmp_path):
    result = main(*LLAMA_K8S, ELASTIC, "dry_run=true", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0].endswith("HyperPodPyTorchJob on ml.p5.48xlarge, 1 to 16 nodes")
    assert lines[4].split() == ["3", "24", "5", "on", "16,", "6", "on", "8", "6", "x", "1", "0.0004", "uneven"]
    assert "14 files" in lines[-1] and "next: recipes launch results/llama-3-1-8b-instruct-" in lines[-1]
    (bundle,) = (tmp_path / "results").iterdir()
    assert len(files(bundle)) == 14 + 3  # the record, and two folders
    (short,) = [line for line in lines if " notes of most elastic jobs: " in line]
    assert "N105" in short and "plan.md in the bundle" in short and "note  N105" not in result.stdout
    assert "- N105 " in (bundle / "plan.md").read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        ("recipes.elastic_polcy.is_elastic=true", *LLAMA_K8S),
        (f"recipes={LLAMA[:-2]}",),
        ("cluster=slurm", "cluster.additional_parameters={wrong: 1}"),
        ("recipes.trainer.devices=two",),
        ("a=[",),
        ("~cluster.nothing",),
    ],
    ids=["key", "recipe", "cluster", "type", "syntax", "delete"],
)
def test_a_mistake_is_exit_code_2_no_traceback_and_no_file(tmp_path, arguments):
    result = in_process(run_command.run, *arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stdout == "" and "Traceback" not in result.stderr
    assert "nothing was written or submitted" in result.stderr
    assert files(tmp_path) == []


@pytest.mark.slow
def test_debug_shows_the_traceback(tmp_path):
    assert "Traceback" in main("debug=true", "a=1", cwd=tmp_path).stderr


@pytest.mark.slow
def test_an_untracked_dry_run_imports_neither_hydra_nor_mlflow_torch_or_kubernetes(tmp_path):
    code = (
        "import sys; from launcher.cli import launch as run; absent, *words = sys.argv[1:];"
        "assert run.main(words) == 0;"
        "heavy = set(absent.split()) & set(sys.modules); assert not heavy, heavy"
    )
    absent = "mlflow torch kubernetes boto3 typer httpx numpy hydra logging email socket difflib traceback"
    command = [sys.executable, "-c", code, absent, *LLAMA_K8S, ELASTIC, "dry_run=true"]
    subprocess.run(command, cwd=tmp_path, check=True)


WITHOUT_LIBRARIES = """
import sys
for absent in "torch numpy transformers mlflow kubernetes boto3 ray pandas matplotlib".split():
    sys.modules[absent] = None
import launcher
from launcher.config import catalogue
data = [f"recipes.training_config.datasets.{part}_data.file_path=/data" for part in ("train", "val")]
recipes = {each.model_type: each.name for each in catalogue.entries()}
cases = [(name, ()) for name in recipes.values()] + [(sys.argv[1], data)]
for name, words in cases:
    for cluster in ("k8s", "local", "slurm", "sm_jobs", "sm_local", "ray"):
        for trainer in ("published", "open"):
            choices = [f"cluster={cluster}", f"cluster.trainer={trainer}", "container=me/image:1", *words]
            plan = launcher.compile(name, choices, strict=False)
            print(name, cluster, trainer, *sorted({problem.code for problem in plan.problems}))
"""


@pytest.mark.slow
def test_every_family_is_compiled_for_every_cluster_and_trainer_without_heavy_libraries(tmp_path):
    command = [sys.executable, "-c", WITHOUT_LIBRARIES, LLAMA]
    compiled = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
    assert {f"{LLAMA} k8s published", f"{LLAMA} k8s open", f"{LLAMA} slurm open"} <= set(compiled.stdout.splitlines())


@pytest.mark.slow
def test_k8s_without_dry_run_writes_the_bundle_and_says_that_nothing_was_submitted(tmp_path):
    result = main(*LLAMA_K8S, cwd=tmp_path, KUBECONFIG=str(tmp_path / "absent"))
    assert result.returncode == 2
    assert result.stderr.startswith("E341 ") and "nothing was submitted" in result.stderr
    assert len(list((tmp_path / "results").iterdir())) == 1


@pytest.mark.slow
def test_hydra_s_own_flags_work_from_any_folder(tmp_path):
    shown = main("--cfg", "job", *LLAMA_K8S, cwd=tmp_path)
    assert shown.returncode == 0 and "model_name_or_path: meta-llama" in shown.stdout
    helped = main("--help", cwd=tmp_path)
    assert helped.returncode == 0 and helped.stdout.startswith("Compile a recipe and launch it.")
    assert files(tmp_path) == []


@pytest.mark.slow
def test_hydra_s_own_refusal_is_exit_code_2(tmp_path):
    result = main("--cfg", "job", "recipes=nothing/like/it", cwd=tmp_path)
    assert result.returncode == 2 and "Traceback" not in result.stderr


def test_a_flag_that_hydra_does_not_have_is_a_problem(tmp_path):
    result = in_process(run_command.run, "--verbose", *LLAMA_K8S, cwd=tmp_path)
    assert result.returncode == 2 and result.stderr.startswith("E801 --verbose\n") and "usage" not in result.stderr
    assert files(tmp_path) == []


@pytest.mark.slow
def test_hydra_s_flags_take_recipe_files_and_search_paths(tmp_path):
    folder = tmp_path / "it's here"
    (folder / "recipes").mkdir(parents=True)
    text = f"defaults:\n  - /recipes/{LLAMA}@_here_\n  - _self_\nrun:\n  name: mine\n"
    (folder / "recipes" / "own.yaml").write_text(text)
    search = "hydra.searchpath=['" + str(folder).replace("'", "\\'") + "']"
    shown = main("recipes=recipes/own.yaml", "--cfg", "job", cwd=folder)
    assert shown.returncode == 0 and "name: mine" in shown.stdout, shown.stderr
    for words in (("recipes=recipes/own.yaml",), (search, "recipes=own")):
        swept = main("--multirun", *words, "cluster=k8s", "dry_run=true", "debug=false,true", cwd=folder)
        assert swept.returncode == 0 and swept.stdout.count("bundle results/mine-") == 2, swept.stderr


@pytest.mark.slow
def test_multirun_compiles_every_choice(tmp_path):
    sweep = "recipes.training_config.training_args.seed=1,2,3"
    result = main("--multirun", *LLAMA_K8S, sweep, "dry_run=true", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    bundles = sorted((tmp_path / "results").glob("llama*/bundle.json"))
    seeds = {o for b in bundles for o in json.loads(b.read_text())["overrides"] if "seed" in o}
    assert len(seeds) == 3
    headings = [line for line in result.stdout.splitlines() if line.startswith("job ")]
    assert headings == [f"job {seed} of 3: recipes.training_config.training_args.seed={seed}" for seed in (1, 2, 3)]


@pytest.mark.slow
def test_config_dir_adds_a_recipe_folder(tmp_path):
    (tmp_path / "own" / "recipes").mkdir(parents=True)
    text = f"defaults:\n  - /recipes/{LLAMA}@_here_\n  - _self_\nrun:\n  name: mine\n"
    (tmp_path / "own" / "recipes" / "mine.yaml").write_text(text)
    result = main("--config-dir", str(tmp_path / "own"), "recipes=mine", "cluster=k8s", "dry_run=true", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("mine-")


def recipes(*arguments, cwd):
    return commands.run(
        [sys.executable, "-m", "launcher", *arguments], cwd=cwd, capture_output=True, text=True, timeout=200,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip


@pytest.mark.slow
def test_render_to_stdout_prints_manifests_alone(tmp_path):
    from launcher.common import yaml_io

    result = recipes("render", LLAMA, "cluster=k8s", ELASTIC, "--stdout", cwd=tmp_path)
    assert result.returncode == 0 and "note  N117" in result.stderr
    assert all(line.startswith("note  N") for line in result.stderr.splitlines())
    kinds = [document["kind"] for document in yaml_io.load_documents(result.stdout)]
    assert kinds == ["ConfigMap", "HyperPodPyTorchJob"]
    assert files(tmp_path) == []


def test_stdout_leaves_nothing_behind_for_a_local_job(tmp_path):
    result = in_process(cli.run, "render", "training/tiny/tiny_lm_cpu", "--stdout", cwd=tmp_path)
    assert result.returncode == 0 and "hyperpodrun" in result.stdout
    assert files(tmp_path) == []


@pytest.mark.slow
def test_render_writes_a_bundle_that_launch_reads(tmp_path):
    assert recipes("render", LLAMA, "cluster=k8s", cwd=tmp_path).returncode == 0
    (bundle,) = (tmp_path / "results").iterdir()
    (bundle / "plan.md").write_text("edited")
    result = recipes("launch", str(bundle), cwd=tmp_path)
    assert result.returncode == 2 and "E704" in result.stderr


def test_a_mistake_in_recipes_is_exit_code_2(tmp_path):
    result = in_process(cli.run, "render", "nothing/like/it", "--stdout", cwd=tmp_path)
    assert result.returncode == 2 and result.stderr.startswith("E005 recipes")


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    """Return a folder with the bundle `results/rehearsed` and what its job, 1 -> 3 -> 2 nodes, has left there."""
    folder = tmp_path_factory.mktemp("rehearsed")
    untracked = "recipes.training_config.mlflow.enabled=false"
    rendered = in_process(cli.run, "render", "training/tiny/tiny_lm_cpu", untracked, cwd=folder)
    assert rendered.returncode == 0, rendered.stderr
    (bundle,) = (folder / "results").iterdir()
    bundle = bundle.rename(folder / "results" / "rehearsed")
    run_dir = bundle / "run"
    job = Job(run_dir, launched=time.time())
    job.start([0])
    job.train(9)
    grow(job, 3, "capacity becomes 3 nodes")
    job.train(9)
    lose(job, 1, "node 1 is lost", checkpoint=25)
    job.train(4)
    job.end()
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    attempts = tuple(
        Attempt(event["attempt"], event["nodes"][0], tuple(event["nodes"]), event["time"])
        for event in events
        if event["kind"] == "starting"
    )
    for attempt in attempts:
        for rank in range(2 * len(attempt.nodes)):
            place = f"node-{attempt.nodes[rank // 2]}/job_x/attempt_{attempt.number}/{rank % 2}"
            (run_dir / "logs" / place).mkdir(parents=True)
            for name in ("stdout", "stderr"):
                path = run_dir / "logs" / place / f"{name}.log"
                path.write_text(f"{name} of {rank} in {attempt.number}\n")
                os.utime(path, (attempt.started, attempt.started))
    publish(run_dir, Snapshot(JobState.SUCCEEDED, 0, "completed", 2, 1, 0, attempts))
    handle = JobHandle("local", "rehearsed", bundle, native_id="1")
    registry.record(Bundle("rehearsed", bundle, {}, "digest"), handle, "somebody")
    return folder


HEADS = (
    "== attempt 0: 1 node, 2 ranks, end: scale-up (capacity becomes 3 nodes)",
    "== attempt 1: 3 nodes, 6 ranks, resumed from step 22, end: scale-down (node 1 is lost)",
    "== attempt 2: 2 nodes, 4 ranks, resumed from step 25, end: succeeded",
)
NEWS = (
    ("event  capacity becomes 3 nodes", "scale  1 -> 3 nodes"),
    ("event  node 1 is lost", "fault  node 1: its agent ended", "scale  stopping the workers that are left",
     "scale  3 -> 2 nodes"),
)  # fmt: skip


@pytest.mark.parametrize("name", ["rehearsed", "results/rehearsed"], ids=["job", "folder"])
def test_logs_show_every_attempt_of_rank_0(rehearsed, name):
    result = in_process(cli.run, "logs", name, cwd=rehearsed)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        HEADS[0], "stdout of 0 in 0", *NEWS[0], HEADS[1], "stdout of 0 in 1", *NEWS[1], HEADS[2], "stdout of 0 in 2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ("--rank 4 --stderr", [f"{HEADS[0]}, without this rank", *NEWS[0], HEADS[1], "stderr of 4 in 1",
                               *NEWS[1], f"{HEADS[2]}, without this rank"]),
        ("--attempt 2 --all-ranks --follow", [HEADS[2], *(f"rank {r} | stdout of {r} in 2" for r in range(4))]),
        ("--attempt 0 --rank 1", [HEADS[0], "stdout of 1 in 0"]),
    ],
    ids=["rank-stderr", "all-ranks-of-an-ended-job", "rank-of-an-attempt"],
)  # fmt: skip
def test_logs_show_what_is_selected(rehearsed, options, lines):
    result = in_process(cli.run, "logs", "rehearsed", *options.split(), cwd=rehearsed)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == lines


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("logs", "rehearsd"), "E703", "did you mean rehearsed?"),
        (("timeline", "launcher"), "E703", "is neither the folder of a bundle nor a job"),
        (("launch", "nothing"), "E703", "allowed: rehearsed"),
        (("launch", f"recipes={LLAMA}"), "E703", "remedy: python main.py takes a recipe with its overrides"),
        (("logs", "rehearsed", "--attempt", "3"), "E706", "allowed: 0 to 2"),
        (("logs", "rehearsed", "--rank", "6"), "E707", "allowed: 0 to 5"),
        (("logs", "rehearsed", "--rank", "2", "--attempt", "0"), "E707", "allowed: 0 to 1"),
    ],
)
def test_what_is_not_there_is_a_problem(rehearsed, arguments, code, says):
    result = in_process(cli.run, *arguments, cwd=rehearsed)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(code) and says in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", ["logs", "timeline"])
def test_a_bundle_that_was_never_launched_has_nothing_to_show(tmp_path, command):
    assert recipes("render", LLAMA, "cluster=k8s", cwd=tmp_path).returncode == 0
    (bundle,) = (tmp_path / "results").iterdir()
    result = recipes(command, bundle.name, cwd=tmp_path)
    assert result.returncode == 2 and result.stderr.startswith("E705")


@pytest.mark.slow
def test_timeline_is_printed_and_written_anew(rehearsed):
    result = recipes("timeline", "rehearsed", cwd=rehearsed)
    assert (result.returncode, result.stderr) == (0, "")
    *text, picture = result.stdout.splitlines()
    run_dir = rehearsed / "results/rehearsed/run"
    assert text == (run_dir / "timeline.txt").read_text().splitlines()
    assert text[0].startswith("1 -> 3 -> 2 nodes") and "succeeded after" in text[-4]
    assert picture == "picture results/rehearsed/run/timeline.svg" or "pip install '.[local]'" in picture


@pytest.mark.slow
def test_timeline_as_json_is_the_file(rehearsed):
    result = recipes("timeline", "results/rehearsed", "--json", cwd=rehearsed)
    data = json.loads(result.stdout)
    assert data == json.loads((rehearsed / "results/rehearsed/run/timeline.json").read_text())
    assert [each["reason"] for each in data["transitions"]] == ["start", "scale-up", "scale-down"]


class Rehearsal:
    """A backend whose job has been run already when it is submitted."""

    name = "local"

    def __init__(self, play):
        self._play = play

    def intent(self, bundle, known):
        return None

    def submit(self, bundle):
        self._play(bundle.directory / "run")
        return JobHandle("local", bundle.job_name, bundle.directory)

    def logs(self, handle, selection=None, *, follow):
        return iter(())

    def events(self, handle, *, follow):
        return iter(())

    def wait(self, handle):
        yield self.status(handle)

    def status(self, handle):
        return JobStatus(JobState.SUCCEEDED, 0, "completed")


def steady(run_dir, *, unfired=False):
    job = Job(run_dir, launched=time.time())
    job.start([0])
    if unfired:
        job.event("unfired", message="step 900: node 1 is lost")
    job.end()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("play", "lines"),
    [
        (rehearse, ["1 -> 2 -> 3 -> 2 -> 3 -> 3 -> 1 nodes (times in", "succeeded after", "never came", "picture"]),
        (steady, []),
        (lambda run_dir: steady(run_dir, unfired=True), ["1 node (times in", "succeeded after", "never", "picture"]),
        (lambda run_dir: run_dir.mkdir(), []),
    ],
    ids=["scaled", "steady", "unfired", "no-events"],
)  # fmt: skip
def test_a_job_that_scaled_is_followed_by_its_timeline(prepare, context, monkeypatch, capsys, play, lines):
    pytest.importorskip("matplotlib")
    bundle = pipeline.render(prepare("recipes.training_config.mlflow.enabled=false"), context)
    pipeline.write(bundle)
    monkeypatch.setattr(backend_registry, "load_backend", lambda name: Rehearsal(play))
    assert launch.launch(bundle, "local") == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[-2] == "succeeded" and shown[-1].startswith("logs ")
    heads = [line for line in shown[:-2] if line.startswith(tuple(lines))]
    assert bool(heads) == (len(shown) > 2) and len(heads) == len(lines)
    assert all(line.startswith(start) for line, start in zip(heads, lines, strict=True))


FOLLOW = """
import sys
from launcher.cli import terminal
from launcher.model.job_spec import LogLine
news = LogLine("event", None, "node 1 is lost")
before, after = ([LogLine("line", 0, text) for text in texts] for texts in (
    ["hello", "step 9/20  a"], ["step 5/20  b", "step 6/20  c"]))
terminal.follow(iter([*before, news, *after]))
"""


@pytest.mark.slow
def test_a_terminal_s_progress_bar_goes_back_to_the_step_that_is_done_again(tmp_path):
    master, slave = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100", "NO_COLOR": "1"}
    subprocess.run([sys.executable, "-c", FOLLOW], cwd=ROOT, env=environment, stdout=slave, check=True, timeout=200)
    os.close(slave)
    shown = os.read(master, 65536).decode()
    os.close(master)
    assert "hello" in shown and "event  node 1 is lost" in shown
    assert re.findall(r"(\d+)/20 [^/]*? ended; last step: ([abc])\s", shown)[-1] == ("6", "c")


FOLLOW_LIVE = """
import sys
from launcher.cli import terminal
from launcher.model.job_spec import NEWS, LogLine
made = terminal._progress
def kept(*arguments):
    global bar
    bar = made(*arguments)
    return bar
terminal._progress = kept
def lines():
    for text in sys.argv[1:]:
        kind, _, words = text.partition("  ")
        yield LogLine(kind, None, words) if kind in NEWS else LogLine("line", 0, text)
    bar.refresh()
terminal.follow(lines())
"""


def shown_on_a_terminal(lines, columns):
    """Return what `follow` prints on a terminal, the progress line before the job ended, and the one at its end."""
    master, slave = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": str(columns), "NO_COLOR": "1"}
    command = [sys.executable, "-c", FOLLOW_LIVE, *lines]
    subprocess.run(command, cwd=ROOT, env=environment, stdout=slave, check=True, timeout=200)
    os.close(slave)
    shown = os.read(master, 65536).decode()
    os.close(master)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    frames = [line.rstrip() for line in re.split(r"[\r\n]+", plain) if line.startswith("step")]
    return plain, [frame for frame in frames if " ended" not in frame][-1], frames[-1]


STEP = "step 1041/12000  loss 2.3112  3 nodes, 6 ranks, 310.2 samples/s"


@pytest.mark.slow
@pytest.mark.parametrize("columns", [50, 66, 120])
def test_the_step_stays_readable_however_narrow_the_terminal_is(columns):
    shown, live, last = shown_on_a_terminal([STEP], columns)
    assert "1041/12000 loss 2.3112" in live.replace("remaining -:--:-- ", "")
    assert max(len(live), len(last)) <= columns
    assert ("remaining" in shown) == ("━" in shown) == (columns == 120)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [50, 120])
def test_the_last_progress_line_shows_that_the_job_ended(columns):
    *_, last = shown_on_a_terminal([STEP, "fault  node 1: its agent ended", STEP, "last words"], columns)
    assert re.search("1041/12000 +ended; last step: loss 2.3112", last) and "remaining" not in last
    *_, last = shown_on_a_terminal([STEP, "fault  node 1: its agent ended"], columns)
    assert re.search("1041/12000 +ended$", last) and "remaining" not in last


def test_the_last_progress_line_shows_that_following_was_interrupted():
    pulse = terminal._Pulse()
    pulse.step("loss 2.3", 1.0)
    with pytest.raises(KeyboardInterrupt), pulse.until_over():
        raise KeyboardInterrupt
    assert pulse.words(9.0) == "interrupted; last step: loss 2.3"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("news", "said"),
    [
        ("fault  node 1: its agent ended", "restarting"),
        ("scale  2 -> 0 nodes, until there is room again", "waiting for nodes"),
    ],
    ids=["fault", "suspension"],
)
def test_the_progress_line_tells_no_rate_while_nothing_trains(news, said):
    _, live, _ = shown_on_a_terminal([STEP, news, "event  an -> 0 event"], 80)
    assert re.search(rf"1041/12000 {said} \(\d+ s since the last step\)", live) and "samples/s" not in live


def test_the_progress_line_notices_by_itself_that_no_step_comes():
    pulse = terminal._Pulse()
    assert pulse.words(0.0) == "starting"
    pulse.step("a", 10.0)
    pulse.step("b", 11.0)
    pulse.news(LogLine("scale", None, "2 -> 3 nodes"))  # comes while training goes on
    assert pulse.words(12.0) == "b"
    assert pulse.words(20.0) == "restarting (9 s since the last step)"
    pulse.step("c", 22.0)
    assert pulse.words(23.0) == "c" and pulse.words(31.0) == "waiting (9 s since the last step)"
    pulse.step("d", 32.0)  # steps take as long as that
    assert pulse.words(60.0) == "d"


def interrupt():
    signal.raise_signal(signal.SIGINT)


class Interrupted(Rehearsal):
    """A backend whose user presses Ctrl-C while it follows the job, and as often again while it stops it."""

    def __init__(self, presses):
        super().__init__(steady)
        self.cancelled = 0
        self._presses = presses

    def logs(self, handle, *, follow):
        interrupt()
        yield "never read"

    def cancel(self, handle):
        self.cancelled += 1
        if self.cancelled <= self._presses:
            interrupt()

    def status(self, handle):
        return JobStatus(JobState.CANCELLED, 0, "stopped by SIGTERM")


@pytest.mark.slow
@pytest.mark.parametrize("presses", [0, 1, 2], ids=["once", "twice", "thrice"])
def test_ctrl_c_ends_the_run_and_says_so_however_often_it_is_pressed(prepare, context, monkeypatch, capsys, presses):
    bundle = pipeline.render(prepare("recipes.training_config.mlflow.enabled=false"), context)
    pipeline.write(bundle)
    backend, finished = Interrupted(presses), []
    monkeypatch.setattr(backend_registry, "load_backend", lambda name: backend)
    monkeypatch.setattr(tracking, "finish", lambda bundle, state, course: finished.append(state))
    assert launch.launch(bundle, "local") == 130
    said = capsys.readouterr().err
    assert finished == [JobState.CANCELLED] and "cancelled  stopped by Ctrl-C" in said
    assert backend.cancelled == (2 if presses else 1)
    assert ("stopping immediately" in said) == (presses > 0)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_thread_that_writes_leaves_ctrl_c_to_the_main_one():
    """Pages write in threads, where Python sets no handler."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process.begin()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(process.allow_clean_up).result()
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        process.allow_clean_up()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_a_job_whose_operator_died_is_told_how_to_go_on(prepare, context, monkeypatch, capsys):
    def play(run_dir):
        Job(run_dir, launched=time.time()).start([0])

    bundle = pipeline.render(prepare("recipes.training_config.mlflow.enabled=false"), context)
    pipeline.write(bundle)
    backend = Rehearsal(play)
    backend.status = lambda handle: JobStatus(JobState.FAILED, 0, "the job's operator died")
    monkeypatch.setattr(backend_registry, "load_backend", lambda name: backend)
    assert launch.launch(bundle, "local") == 3
    said = capsys.readouterr().err
    assert "failed  the job's operator died" in said
    assert f"resume from the last checkpoint with: recipes launch {terminal.shown_path(bundle.directory)}" in said


def test_what_is_abandoned_is_told():
    event = OperatorEvent(1.0, "abandoned", "the new nodes are no longer needed", {})
    assert log_line(event).shown(with_writer=False) == "scale  given up: the new nodes are no longer needed"


@pytest.mark.slow
def test_a_pipe_gets_every_step_line_as_plain_text():
    result = subprocess.run([sys.executable, "-c", FOLLOW], cwd=ROOT, capture_output=True, text=True, timeout=200)
    steps = ["step 5/20  b", "step 6/20  c"]
    assert result.stdout.splitlines() == ["hello", "step 9/20  a", "event  node 1 is lost", *steps]


def test_a_pipe_gets_the_last_step_of_an_interrupted_job(capsys):
    def lines():
        yield from (LogLine("line", 0, text) for text in ("step 7/20  a", "step 8/20  b"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        terminal.follow(lines())
    assert capsys.readouterr().out.splitlines() == ["step 7/20  a", "step 8/20  b"]
