"""A real browser without a screen, for tests of the page: Debian's chromium-headless-shell, driven by Playwright.

A test module names this one in `pytest_plugins`.
"""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = "chromium-headless-shell"
INSTALL = "tests/engines/install_programs.sh"
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="session")
def browser():
    """Return a browser that all tests of this process share."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install '.[test]'")
    if (program := shutil.which(PROGRAM)) is None:
        pytest.skip(f"no {PROGRAM}: run {INSTALL}")
    with playwright.sync_playwright() as driver:
        # /dev/shm is small in many containers
        found = driver.chromium.launch(executable_path=program, args=["--disable-dev-shm-usage"])
        yield found
        found.close()


@pytest.fixture
def window(browser):
    """Return a function that opens a window of its own, with its own cookies; every error in it fails the test."""
    with contextlib.ExitStack() as open_windows:

        def make(**settings):
            context = browser.new_context(**settings)
            open_windows.callback(context.close)
            page = context.new_page()
            page.faults = []
            page.on("pageerror", lambda error: page.faults.append(str(error)))
            page.on("console", lambda said: page.faults.append(said.text) if said.type == "error" else None)
            page.set_default_timeout(60_000)
            return page

        yield make


def serious_faults(page) -> list[str]:
    """Return what a reader with a disability would trip over: axe-core's serious and critical findings."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {node['html'][:200]}" for each in found if each["impact"] in SERIOUS for node in each["nodes"]
    ]


def pictured(page, path: Path, **settings) -> None:
    """Save a picture of a page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=path, animations="disabled", **settings)


@contextlib.contextmanager
def no_faults(page) -> Iterator[None]:
    """Fail if the block leaves an error in the browser's console."""
    yield
    assert page.faults == []
