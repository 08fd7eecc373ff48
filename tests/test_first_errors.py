"""Which line of several logs is the first error: where each one stands, and what was written before and after it."""

import itertools

import pytest
from test_causes import DISK, cause_of, event, line, record, traceback

from launcher import causes

OOM = "torch.OutOfMemoryError: CUDA out of memory."
REMARK = f"WARNING: lower the batch size, {OOM}"
RESET, REMOTE = "Connection reset by peer", "ncclRemoteError: A call failed"
UNKNOWN = "shop.BadSample: no price"


def steps(number, rank=0, **fields):
    return [line(f"step {each}", rank, **fields) for each in range(number)]


RANKED = {
    "a cause": lambda **at: [line(DISK, **at)],
    "an unknown exception": lambda **at: traceback(UNKNOWN, **at),
    "a symptom": lambda **at: [line(REMOTE, **at)],
    "a cause of long before": lambda **at: [line(DISK, **at), *steps(300, **at)],
    "a last message": lambda **at: [line("no such corpus", **at)],
    "a remark": lambda **at: [line(REMARK, **at)],
    "a consequence": lambda **at: [line(RESET, **at)],
}
"""Logs by what they show, in the order in which it is the first error."""


@pytest.mark.parametrize(("former", "latter"), list(itertools.pairwise(RANKED)))
def test_of_two_logs_the_one_that_shows_more_counts_although_it_was_written_later(former, latter):
    wanted = RANKED[former](rank=0, time_s=9.0)
    assert causes.find([*RANKED[latter](rank=1, time_s=1.0), *wanted]).first_error.rank == 0


@pytest.mark.parametrize(("later", "cause"), [(0, "no_space"), (199, "no_space"), (200, "nccl_remote")])
@pytest.mark.parametrize("earlier", [0, 50])
def test_a_cause_is_at_the_end_of_a_log_within_its_last_200_lines(earlier, later, cause):
    log = [*steps(earlier), line(DISK), *steps(later)]
    assert cause_of(line(REMOTE, 1), *log)[0] == cause


@pytest.mark.parametrize(
    ("later", "error"), [(199, UNKNOWN), (200, "step 199")], ids=["within the last 200 lines", "before them"]
)
def test_an_exception_ended_its_process_only_at_the_end_of_a_log(later, error):
    assert cause_of(*traceback(UNKNOWN), *steps(later)) == (None, error)


def test_a_traceback_that_was_survived_does_not_make_its_cause_that_of_the_end():
    survived = [*traceback(DISK), *steps(300)]
    assert cause_of(*survived, line(REMOTE, 1))[0] == "nccl_remote"
    assert cause_of(*survived, *traceback(UNKNOWN)) == (None, UNKNOWN)


def test_the_last_traceback_is_the_end_of_a_log_although_it_is_longer():
    first, second = traceback(DISK, "RuntimeError: the checkpoint failed")[:5], traceback("RuntimeError: failed")
    frames = [line('  File "x.py", line 1, in <module>')] * 300
    assert cause_of(*first, *second[:1], *frames, *second[1:]) == ("no_space", DISK)


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        pytest.param([line(f"{DISK}: /a"), line(f"{DISK}: /b")], f"{DISK}: /a", id="first"),
        pytest.param([line(f"{DISK}: /a"), *steps(300), line(f"{DISK}: /b")], f"{DISK}: /b", id="at the end"),
        pytest.param([line(f"{DISK}: /a"), line(f"{DISK}: /b"), *steps(198)], f"{DISK}: /a", id="first of 200 lines"),
        pytest.param(
            [line("start"), line(f"{DISK}: /a"), line(f"{DISK}: /b"), *steps(198)],
            f"{DISK}: /a",
            id="first of the last 200 lines",
        ),
        pytest.param(
            [line(f"{DISK}: /a"), *traceback(f"{DISK}: /b")], f"{DISK}: /b", id="that of the last traceback"
        ),
        pytest.param([line(OOM), *traceback(DISK)], DISK, id="of two causes that of the last traceback"),
        pytest.param([line(DISK), line(OOM)], DISK, id="of two causes the first"),
        pytest.param([line("{'loss': nan}"), *traceback(UNKNOWN)], "{'loss': nan}", id="shortly before a traceback"),
    ],
)
def test_of_the_known_lines_of_a_log_one_counts(lines, text):
    found = causes.find([*lines, line(REMOTE, 1)])
    assert (found.first_error.text, found.first_error.rank) == (text, 0)


def test_a_line_of_two_rows_is_of_the_first_alone():
    assert cause_of(line("pod-0: OOMKilled, exit code 137 (SIGKILL)"), *steps(300))[0] == "host_oom_kernel"


def test_a_message_after_a_remark_in_the_same_log_is_the_first_error():
    assert cause_of(line(REMARK), line("no such corpus")) == (None, "no such corpus")
    assert cause_of(line("step 1"), line(REMARK))[0] == "cuda_oom"


def test_an_exception_of_a_known_kind_is_not_unknown_wherever_else_its_text_stands():
    lost = traceback(f"OSError: {RESET}")
    assert cause_of(line(RESET), *lost)[0] == "peer_lost"
    assert cause_of(*lost, line(RESET))[0] == "peer_lost"


