"""Shared fixtures: a frozen context, and the pipeline up to the bundle."""

import contextlib
import fcntl
import functools
import gc
import io
import itertools
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import ports
import psutil
import pytest
import skips

from launcher import pipeline
from launcher.api.checking import placeholders
from launcher.cli import main as cli
from launcher.common import names, process, redaction
from launcher.common.problems import Problem, ProblemsFound
from launcher.config import catalogue
from launcher.config.catalogue import Entry
from launcher.config.compose import compose
from launcher.config.composed_files import CompositionCache
from launcher.model.composition import Composition
from launcher.model.context import LaunchContext
from launcher.model.job_spec import Bundle

LLAMA = "fine-tuning/llama/llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lora"
SHORT = LLAMA.rpartition("/")[2]
RATE = "recipes.training_config.training_args.learning_rate"
ELASTIC = "++recipes.elastic_policy.is_elastic=true"
SCRIPT_K8S = (
    "recipes=training/custom/script",
    "cluster=k8s",
    "container=me/image:1",
    "training_cfg.entry_script=a.py",
    "training_cfg.run.ntasks_per_node=8",
)
LLAMA_K8S = (f"recipes={LLAMA}", "cluster=k8s")
CACHE = CompositionCache()
"""What the compositions of a test process have read: the fixtures share it."""
ROOT = Path(__file__).resolve().parent.parent
API_SERVER_TESTS = ROOT / "tests" / "kubernetes"
"""Folder of the tests against an API server: one process runs them all, with one server."""
SINGLE_JOBS = ("test_rehearsal", "test_rehearsal_faults", "test_rehearsal_tiers")
"""Files of which each test starts a job of its own, and mostly waits for it."""
LONGEST = (
    *SINGLE_JOBS,
    *("test_faults_in_place", "test_resize_in_place", "test_open_trainer_job", "test_failures"),
    *("test_ray_hosts", "test_export", "test_training"),
    *("test_slurm_elastic", "test_slurm_ssh_elastic", "test_slurm_jobs", "test_slurm_use", "test_slurm_ssh"),
    *("test_elastic", "test_against_loop", "test_slurm_interruptions", "test_random_schedules"),
    *("test_interrupted", "test_os_errors", "test_end_to_end", "test_examples", "test_local_jobs"),
    *("test_conformance", "test_own_recipe", "test_recipe_names", "test_docs"),
    *("test_tiers_order", "test_container", "test_main", "test_command_lines", "test_tiers_traffic"),
    *("test_runtime_gradients", "test_runtime_job"),
)
"""Files that take longest, to begin with: at the end no process waits long for another."""
LAST = ("test_ray_backend_jobs", "test_ray_doctor")
"""Files to end with: their Ray cluster runs until the end, and takes processor time while it waits."""

# OpenMP's threads wait for each other by spinning: on a busy machine, for half a rank's processor time.
os.environ["OMP_NUM_THREADS"] = "1"


def has_room(folder: Path, gib: int) -> bool:
    """Return whether programs can be run from a folder in memory, and `gib` GiB are free there."""
    if not os.access(folder, os.W_OK):
        return False
    here = os.statvfs(folder)
    free = [here.f_bavail * here.f_frsize, psutil.virtual_memory().available]
    for limit in ("memory.max", "memory/memory.limit_in_bytes"):  # of a container, version 2 and 1
        with contextlib.suppress(OSError, ValueError):
            free.append(int(Path("/sys/fs/cgroup", limit).read_text(encoding="utf-8")))
    return not here.f_flag & os.ST_NOEXEC and min(free) >= gib << 30


# Tests write and remove some 100,000 small files, and databases flush theirs: on a disk, processes wait for it.
if has_room(names.SHARED_MEMORY, 12):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(names.SHARED_MEMORY))

# How long an example takes depends on what else the machine does.
ANY_LOAD = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("short", ANY_LOAD, max_examples=20)
hypothesis.settings.register_profile("long", ANY_LOAD, max_examples=100)
hypothesis.settings.load_profile("short")  # --hypothesis-profile=long is read later, and counts


