"""The process of the `recipes` command, also as `python -m launcher`."""

import gc
import sys

from launcher.common import process


def main() -> None:
    """Run the words of this process's command line and end it."""
    process.begin()
    gc.set_threshold(100_000)  # start-up makes many objects and no garbage
    process.leave(process.ended(_run))


def _run() -> int:
    words = sys.argv[1:] or ["--help"]
    if words[0] == "run":  # as main.py: without the imports of the other commands
        from launcher.cli import run_command

        return run_command.run(words[1:])
    from launcher.cli import main

    process.allow_clean_up()
    return main.run(words)


if __name__ == "__main__":
    main()
