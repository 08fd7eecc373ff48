"""Every recipe of the collection as a job on Slurm."""

import json
import subprocess

import pytest
import slurm_cluster
from conftest import frozen_context
from test_conformance import RECIPES, planned_where_it_runs

from launcher import pipeline
from launcher.backends.slurm.rendering import JOB_FILE
from launcher.bundle import store as bundles
from launcher.common import yaml_io

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Return the job of every recipe that runs there, by its name."""
    folder = tmp_path_factory.mktemp("catalogue")
    every = ((name, planned_where_it_runs(name, "slurm", folder)) for name in RECIPES)
    return {name: job for name, job in every if job}


@pytest.fixture(scope="module")
def rendered(jobs):
    """Return the scripts of every recipe, by its name."""
    return {name: rendered_bundle(job).files for name, job in jobs.items()}


def rendered_bundle(job):
    bundle = pipeline.render(job, frozen_context(job.cwd))
    assert bundles.config_of(bundle) is job.config
    return bundle


def test_a_configuration_is_the_one_that_its_file_has(jobs, rendered):
    """The bundle has it, so that it is not parsed."""
    for name, job in jobs.items():
        text = rendered[name]["recipe.yaml"]
        assert json.dumps(yaml_io.load(text)) == json.dumps(job.config), name


def test_every_script_is_sound(rendered, tmp_path):
    scripts = []
    for number, files in enumerate(rendered.values()):
        for name in (name for name in files if name.startswith("slurm/") and name.endswith(".sh")):
            path = tmp_path / f"{number}-{name.rpartition('/')[2]}"
            path.write_text(files[name])
            scripts.append(str(path))
    check = 'for script; do bash -n "$script" || echo "$script"; done'
    done = subprocess.run(("bash", "-c", check, "bash", *scripts), capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.whole_job
def test_slurm_takes_every_kind_of_job(rendered, tmp_path_factory):
    """Of recipes with the same header one is tried."""
    if missing := slurm_cluster.absent():
        pytest.skip(f"no {', '.join(missing)}: {slurm_cluster.INSTALL}")
    most = {}
    for files in rendered.values():
        header = [
            line for line in files[JOB_FILE].splitlines() if line.startswith("#SBATCH") and "job-name" not in line
        ]
        most[tuple(header)] = files[JOB_FILE]
    with slurm_cluster.running(tmp_path_factory.mktemp("slurm"), num_nodes=4) as cluster:
        for header, text in most.items():
            env = {"SLURM_CONF": str(cluster.conf), "PATH": "/usr/bin:/bin"}
            done = subprocess.run(("sbatch", "--test-only"), input=text, env=env, capture_output=True, text=True)
            assert done.returncode == 0, (header, done.stderr)
