"""Compile a recipe and launch it: `python main.py recipes=<path> [key=value …]`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))


def main() -> int:
    from launcher import run

    if any(word.startswith("-") for word in sys.argv[1:]):  # --cfg, --help, --multirun: Hydra's own
        from launcher.compose import hydra_application

        return hydra_application(run.main)
    return run.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
