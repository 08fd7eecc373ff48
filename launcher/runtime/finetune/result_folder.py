"""The folder of a job's results, which appears complete or not at all.

Results are written beside it under a temporary name. Only the first rank writes; all ranks learn whether it could.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.runtime import process_group
from launcher.runtime.durable import sync

MARK = "result.json"
"""File that only folders of results have, so that nothing else is ever replaced."""


class ExportFailed(RuntimeError):
    """The results could not be written; nothing of them is left."""


class ResultsInUse(RuntimeError):
    """The folder for results holds something else."""


def refuse_foreign(folder: Path) -> None:
    """Check that results may replace a folder: it is missing, empty, or holds results.

    Raises:
        ResultsInUse: It holds something else, which is left as it is.
    """
    if ".." in folder.parts or folder.is_file() or folder.is_mount():
        raise ResultsInUse(f"{folder} cannot hold the results; give model_save_name a name of its own")
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).is_file():
        raise ResultsInUse(
            f"{folder} holds other files, which are left as they are; give model_save_name another name, or move them"
        )


class ResultFolder:
    """A new folder of results: `partial` receives the files, and gets the name `final` at the end. Collective."""

    def __init__(self, partial: Path, final: Path):
        self.partial, self.final = partial, final
        self._patient = process_group.patient_group()

    def first_rank(self, work: Callable[[], object]) -> None:
        """Let the first rank write something; the others wait for it as long as it takes.

        Raises:
            ExportFailed: It could not, on all ranks.
        """
        from safetensors import SafetensorError  # its errors while writing are no OSError

        def attempt() -> None:
            try:
                work()
            except (OSError, SafetensorError) as error:
                raise ExportFailed(
                    f"{self.final}: the results could not be written ({error}); nothing is left of them. Make room "
                    "there; the next start writes them again, without training again"
                ) from error

        process_group.of_first_rank(attempt, ExportFailed, group=self._patient)


@contextmanager
def replaced(final: Path) -> Iterator[ResultFolder]:
    """Give a new folder of results its name at the end, in place of older results. Collective.

    Raises:
        ExportFailed: The file system failed; on all ranks.
        ResultsInUse: The name is in use by something else.
    """
    partial, removed = (final.with_name(f".{final.name}.{word}") for word in ("partial", "removed"))
    folder = ResultFolder(partial, final)

    def begin() -> None:
        refuse_foreign(final)
        for leftover in (partial, removed):
            shutil.rmtree(leftover, ignore_errors=True)
        partial.mkdir(parents=True)

    def publish() -> None:
        mode = partial.stat().st_mode & 0o666
        for path in (*partial.rglob("*"), partial):
            if path.is_file():
                path.chmod(mode)  # safetensors creates files that only this user can read
            sync(path)
        if final.exists():
            final.rename(removed)
        partial.rename(final)
        sync(final.parent)
        shutil.rmtree(removed, ignore_errors=True)

    try:
        folder.first_rank(begin)
        yield folder
        folder.first_rank(publish)
    except BaseException:
        if process_group.rank() == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise
