"""Shared fixtures: a frozen context, and the pipeline up to the bundle."""

import functools
import re
import shutil
import signal
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from launcher import pipeline
from launcher.cli import main as cli
from launcher.common.problems import Problem, ProblemsFound
from launcher.config.catalogue import Entry
from launcher.config.compose import compose
from launcher.model.composition import Composition
from launcher.model.context import LaunchContext

LLAMA = "fine-tuning/llama/llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lora"
SHORT = LLAMA.rpartition("/")[2]
RATE = "recipes.training_config.training_args.learning_rate"
ELASTIC = "++recipes.elastic_policy.is_elastic=true"
LLAMA_K8S = (f"recipes={LLAMA}", "cluster=k8s")
ROOT = Path(__file__).resolve().parent.parent
WHOLE_JOBS = (
    *("test_end_to_end", "test_examples", "test_local_jobs"),
    *("test_random_schedules", "test_rehearsal", "test_rehearsal_faults", "test_rehearsal_tiers"),
)
"""Files whose tests run jobs of several processes."""

# How long an example takes depends on what else the machine does.
hypothesis.settings.register_profile(
    "any-load", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any-load")


def frozen_context(cwd: Path) -> LaunchContext:
    return LaunchContext(
        cwd=cwd,
        suffix="x068q",
        created="2026-01-02T03:04:05+00:00",
        user="ada",
        git_revision="0" * 40,
        versions={"hydra-core": "1.3.2"},
    )


@functools.cache
def composed(name: str) -> Composition:
    """Return a shipped recipe composed for cluster=k8s; once for all tests, which leave it as it is."""
    return compose([f"recipes={name}", "cluster=k8s"], Path("/nowhere"))


def needed_by(entry: Entry) -> list[str]:
    """Return the overrides without which a recipe of the collection cannot be launched on a cluster."""
    words = [f"instance_type={name}" for name in entry.instance_types[:1]]
    if entry.model_type != "llm_finetuning_aws":
        words.append("container=me/image:1")
    if entry.model_type == "custom":
        words += ["training_cfg.entry_module=json.tool", "training_cfg.run.ntasks_per_node=8"]
    return words


WITHOUT_VALUE = (
    *("E003", "E005", "E009", "E101", "E314"),  # a key that should not be there at all
    *(
        "E215",
        "E223",
        "E234",
        "E310",
        "E318",
        "E380",
        "E387",
        "E388",
        "E604",
    ),  # about more than the value of that key
    *("E324", "E601", "E602", "E603", "E605", "E606", "E607", "E608", "E609"),  # too long, or secret
)
"""Codes of Problems that do not show what their key was set to."""


def assert_values_shown(problems: Iterable[Problem], overrides: Sequence[str]) -> None:
    """Check that a Problem with a key that an override sets shows the value of that override."""
    given = {key.lstrip("+"): text for key, _, text in (override.partition("=") for override in overrides)}
    for problem in problems:
        text = given.get(problem.path, "null")
        is_plain = text != "null" and re.fullmatch(r"[\w./:-]{1,200}", text)
        if is_plain and problem.code not in WITHOUT_VALUE and problem.value != "…":
            assert text.lower() in str(problem.value).lower(), problem


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an MLflow store without runs."""
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def store(tmp_path: Path, empty_store: Path) -> None:
    """Lay an MLflow store where jobs launched in `tmp_path` look for one: its tables take longer than most tests."""
    results = tmp_path / "results"
    results.mkdir()
    shutil.copy(empty_store, results)


@pytest.fixture(scope="session")
def unused_port() -> int:
    """Return a loopback port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def context(tmp_path: Path) -> LaunchContext:
    return frozen_context(tmp_path)


@pytest.fixture
def prepare(context: LaunchContext):
    """Return a function from overrides to a planned job."""
    return lambda *overrides: pipeline.prepare(overrides, context)


@pytest.fixture
def render(context: LaunchContext):
    """Return a function from overrides to a rendered bundle."""
    return lambda *overrides: pipeline.render(pipeline.prepare(overrides, context), context)


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
def problems(context: LaunchContext):
    """Return a function from overrides to the Problems they make."""

    def found(*overrides: str) -> tuple[Problem, ...]:
        with pytest.raises(ProblemsFound) as caught:
            pipeline.prepare(overrides, context)
        assert_values_shown(caught.value.problems, overrides)
        return caught.value.problems

    return found


def pytest_configure() -> None:
    """Hear Ctrl-C and SIGHUP, and let what tests start hear them: a shell in the background or nohup ignores them."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-goldens", action="store_true", help="accept what is rendered now as reviewed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the whole jobs."""
    items.sort(key=lambda item: item.path.stem not in WHOLE_JOBS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Have one process run all whole jobs, one after another, while others take file by file.

    A job keeps all cores busy: two at once take longer than one after the other.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "whole jobs" if Path(file).stem in WHOLE_JOBS else file

    return Scheduling(config, log)