def examples(most: int) -> hypothesis.settings:
    """Return the settings of a test that takes `most` examples in the long profile, and a tenth in the short one."""
    is_long = hypothesis.settings.default.max_examples >= 100
    return hypothesis.settings(max_examples=most if is_long else most // 10)


def frozen_context(cwd: Path) -> LaunchContext:
    return LaunchContext(
        cwd=cwd,
        suffix="x068q",
        created="2026-01-02T03:04:05+00:00",
        user="ada",
        git_revision=lambda: "0" * 40,
        versions={"hydra-core": "1.3.2"},
    )


def rendered(folder: Path, *words: str) -> Bundle:
    """Return the bundle that a launch in a folder renders."""
    context = frozen_context(folder)
    return pipeline.render(pipeline.prepare(words, context, CACHE), context)


def written(folder: Path, *words: str) -> Bundle:
    """Write the bundle of a launch in a folder; each job of one name needs a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    bundle = rendered(folder, *words)
    pipeline.write(bundle)
    return bundle


@functools.cache
def shipped() -> tuple[Entry, ...]:
    """Return every recipe of the collection; read once for all tests."""
    return catalogue.entries()


@functools.cache
def composed(name: str) -> Composition:
    """Return a shipped recipe composed for cluster=k8s; once for all tests, which leave it as it is."""
    return compose([f"recipes={name}", "cluster=k8s"], Path("/nowhere"), cache=CACHE)


@functools.cache
def needed_by(entry: Entry, cluster: str = "k8s") -> list[str]:
    """Return the overrides without which a recipe of the collection cannot be launched on a cluster."""
    words = [f"instance_type={name}" for name in entry.instance_types[:1]]
    if entry.model_type != "llm_finetuning_aws":
        words.append("container=me/image:1")
    if entry.model_type == "custom":
        return [*words, "training_cfg.entry_module=json.tool", "training_cfg.run.ntasks_per_node=8"]
    choices = (f"recipes={entry.name}", f"cluster={cluster}")
    return [*words, *placeholders(compose((*choices, *words), ROOT, cache=CACHE))]


WITHOUT_VALUE = (
    *("E003", "E005", "E009", "E101", "E314"),  # a key that should not be there at all
    *("E215", "E223", "E234", "E310", "E318"),  # these two lines: about more than the value of that key
    *("E380", "E387", "E388", "E604"),
    *("E324", "E601", "E602", "E603", "E605", "E606", "E607", "E608", "E609", "E610"),  # too long, or secret
)
"""Codes of Problems that do not show what their key was set to."""


def assert_values_shown(problems: Iterable[Problem], overrides: Sequence[str]) -> None:
    """Check that a Problem with a key that an override sets shows the value of that override."""
    given = {key.lstrip("+"): text for key, _, text in (override.partition("=") for override in overrides)}
    for problem in problems:
        text = given.get(problem.path, "null")
        is_plain = text != "null" and re.fullmatch(r"[\w./:-]{1,200}", text)
        is_plain = is_plain and problem.path not in ("recipes", "cluster.scenario")  # about a file that they name
        if is_plain and problem.code not in WITHOUT_VALUE and problem.value != "…":
            assert text.lower() in str(problem.value).lower(), problem


def in_process(program: Callable[[Sequence[str]], int], *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the launcher in this process, which has its imports, in a folder and with files as output."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = process.ended(lambda: program(words))
        texts = [(each.seek(0), each.read())[1] for each in (out, err)]
    return subprocess.CompletedProcess(words, code, *texts)


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that `make` fills in the first process that wants it, for all processes of this test run."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder, unfinished = base / name, base / f"{name}-unfinished"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(folder)
    return folder


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an MLflow store without runs."""

    def make(folder: Path) -> None:
        from mlflow import MlflowClient

        MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db").search_experiments()

    return made_once(tmp_path_factory, "empty-store", make) / "mlflow.db"


@pytest.fixture
def store(tmp_path: Path, empty_store: Path) -> None:
    """Lay an MLflow store where jobs launched in `tmp_path` look for one: its tables take longer than most tests."""
    results = tmp_path / "results"
    results.mkdir()
    shutil.copy(empty_store, results)


@pytest.fixture(scope="session")
def shellcheck() -> Callable[..., None]:
    """Return a function that asserts that shellcheck finds nothing in files, or in texts for bash."""
    program = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert program, "shellcheck is one of the test dependencies"

    def check(*scripts: Path | str, exclude: str = "") -> None:
        with tempfile.TemporaryDirectory() as folder:
            files = [each for each in scripts if isinstance(each, Path)]
            words = [f"--exclude={exclude}"] if exclude else []
            for number, text in enumerate(each for each in scripts if isinstance(each, str)):
                files.append(Path(folder, f"{number}.sh"))
                files[-1].write_text(text, encoding="utf-8")
                words.append("--shell=bash")
            done = subprocess.run([program, *words, *files], capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout

    return check


@pytest.fixture(scope="session")
def closed_port() -> Iterator[int]:
    """Yield a loopback port on which nothing listens, and which no other process is given meanwhile."""
    with ports.closed() as port:
        yield port


@pytest.fixture(autouse=True)
def own_secrets() -> Iterator[None]:
    """Forget the secrets that a test has shown: each one that a process knows slows all its later output."""
    before = redaction._process.known
    yield
    redaction._process.known = before


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """Return what the process logs during the test, whose level of the root is its own."""
    text, level = io.StringIO(), logging.root.level
    handler = logging.StreamHandler(text)
    logging.root.addHandler(handler)
    yield text
    logging.root.removeHandler(handler)
    logging.root.setLevel(level)


@pytest.fixture
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test a node's memory and a run folder of its own."""
    monkeypatch.setenv(names.ENV_NODE_MEMORY, str(tmp_path / "memory"))
    monkeypatch.setenv(names.ENV_RUN_DIR, str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def context(tmp_path: Path) -> LaunchContext:
    return frozen_context(tmp_path)


@pytest.fixture
def prepare(context: LaunchContext):
    """Return a function from overrides to a planned job."""
    return lambda *overrides: pipeline.prepare(overrides, context, CACHE)


@pytest.fixture
def render(context: LaunchContext):
    """Return a function from overrides to a rendered bundle."""
    return lambda *overrides: pipeline.render(pipeline.prepare(overrides, context, CACHE), context)


@pytest.fixture
def recipes(capsys, tmp_path, monkeypatch):
    """Return a function that runs a `recipes` command line in a folder of its own: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        code = cli.run(words)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def elastic_bundle(recipes) -> Path:
    """Return the folder of an elastic job's bundle, its learning rate overridden."""
    assert recipes("render", SHORT, "cluster=k8s", ELASTIC, f"{RATE}=0.3")[0] == 0
    (folder,) = Path("results").iterdir()
    return folder


@pytest.fixture
def reviewed(request: pytest.FixtureRequest):
    """Return a function that compares code, key and value of a test's Problems with those that were reviewed."""

    def compare(name: str, problems: Iterable[Problem]) -> None:
        found = [[each.code, each.path, each.value] for each in problems]
        found = json.loads(json.dumps(found, default=str))
        file = ROOT / "tests" / "golden" / "problems.json"
        golden = json.loads(file.read_text()) if file.exists() else {}
        if request.config.getoption("--rewrite-goldens"):
            lines = [
                f"{json.dumps(key)}: {json.dumps(value)}" for key, value in sorted((golden | {name: found}).items())
            ]
            file.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        else:
            assert found == golden.get(name), "review it, then accept it with --rewrite-goldens"

    return compare


@pytest.fixture
def problems(context: LaunchContext):
    """Return a function from overrides to the Problems they make."""

    def found(*overrides: str) -> tuple[Problem, ...]:
        with pytest.raises(ProblemsFound) as caught:
            pipeline.prepare(overrides, context, CACHE)
        assert_values_shown(caught.value.problems, overrides)
        return caught.value.problems

    return found


def pytest_configure() -> None:
    """Hear Ctrl-C and SIGHUP, and let what tests start hear them: a shell in the background or nohup ignores them."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files of which `-m "not slow and …"` selects no test: importing them takes longer than many tests."""
    if collection_path.suffix != ".py" or not (left_out := re.findall(r"\bnot (\w+)", config.option.markexpr)):
        return None
    own = re.search(r"^pytestmark = (.+)", collection_path.read_text(encoding="utf-8"), re.MULTILINE)
    marks = re.findall(r"pytest\.mark\.(\w+)", own[1]) if own else []
    return True if set(marks) & set(left_out) else None  # None: others may leave it out


def pytest_collection_finish() -> None:
    """Have the garbage collector pass over what was imported, and look seldom: it took a third of the quick loop."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-goldens", action="store_true", help="accept what is rendered now as reviewed")
    parser.addoption("--no-skips", action="store_true", help="fail tests that skip and are not in allowed_skips.txt")
    parser.addoption("--minutes", type=float, help="leave out, and count, the tests that have not begun by then")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest; mark the tests of a backend's jobs, and what `make test` leaves out."""
    for item in items:
        if "submitted" in getattr(item, "fixturenames", ()):  # job_suite.py, by whatever file imports its tests
            item.add_marker("whole_job")
            item.add_marker("sample")  # a job of each kind of cluster
        if item.path.parent == API_SERVER_TESTS:
            item.add_marker("slow")
            item.add_marker("long")
    crossed = [item for item in items if item.get_closest_marker("crossed")]
    for _, combinations in itertools.groupby(crossed, key=lambda item: item.nodeid.partition("[")[0]):
        mark_combinations(list(combinations))
    mark_long(items)
    order = {name: place for place, name in enumerate(LONGEST)} | dict.fromkeys(LAST, len(LONGEST) + 1)
    items.sort(
        key=lambda item: -1 if item.path.parent == API_SERVER_TESTS else order.get(item.path.stem, len(LONGEST))
    )


def mark_long(items: Iterable[pytest.Item]) -> None:
    """Mark whole jobs as long, and the cases of slow tests except the first one of each test."""
    begun = set()
    for item in items:
        if item.get_closest_marker("whole_job"):
            item.add_marker("long")
        elif item.get_closest_marker("slow"):
            test = item.path, getattr(item, "originalname", item.name)
            if test in begun:
                item.add_marker("long")
            begun.add(test)


def mark_combinations(items: Sequence[pytest.Item]) -> None:
    """Leave the quick loop as many of a test's combinations of parameters as have each value; the others are slow."""
    sizes = [len(mark.args[1]) for mark in items[0].iter_markers("parametrize")]
    quick = {tuple(turn % size for size in sizes) for turn in range(max(sizes))}
    # Not strict: a test run of cases named one by one has fewer.
    for item, indices in zip(items, itertools.product(*map(range, sizes)), strict=False):
        if indices not in quick:
            item.add_marker("slow")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    skips.unless_time_is_left(item.config.getoption("--minutes"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests the `--minutes` left out."""
    if left_out := sum(skips.for_no_time(report) for report in terminalreporter.stats.get("skipped", [])):
        were = "test was" if left_out == 1 else "tests were"
        terminalreporter.write_line(f"{left_out} {were} left out: {skips.NO_TIME}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Fail a test that skips, with --no-skips."""
    report = yield
    return skips.refused(report) if item.config.getoption("--no-skips") else report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Fail a file that skips as a whole, with --no-skips."""
    report = yield
    return skips.refused(report) if collector.config.getoption("--no-skips") else report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Have each process take file by file, and the tests of some files one by one; one takes the API server's."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if API_SERVER_TESTS.name in Path(file).parts:
                return API_SERVER_TESTS.name
            return nodeid if Path(file).stem in SINGLE_JOBS else file

    return Scheduling(config, log)
