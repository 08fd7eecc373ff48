"""The commands in the pages that people read."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from conftest import ROOT

PAGES = (
    *("README.md", "CONTRIBUTING.md", "examples/README.md"),
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
)
A_JOB = {"results/<job>", "<job>"}
EXIT_CODE = re.compile(r"exit code (\d+)")


@dataclass(frozen=True)
class Command:
    page: str
    words: tuple[str, ...]
    exit_code: int = 0

    @property
    def serves(self) -> bool:
        """Whether it goes on until it is ended."""
        return self.words[:2] == ("recipes", "ui")

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"


def commands(page: str) -> Iterator[Command]:
    """Yield the commands in the plain fenced blocks of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.S | re.M):
        for line in block.replace("\\\n", " ").splitlines():
            words = (
                tuple(shlex.split(line, comments=True))
                if not language and re.match(r"(python|recipes|make|pip|torchrun) ", line)
                else ()
            )
            words = words[: words.index("|")] if "|" in words else words
            if words:
                code = EXIT_CODE.search(line)
                yield Command(page, words, int(code[1]) if code else 0)
