"""What a user waits for in a results folder of 5,000 jobs that have ended."""

import job_store
import pytest
from conftest import paired

FLOOR = """
import json, os
for entry in os.scandir("results"):
    with open(f"{entry.path}/job.json") as file:
        json.load(file)
"""
COMPLETION = """
import os, sys
os.environ |= {"COMP_WORDS": "recipes status tiny-lm-cpu-00", "COMP_CWORD": "2", "_RECIPES_COMPLETE": "complete_bash"}
sys.argv = ["recipes"]
from launcher.__main__ import main
main()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder whose results have the jobs."""
    folder = tmp_path_factory.mktemp("store")
    job_store.write(folder / "results")
    return folder


@pytest.mark.parametrize(
    "ours",
    [
        pytest.param(["-m", "launcher", "jobs"], id="recipes jobs"),
        pytest.param(["-m", "launcher", "jobs", "--json"], id="recipes jobs --json"),
        pytest.param(["-c", "import launcher; launcher.jobs()"], id="launcher.jobs()"),
        pytest.param(["-m", "launcher", "status", job_store.given(2500)], id="recipes status GIVEN_NAME"),
        pytest.param(["-c", COMPLETION], id="completion of a job"),
    ],
)
def test_a_folder_of_many_jobs(place, report, request, ours):
    """Targets: the listings at most 1 s, completion 0.4 s. The floor reads each record once."""
    paired(ours, ["-c", FLOOR], place, rounds=2)  # fills the bytecode caches
    found = paired(ours, ["-c", FLOOR], place, rounds=11)
    name = request.node.callspec.id
    report("{}: {ours_s:.3f} s, floor {floor_s:.3f} s, peak {peak_mib:.0f} MiB".format(name, **found))
