"""Names that people give to jobs: a line in a bundle's `name.txt`, outside its digest.

Finding a job by its name is in `launcher.bundle.store`.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from launcher.bundle import store as bundles
from launcher.common.locks import locked
from launcher.common.names import NAME_FILE
from launcher.common.problems import Problem, ProblemsFound, fail, raise_any
from launcher.common.secret_forms import holds_token
from launcher.runtime.durable import write_text

_FORM = re.compile(r"[^\W_][\w.-]{0,62}")
_ALLOWED = "1 to 63 letters, digits, '.', '_' and '-', the first a letter or digit"


def problems(name: str | None, results: Path | None = None) -> tuple[Problem, ...]:
    """Return why `name` cannot be given to a new job of a results folder; without one, only its form is checked."""
    if name is None:
        return ()
    if not isinstance(name, str) or not _FORM.fullmatch(name) or holds_token(name):
        return (Problem("E717", "--name", "is not a valid job name", name, _ALLOWED),)
    return _taken(name, results) if results else ()


def give(folder: Path, name: str) -> None:
    """Name the job of the bundle in `folder`, replacing an earlier name.

    Raises:
        ProblemsFound: The name is not valid, is another job's, or cannot be written.
    """
    raise_any(problems(name))
    try:
        with locked(folder.parent):
            raise_any(_taken(name, folder.parent, besides=folder))
            write_text(folder / NAME_FILE, f"{name}\n")
    except OSError as error:
        raise fail("E717", str(folder / NAME_FILE), f"the name cannot be written: {error}", value=name) from error


@contextlib.contextmanager
def given(folder: Path, name: str | None) -> Iterator[None]:
    """Name a job for a launch; a launch that is refused restores the earlier name.

    Raises:
        ProblemsFound: As `give`.
    """
    before = bundles.given_name(folder)
    if name is not None:
        give(folder, name)
    try:
        yield
    except ProblemsFound:
        if name is not None and before is not None:
            give(folder, before)
        elif name is not None:
            (folder / NAME_FILE).unlink(missing_ok=True)
        raise


def _taken(name: str, results: Path, besides: Path | None = None) -> tuple[Problem, ...]:
    """Return a Problem if a job of a results folder already has the name, as its own or its folder's."""
    own = besides and besides.resolve()
    folders = [results / name, *bundles.named(results, name)]
    taken = next((folder for folder in folders if folder.exists() and folder.resolve() != own), None)
    remedy = "another name, or recipes jobs remove the old job"
    return (Problem("E717", "--name", f"is already the name of {taken}", name, remedy=remedy),) if taken else ()
