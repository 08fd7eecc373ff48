"""Files that commands write: generated ones, build contexts, and objects of teams."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from launcher.common.problems import fail


@contextmanager
def writing(path: Path | None = None) -> Iterator[None]:
    """Raise a Problem of a file if the block cannot write it: of `path`, else of the one that the error names."""
    try:
        yield
    except OSError as error:
        raise fail("E805", str(path or error.filename), f"cannot be written: {error.strerror}") from error


def write_file(path: Path, text: str) -> None:
    """Write a file and the folders above it; one that names its interpreter can be executed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755 if text.startswith("#!") else 0o644)


def changed(folder: Path, texts: Mapping[Path, str]) -> dict[Path, str]:
    """Return the texts, by paths below a folder, that differ from the files which `write_file` makes of them."""

    def is_current(path: Path, text: str) -> bool:
        can_run = os.access(path, os.X_OK) or not text.startswith("#!")
        return path.is_file() and can_run and path.read_bytes() == text.encode()

    return {path: text for path, text in texts.items() if not is_current(folder / path, text)}


def write_new(folder: Path, files: Mapping[str, str]) -> None:
    """Write files, relative path to text, below a folder; refuse to overwrite a different file."""
    try:
        for name, text in files.items():
            path = folder / name
            if os.path.exists(path) and path.read_text(encoding="utf-8") != text:
                message = "exists with other content, and is never overwritten"
                raise fail("E805", str(path), message, remedy="use another folder, or remove it")
        for name, text in files.items():
            write_file(folder / name, text)
    except (OSError, UnicodeDecodeError) as error:
        raise fail("E805", str(folder), f"cannot be written: {error}") from error


def write_build_context(folder: Path, base: str) -> None:
    """Write the build context of an image that adds the agent and this launcher's runtime to `base`."""
    from launcher.bundle import container  # start-up time

    write_new(folder, container.files(base))
