"""The jobs of a sweep that are submitted together, and what keeps them from it."""

from types import SimpleNamespace

import pytest

from launcher.cli import launch_sweep
from launcher.config.composed_files import CompositionCache


@pytest.fixture
def launched(monkeypatch):
    """Record the bundles that are launched together."""
    found = []
    monkeypatch.setattr(
        launch_sweep, "launch_all", lambda bundles, name, wait: found.append((bundles, name, wait)) or 0
    )
    return found


def compiling(tmp_path, codes, **taken):
    """Return a launch of one job that ends with the next code, its bundle taken by the sweep if that is 0."""
    left = iter(codes)

    def launch_one(words, cache, sweep):
        code = next(left)
        bundle = SimpleNamespace(directory=tmp_path / words[0])
        if code == 0:
            assert sweep.takes(bundle, "slurm", **{"is_rendered_only": False, "wait": False, **taken})
        return code

    return launch_one


def run(launch_one, count=3):
    return launch_sweep.run(launch_one, [[f"a={i}"] for i in range(count)], CompositionCache())


def test_all_are_launched_together_after_the_last(launched, tmp_path):
    assert run(compiling(tmp_path, [0, 0, 0], wait=True)) == 0
    ((bundles, name, wait),) = launched
    assert [bundle.directory.name for bundle in bundles] == ["a=0", "a=1", "a=2"]
    assert (name, wait) == ("slurm", True)


@pytest.mark.parametrize("codes", [(0, 2, 0), (0, 130), (0, 0, 143)], ids=["faulty", "interrupted", "at-the-last"])
def test_none_is_launched_if_one_is_not_compiled(launched, tmp_path, capsys, codes):
    assert run(compiling(tmp_path, codes)) == max(codes)
    assert not launched
    printed = " ".join(capsys.readouterr().err.split())
    assert "the compiled jobs were not submitted" in printed and f"recipes launch {tmp_path}/a=0" in printed


def test_rendered_jobs_are_not_launched(launched, tmp_path, capsys):
    assert run(compiling(tmp_path, [0, 0], is_rendered_only=True), 2) == 0
    assert not launched and "submits them together" in capsys.readouterr().out


@pytest.mark.parametrize("codes", [(0, 2), (0, 130)], ids=["faulty", "interrupted"])
def test_a_part_of_the_rendered_jobs_is_not_offered_for_a_launch(launched, tmp_path, capsys, codes):
    assert run(compiling(tmp_path, codes, is_rendered_only=True), 2) == max(codes)
    printed = capsys.readouterr()
    assert not launched and "recipes launch" not in printed.out + printed.err
    assert "jobs that were not compiled" in printed.err


def test_other_places_take_each_job_at_once(launched):
    def launch_one(words, cache, sweep):
        assert not sweep.takes(SimpleNamespace(), "k8s", is_rendered_only=False, wait=False)
        return 0

    assert run(launch_one) == 0 and not launched


def test_a_single_job_is_no_sweep(launched):
    assert run(lambda words, cache, sweep: 0 if sweep is None else 1, 1) == 0
