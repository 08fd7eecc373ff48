"""Compile a recipe and launch it: `python main.py recipes=<path> [key=value …]` is `recipes run …`."""

import gc
import sys

gc.set_threshold(250_000)  # start-up makes many objects and no garbage: collecting costs a tenth of a dry run
sys.path.insert(0, __file__.rpartition("/")[0] or ".")

from launcher.common import process  # noqa: E402


def main() -> int:
    try:
        from launcher.common import redaction

        redaction.install()  # first: the deeper in other imports patterns are compiled, the longer it takes
        from launcher.cli import run_command
    except ModuleNotFoundError as error:
        print(f"{error.name} is not installed: make run, or pip install .", file=sys.stderr)
        return 2
    return run_command.run(sys.argv[1:])


if __name__ == "__main__":
    process.begin()
    code = process.ended(main)
    gc.freeze()  # nothing left to collect on the way out either
    process.leave(code)
