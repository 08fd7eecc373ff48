"""What a program or a notebook waits for: the import, a plan, many plans, and the metrics of a long job."""

import concurrent.futures
import json

import pytest
from conftest import LLAMA, paired

import launcher
from launcher.common.names import METRICS_FILE, RUN_DIR

GIVEN = {"instance_type": "p5.48xlarge", "container": "me/image:1"}
NUM_POINTS = 100_000


def session(folder):
    return launcher.Session(folder, "ada", suffix=lambda: "x068q")


def compiled(name, shared):
    return launcher.compile(name, GIVEN, cluster="k8s", session=shared)


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """Return 100 recipes that compile with the same two values."""
    shared, found = session(tmp_path_factory.mktemp("names")), []
    for entry in launcher.recipes():
        plan = launcher.compile(entry.name, GIVEN, cluster="k8s", session=shared, strict=False)
        found += [] if plan.problems else [entry.name]
        if len(found) == 100:
            return found
    raise AssertionError(f"only {len(found)} recipes compile")


def test_import(tmp_path, report):
    """Target: at most 60 ms more than an interpreter that does nothing."""
    paired(["-c", "import launcher"], ["-c", ""], tmp_path, rounds=2)  # fills the bytecode caches
    found = paired(["-c", "import launcher"], ["-c", ""], tmp_path)
    report("import launcher {ours_s:.3f} s, nothing {floor_s:.3f} s, peak {peak_mib:.0f} MiB".format(**found))


def test_warm_plan(benchmark, tmp_path):
    """Target: at most 20 ms for a plan of 7 sizes, compiled again in one process."""
    shared, name = session(tmp_path), LLAMA.partition("=")[2]

    def again():
        return launcher.compile(name, GIVEN, cluster="k8s", elastic=True, session=shared)

    assert len(again().sizes) == 7
    benchmark(again)


def test_a_hundred_recipes(benchmark, names, tmp_path):
    """Target: at most 5 s for 100 recipes, none of whose files a session has read."""

    def every():
        shared = session(tmp_path)
        return [compiled(name, shared) for name in names]

    assert len({plan.recipe for plan in benchmark.pedantic(every, rounds=5)}) == 100


def test_two_hundred_in_eight_threads(benchmark, names, tmp_path):
    """Reported: 100 recipes, each compiled and rendered twice by eight threads that share a session."""

    def digests(pool):
        shared = session(tmp_path)
        return list(pool.map(lambda name: compiled(name, shared).bundle.digest, names * 2))

    with concurrent.futures.ThreadPoolExecutor(1) as alone:
        expected = digests(alone)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert benchmark.pedantic(digests, (pool,), rounds=3) == expected


def test_metrics(benchmark, tmp_path):
    """Target: at most 0.3 s for the metrics of 100,000 steps as a data frame."""
    file = tmp_path / RUN_DIR / METRICS_FILE
    file.parent.mkdir()
    row = {"time": 1.5e9, "attempt": 0, "loss": 2.125, "learning_rate": 1e-4, "samples_per_s": 12.5, "nodes": 2}
    file.write_text("".join(json.dumps({"step": step, **row}) + "\n" for step in range(NUM_POINTS)))
    assert len(benchmark(lambda: launcher.Job(tmp_path).metrics().frame())) == NUM_POINTS
