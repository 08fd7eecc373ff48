"""What the container runs: `python -m launcher.runtime.entrypoint --config-path DIR`.

DIR holds one configuration per cluster size; the size that started picks its own.
"""

import argparse
import sys
import traceback
from pathlib import Path
from types import TracebackType

from launcher import contract
from launcher.runtime.agent import install_event_handler


def leave_on_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback and end the process at once: as `sys.excepthook`, a fault never hangs."""
    from launcher.runtime.process_group import leave

    traceback.print_exception(kind, error, trace)
    leave(exit_code=1)


def main() -> None:
    """Train the configuration of this cluster size and end the process."""
    # First of all: until the handler is installed, the agent's stop signal kills this process.
    event_detected = install_event_handler()
    parser = argparse.ArgumentParser(prog="python -m launcher.runtime.entrypoint", description=__doc__)
    parser.add_argument("--config-path", type=Path, required=True, help="folder of the configurations")
    config_dir = parser.parse_args().config_path

    from torch.distributed.elastic.multiprocessing.errors import record

    from launcher.runtime.process_group import leave

    @record
    def train() -> None:
        import yaml

        from launcher.runtime.process_group import join, place_from_env
        from launcher.runtime.settings import settings_of
        from launcher.runtime.trainer import Trainer

        place = place_from_env()
        path = contract.config_path(config_dir, place.nodes)
        settings = settings_of(yaml.safe_load(path.read_text(encoding="utf-8")), place.world_size)
        join(place)
        # Not before: joining installs a hook of torch's own, which would swallow what this one prints.
        sys.excepthook = leave_on_error
        Trainer(settings, place, contract.run_dir(), event_detected).run()

    train()
    leave(exit_code=0)


if __name__ == "__main__":
    main()
