"""The driver of a resource check: reserves what a program would reserve, on the Ray cluster of RAY_ADDRESS.

python -m launcher.rehearsal.check   reads the check from standard input, and prints the Result as JSON
"""

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

import ray
from ray._private.state import available_resources_per_node
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table

from launcher.model.ray_job import GPU
from launcher.rehearsal.report import Result

_PATIENCE_S = 10.0
"""How long no further group must be placed until the rest counts as waiting for ever; 0.1 s seen for each."""
_WORKER_S = 120.0
"""Time limit for Ray to start a process on a node; 1 to 3 s seen."""
_POLL_S = 0.2


class _MainLoop:
    """Holds the CPUs of the actor that runs a program's main loop."""

    def is_placed(self) -> bool:
        return True


def main() -> None:
    """Make the check."""
    check = json.load(sys.stdin)
    ray.init(log_to_driver=False, logging_level=logging.ERROR)
    main_loop: Any = ray.remote(num_cpus=check["driver_cpus"])(_MainLoop).remote()
    placed, _ = ray.wait([main_loop.is_placed.remote()], timeout=_WORKER_S)
    free: dict[str, dict[str, float]] = available_resources_per_node()  # type: ignore[no-untyped-call]
    available = sum(node.get(GPU, 0) for node in free.values())
    pools = [(pool, _groups(pool, check["strategy"])) for pool in check["pools"]]
    groups = [group for _, own in pools for group in own]
    ready = _ready(groups)
    of_pools = tuple(sum(group in ready for group in own) for _, own in pools)
    print(json.dumps(Result(bool(placed), int(available), of_pools)._asdict()), flush=True)


def _groups(pool: Mapping[str, Any], strategy: str) -> list[PlacementGroup]:
    bundles = [dict(pool["bundle"])] * pool["processes"]
    return [placement_group(bundles, strategy=strategy) for _ in range(pool["nodes"])]


def _ready(groups: list[PlacementGroup]) -> set[PlacementGroup]:
    """Return the groups that Ray places, once all are placed or no further one has been for a while."""
    placed: set[PlacementGroup] = set()
    until_s = time.monotonic() + _PATIENCE_S
    while len(placed) < len(groups) and time.monotonic() < until_s:
        now = {group for group in groups if placement_group_table(group).get("state") == "CREATED"}
        if len(now) > len(placed):
            placed, until_s = now, time.monotonic() + _PATIENCE_S
        time.sleep(_POLL_S)
    waits = {group.ready(): group for group in placed}
    if not waits:
        return set()
    done, _ = ray.wait(list(waits), num_returns=len(waits), timeout=_WORKER_S)
    return {waits[each] for each in done}


if __name__ == "__main__":
    main()
