"""The program of the container, up to its first optimizer step; it takes the same arguments.

Prints the seconds of the processor that its process has used by then. A warm process that imports this module does
the same in its forks.
"""

import os
import time
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from launcher.runtime import entrypoint


def report(*_: Any) -> None:
    """Print the figure and end the process."""
    print(f"first step after {time.process_time()}", flush=True)
    os._exit(0)


register_optimizer_step_post_hook(report)

if __name__ == "__main__":
    entrypoint.main()
