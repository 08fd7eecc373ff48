"""Questions in the background: what is shown meanwhile, what is asked again, and whom a silent place holds up."""

import threading

import pytest
from background import await_true

from launcher.common.problems import fail
from launcher.ui import later
from launcher.ui.later import Answers


@pytest.fixture
def answers():
    found = Answers()
    yield found
    found.close()


def test_the_last_answer_is_shown_while_the_next_is_awaited(answers):
    asked, go = [], threading.Event()

    def ask():
        asked.append(1)
        if len(asked) > 1:
            go.wait(60)
        return len(asked)

    assert answers.get("a", "q", ask, age_s=60, wait_s=60).value == 1
    assert answers.get("a", "q", ask, age_s=60).value == 1
    assert answers.get("a", "q", ask, age_s=0).value == 1
    await_true(lambda: len(asked) == 2)
    assert answers.get("a", "q", ask, age_s=0, wait_s=60).value == 1
    go.set()
    await_true(lambda: answers.get("a", "q", ask, age_s=60).value == 2)
    assert len(asked) == 2


def test_a_silent_place_holds_up_no_other(answers):
    go = threading.Event()
    assert answers.get("silent", "q", lambda: go.wait(60), age_s=60, wait_s=0.01).number == 0
    assert answers.get("other", "q", lambda: 5, age_s=60, wait_s=60).value == 5
    go.set()


def test_a_problem_is_an_answer_and_is_asked_about_again(answers, monkeypatch):
    monkeypatch.setattr(later, "_REPEAT_S", 0.0)
    found = [fail("E394", "cluster", "does not answer"), OSError(13, "Permission denied")]

    def ask():
        if found:
            raise found.pop()
        return "well"

    first = answers.get("a", "q", ask, age_s=1e9, wait_s=60)
    assert (first.value, first.problems[0].code) == (None, "E711")
    await_true(lambda: answers.get("a", "q", ask, age_s=1e9).value == "well")


def test_neither_answers_nor_threads_grow_without_bound(answers, monkeypatch):
    monkeypatch.setattr(later, "_MOST_KEPT", 10)
    monkeypatch.setattr(later, "_MOST_PLACES", 4)
    before = threading.active_count()
    for number in range(50):
        assert answers.get(number, "q", lambda: 1, age_s=60, wait_s=60).value == 1
    await_true(lambda: threading.active_count() <= before + 4)
    assert len(answers._known) == 10
