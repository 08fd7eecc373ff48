"""Temporary files of simulated nodes: held while the node lives, removed by others once it is dead."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from launcher.operator.processes import remove_dead

HOLD = """
import os, sys
from pathlib import Path
from launcher.operator.processes import hold_node_folders, node_folder
hold_node_folders(os.getpid())
(node_folder(os.getpid()) / "content").write_text("mine")
print(node_folder(os.getpid()), flush=True)
sys.stdin.read()
assert (node_folder(os.getpid()) / "content").read_text() == "mine"
"""


@pytest.fixture
def hold(tmp_path):
    """Return a function that starts a process which holds a node's folders, and returns both."""
    processes = []

    def begin():
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD],
            env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.wait()


def folder_of(process):
    return Path(process.stdout.readline().strip())


def test_a_dead_nodes_folder_goes_with_the_next_node_and_a_live_ones_stays(hold):
    dead, living = hold(), hold()
    left, kept = folder_of(dead), folder_of(living)
    dead.kill()
    dead.wait()
    assert (left / "content").exists()
    folder_of(hold())
    assert not left.exists() and (kept / "content").read_text() == "mine"


@pytest.mark.slow
def test_nodes_that_start_at_once_do_not_take_each_other_for_dead(hold):
    processes = [hold() for _ in range(8)]
    folders = [folder_of(process) for process in processes]
    assert len(set(folders)) == 8 and all((folder / "content").exists() for folder in folders)
    for process in processes:
        process.stdin.close()
        assert process.wait(200) == 0


def test_a_folder_of_a_node_that_was_killed_before_it_had_it_is_removed(tmp_path):
    (tmp_path / ".recipes-node-1").mkdir()
    (tmp_path / "recipes-node-2").mkdir()
    (tmp_path / "recipes-other").mkdir()
    (tmp_path / "recipes-node-3").symlink_to(tmp_path / "recipes-other")
    remove_dead(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recipes-node-3", "recipes-other"]
