"""Texts by others: printable and bounded wherever they come from."""

import pytest

from launcher.backends.kubernetes import job_status
from launcher.backends.slurm import states
from launcher.common.texts import LONGEST, bounded
from launcher.model.job_spec import JobEvent, JobState, JobStatus

LONG = "x" * 5000 + " the cause"


def test_of_a_long_text_the_beginning_and_the_end_are_kept():
    text = bounded(LONG)
    assert len(text) < LONGEST + 50 and text.startswith("xxx") and text.endswith("the cause") and "characters" in text
    assert bounded("short\nline \x1b[31m") == "short\nline  [31m"


@pytest.mark.parametrize("text", [LONG, "\x1b]0;title\x07"], ids=["long", "control"])
def test_every_status_and_event_holds_a_bounded_text(text):
    event = JobEvent(0.0, text, text, text)
    for each in (JobStatus(JobState.FAILED, 0, text).message, event.kind, event.message, event.about):
        assert len(each) < LONGEST + 50 and each.isprintable()


def test_an_unknown_condition_and_a_slurm_reason_are_bounded():
    conditions = [{"type": name, "status": "True", "message": LONG} for name in ("Running", "Odd" * 2000)]
    job = {"metadata": {}, "spec": {}, "status": {"conditions": conditions}}
    assert len(job_status.read(job_status.View(job, ())).message) < LONGEST + 50
    assert len(JobStatus(JobState.FAILED, 0, states.message_of("FAILED", LONG, (1, 0))).message) < LONGEST + 50
