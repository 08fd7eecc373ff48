"""A process that forks scripts which save a checkpoint and end with `elastic.leave`: a process without threads."""

import json
import os
import sys
from pathlib import Path

from test_tiers import save_steps

from launcher.runtime import agent, elastic
from launcher.runtime.tiers.checkpoint_log import CheckpointLog
from launcher.runtime.tiers.checkpoint_manager import CheckpointManager, StoreTier
from launcher.runtime.tiers.memory_service import MemoryService
from launcher.runtime.tiers.s3_store import Bucket
from launcher.runtime.tiers.stores import Folder, Store

ENDS = ((0, False), (1, False), (0, True))
"""Exit code of each script, and whether the agent stops it."""


def store_of(kind: str, place: str, end: int) -> Store:
    """Return the store of one of the scripts, in a folder, a bucket of S3 or HyperPod's memory tier."""
    if kind == "bucket":
        name, _, endpoint = place.partition(" ")
        return Bucket(name, f"ns{end}/", endpoint)
    return MemoryService(f"ns{end}", 0, 1, 2, place) if kind == "service" else Folder(Path(place, str(end)))


def run_script(store: Store, exit_code: int, *, is_stopped: bool) -> None:
    agent.event_pending = lambda: is_stopped
    save_steps(CheckpointManager(None, [StoreTier(store, 1, 2)], CheckpointLog("ns", 0)), 1)
    elastic.leave(exit_code)


def main(kind: str, place: str) -> None:
    codes = []
    for end, (exit_code, is_stopped) in enumerate(ENDS):
        if not (child := os.fork()):
            run_script(store_of(kind, place, end), exit_code, is_stopped=is_stopped)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(json.dumps(codes))


if __name__ == "__main__":
    main(*sys.argv[1:])
