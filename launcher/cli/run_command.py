"""The command line of `recipes run` and `main.py`."""

from collections.abc import Sequence

from launcher.cli import launch
from launcher.common import redaction


def run(words: Sequence[str]) -> int:
    """Compile and launch what a command line names: overrides, and flags of the launcher or of Hydra.

    Returns:
        The exit code; with flags, the highest of the jobs that they request.
    """
    redaction.install()
    if any(word.startswith("-") for word in words):  # --name, --version; --cfg, --multirun: Hydra's
        from launcher.cli import own_flags

        return own_flags.serve(words, launch.main)
    return launch.main(words)