def test_the_advice_in_an_exception_does_not_weaken_it():
    error = f"{OOM} Retrying may help"
    assert cause_of(line(REMOTE, 1), *traceback(error)) == ("cuda_oom", error)
    assert cause_of(line(REMOTE, 1), line(error))[0] == "nccl_remote"


def test_a_record_is_read_line_by_line_and_is_never_a_remark():
    text = "its agent ended\nWARNING: node-1: OOMKilled, retrying\nbye"
    assert cause_of(line(REMOTE, 1), records=[record(text)]) == (
        "host_oom_kernel",
        "WARNING: node-1: OOMKilled, retrying",
    )


def test_lines_of_other_kinds_and_of_earlier_starts_are_left_out_and_the_others_read():
    before = line(OOM, host="a", attempt=0)
    last = [line(text, host="a", attempt=1) for text in ("step 1", DISK)]
    started = line("", host="a")._replace(kind="attempt")
    found = causes.find([started, last[0], before, last[1], before])
    assert (found.cause.id, found.first_error.attempt) == ("no_space", 1)


def test_at_most_three_other_ranks_are_consequences_the_earliest_first_and_none_by_a_last_message():
    others = [line(RESET, rank, time_s=10.0 - rank) for rank in range(1, 6)]
    message = line("no such corpus", 7, time_s=0.0)
    own = line(RESET, 0, time_s=0.0, stream="stdout")
    found = causes.find([line(DISK, 0, time_s=20.0), own, *others, message])
    assert found.cause.id == "no_space"
    assert [each.rank for each in found.consequences] == [5, 4, 3]
    unknown = causes.find([line(DISK, 0), line(RESET, None)])
    assert unknown.consequences == ()


PENDING = "FailedScheduling: 0/2 nodes are available: 2 Insufficient cpu."
EVICTED = "Evicted: The node was low on resource: memory."


@pytest.mark.parametrize(
    ("text", "host", "at_s", "written", "cause"),
    [
        pytest.param(PENDING, "Pod/a", 100, {"a": (100,)}, "unschedulable", id="pending as it writes"),
        pytest.param(PENDING, "Pod/a", 100, {"a": (100.5,)}, None, id="pending before it writes"),
        pytest.param(PENDING, "Pod/a", 100, {"a": (None,)}, None, id="pending and it writes without times"),
        pytest.param(PENDING, "Pod/a", 0.75, {"a": (0.5,)}, "unschedulable", id="pending after it wrote"),
        pytest.param(PENDING, "Pod/b", 0.75, {"a": (0.5,)}, "unschedulable", id="pending without a line"),
        pytest.param(PENDING, "Workload/w", 0.75, {}, "unschedulable", id="a job without a line"),
        pytest.param(EVICTED, "Pod/a", 100, {"a": (700,)}, "evicted", id="written for 600 s"),
        pytest.param(EVICTED, "Pod/a", 100, {"a": (700.5,)}, None, id="written for longer"),
        pytest.param(EVICTED, "Pod/a", 100, {"a": (None,)}, "evicted", id="written without times"),
        pytest.param(EVICTED, "Pod/a", 100, {"a": (5000, 101)}, None, id="the later of two logs"),
        pytest.param(EVICTED, "Pod/a", 100, {"b": (5000,), "a": (101,)}, "evicted", id="another host writes"),
        pytest.param(EVICTED, "a", 100, {"b": (5000,), "a": (101,)}, "evicted", id="a host without its kind"),
        pytest.param(EVICTED, None, 100, {"b": (101,), "a": (5000,)}, None, id="an event of the job"),
    ],
)
def test_an_event_is_survived_by_what_its_host_has_written_since(text, host, at_s, written, cause):
    lines = [
        line("step", rank, host=each, time_s=time_s, stream="stdout")
        for each, times in written.items()
        for rank, time_s in enumerate(times)
    ]
    assert cause_of(*lines, records=[event(text, host, at_s), record(REMOTE)])[0] == (cause or "nccl_remote")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param(f"{DISK}: /X\r", f"{DISK}: /X", id="a line that ends as on Windows"),
        pytest.param(f"\r 10%\r{DISK}\r\r", DISK, id="a progress bar"),
        pytest.param(f"{DISK}: {'é' * 300}"[:300], f"{DISK}: {'é' * 300}"[:300], id="300 characters"),
        pytest.param(f"{DISK}: {'é' * 300}"[:301], f"{DISK}: {'é' * 300}"[:299] + "…", id="301 characters"),
    ],
)
def test_the_text_of_an_error_is_its_line(text, error):
    assert cause_of(line(text)) == ("no_space", error)


def test_a_traceback_begins_after_a_single_character():
    first, *rest = traceback(UNKNOWN, stream="stdout")
    assert cause_of(first._replace(text=f"|{first.text}"), *rest) == (None, UNKNOWN)


def test_4096_characters_of_a_line_are_searched():
    text = "was killed by SIGBUS"
    spaces = " " * (4096 - len(text))
    assert cause_of(line(spaces + text, stream="stdout"))[0] == "shared_memory"
    assert causes.find([line(f" {spaces}{text}", stream="stdout")]) is None
