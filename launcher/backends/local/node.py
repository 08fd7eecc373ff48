"""One simulated node: a process that runs a command and takes everything below with it when it ends.

    python -m launcher.backends.local.node [--parent PID] -- COMMAND ...

The agent starts its workers in sessions of their own, so that they keep training if only the agent or its process
group is killed. A node adopts and kills them: when the command ends, on SIGTERM, SIGINT or SIGHUP, and when the
parent dies.
"""

import argparse
import os
import signal
import subprocess
import sys
from functools import partial

from launcher.common import prctl
from launcher.operator.processes import end_with_parent, hold_node_folders, kill_descendants, remove_node_folder
from launcher.operator.stop_signals import end_on_signals, ignore_end_signals


def main(argv: list[str] | None = None) -> int:
    """Run the command to its end and return its exit status (128 + N for signal N)."""
    parser = argparse.ArgumentParser(prog="node", description="Run a command as a simulated node.")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="pid to end with")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args(argv)
    end_on_signals()
    try:
        # Two levels and no ExitStack: a signal between the first and the second must not skip the second.
        try:
            prctl.adopt_orphans()
            end_with_parent(args.parent)
            remove_node_folder(os.getpid())  # of an earlier process with this pid
            own = hold_node_folders(os.getpid())
            # If this process is killed itself, the kernel kills the child.
            child = subprocess.Popen(
                args.command,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **own},
                preexec_fn=partial(prctl.signal_at_parents_end, signal.SIGKILL),
            )
            status = child.wait()
        finally:
            ignore_end_signals()
    finally:
        kill_descendants()
        remove_node_folder(os.getpid())
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
