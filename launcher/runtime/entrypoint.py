"""The program of the container: `python -m launcher.runtime.entrypoint --config-path DIR`.

DIR holds one configuration per cluster size; the one for the current size is used.

The imports below `main` take seconds: the handler of the stop signal must be installed before them.
"""

import argparse
from pathlib import Path

from launcher.common import names
from launcher.runtime import agent
from launcher.runtime.warm_client import run_warm


def main() -> None:
    """Train the configuration of this cluster size and end the process."""
    run_warm()
    # First: until the handler is installed, the agent's stop signal kills this process.
    agent.install_event_handler()
    train()


def train() -> None:
    """Do the work of `main` in a process that already handles the stop signal."""
    parser = argparse.ArgumentParser(prog="python -m launcher.runtime.entrypoint", description=__doc__)
    parser.add_argument("--config-path", type=Path, required=True, help="folder of the configurations")
    config_dir = parser.parse_args().config_path

    from torch.distributed.elastic.multiprocessing.errors import record

    from launcher.runtime.process_group import leave

    record(_train)(config_dir)
    leave()


def _train(config_dir: Path) -> None:
    import yaml

    from launcher.runtime.process_group import join, place_from_env
    from launcher.runtime.trainer import Trainer
    from launcher.runtime.training_config import settings_of

    place = place_from_env()
    path = names.config_path(config_dir, place.nodes)
    settings = settings_of(yaml.safe_load(path.read_text(encoding="utf-8")), place.world_size)
    Trainer(settings, join(place), names.run_dir()).run()


if __name__ == "__main__":
    main()
