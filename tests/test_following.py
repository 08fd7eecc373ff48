"""The core of following a job: patience, time limits, tails by attempt and rank, refusals. Time passes at once."""

import itertools

import pytest
from log_texts import shown

from launcher.common.problems import ProblemsFound, fail
from launcher.common.texts import plain
from launcher.model import following
from launcher.model.backend import RANK_0
from launcher.model.following import Clock, Deadline, LateEnd, Start, Tail
from launcher.model.job_spec import JobEvent, JobState, JobStatus, LogLine, LogSelection

PENDING = JobStatus(JobState.PENDING, 0, "waits")
RUNNING = JobStatus(JobState.RUNNING, 2)
SUCCEEDED = JobStatus(JobState.SUCCEEDED, 0)


class Time:
    """A clock that only sleeping advances; `slept` has each time slept, in seconds."""

    def __init__(self):
        self.now_s, self.slept = 100.0, []
        self.clock = Clock(lambda: self.now_s, self.sleep)

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now_s += seconds


def answers(*found):
    """Return a question with these answers, the last one for ever; an exception is raised."""
    given = itertools.chain(found, itertools.repeat(found[-1]))

    def ask():
        answer = next(given)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask


NO_ANSWER = fail("E447", "cluster", "the controller does not answer")


def test_each_status_is_yielded_once_up_to_the_final_one():
    time = Time()
    read = answers(PENDING, PENDING, RUNNING, RUNNING, SUCCEEDED, RUNNING)
    assert list(following.changes(read, None, 5, clock=time.clock)) == [PENDING, RUNNING, SUCCEEDED]
    assert time.slept == [5] * 4


@pytest.mark.parametrize(
    ("timeout_s", "slept"), [(0, []), (3, [3]), (12, [5, 5, 2])], ids=["at-once", "within-a-poll", "polls"]
)
def test_waiting_ends_at_its_time_limit_and_sleeps_no_longer(timeout_s, slept):
    time = Time()
    assert list(following.changes(answers(RUNNING), timeout_s, 5, clock=time.clock)) == [RUNNING]
    assert time.slept == slept


def test_the_first_answer_of_a_watch_is_waited_for_beyond_a_short_limit():
    time = Time()
    assert list(following.changes(answers(None, None, RUNNING), 0, 1, first_s=5, clock=time.clock)) == [RUNNING]
    assert time.slept == [1, 1]
    time = Time()
    assert list(following.changes(answers(None), 0, 2, first_s=5, clock=time.clock)) == []
    assert time.slept == [2, 2, 1]


def test_a_condition_is_checked_once_even_without_time():
    time = Time()
    assert following.until(lambda: True, 0, 1, time.clock)
    assert not following.until(lambda: False, 0, 1, time.clock)
    assert time.slept == []


def test_a_condition_is_waited_for_up_to_the_limit_with_pauses_that_may_grow():
    time = Time()
    assert following.until(answers(False, False, True), 10, (2**n for n in range(9)), time.clock)
    assert time.slept == [1, 2]
    assert not following.until(lambda: False, 10, 4, time.clock)
    assert time.slept == [1, 2, 4, 4, 4]


def test_a_deadline_counts_down_and_none_never_ends():
    time = Time()
    limit = Deadline(3, time.clock)
    time.sleep(2)
    assert limit.left_s == 1
    time.sleep(2)
    assert limit.left_s == 0
    assert Deadline(None, time.clock).left_s == float("inf")


def test_a_question_that_never_had_an_answer_fails_at_once():
    time = Time()
    with pytest.raises(ProblemsFound, match="E447"):
        following.patient(answers(NO_ANSWER), 900, 1, time.clock)()
    assert time.slept == []


def test_a_question_that_had_an_answer_outlasts_failures_up_to_its_patience():
    time = Time()
    ask = following.patient(answers(1, *[NO_ANSWER] * 3, 2, NO_ANSWER), 10, 4, time.clock)
    assert ask() == 1
    assert ask() == 2
    assert time.slept == [4, 4, 4]
    with pytest.raises(ProblemsFound, match="E447"):
        ask()
    assert time.slept[3:] == [4, 4, 4]  # its patience begins with each answer


def test_what_is_written_while_the_end_is_noticed_is_still_read():
    written = ["one"]

    def has_ended():
        written.append("two")
        return len(written) > 2

    seen = []

    def new(is_last):
        seen.append(is_last)
        yield from written[len(lines) :]

    lines = []
    for line in following.followed(new, has_ended, lambda: None):
        lines.append(line)
    assert (lines, seen) == (["one", "two", "two"], [False, True])


def test_what_is_not_followed_is_looked_at_once():
    assert list(following.followed(lambda is_last: [is_last], lambda: True, pytest.fail)) == [True]


def test_an_end_is_reported_some_looks_late_and_waits_for_files_up_to_a_limit():
    time = Time()
    over = LateEnd(answers(False, True), 2, clock=time.clock)
    assert [over() for _ in range(5)] == [False, False, False, True, True]
    over = LateEnd(lambda: True, 0, is_complete=lambda: False, patience_s=lambda: 30.0, clock=time.clock)
    assert not over()
    time.sleep(31)
    assert over()


def start(folder, number, ranks=(0, 1), began_s=None):
    def file(rank, _stream):
        path = folder / f"{number}-{rank}"
        return path if path.exists() else None

    return Start(number, ranks, lambda: f"{len(ranks)} ranks", file, began_s)


def write(folder, number, rank, text):
    with (folder / f"{number}-{rank}").open("a") as file:
        file.write(text)


def texts(tail, starts, *, is_last, selection=RANK_0):
    return list(shown(tail.new_lines(starts, is_last=is_last), selection))


def test_a_tail_goes_from_start_to_start_and_reads_each_line_once(tmp_path):
    tail, first, second = Tail(LogSelection(has_headings=True)), start(tmp_path, 0), start(tmp_path, 1)
    assert texts(tail, [first], is_last=False) == ["== attempt 0: 2 ranks"]
    write(tmp_path, 0, 0, "one\ntw")
    assert texts(tail, [first], is_last=False) == ["one"]
    assert texts(tail, [first], is_last=False) == []
    write(tmp_path, 1, 0, "three\nfour")
    found = texts(tail, [first, second], is_last=False)
    assert found == ["tw", "== attempt 1: 2 ranks", "three"]
    assert texts(tail, [first, second], is_last=True) == ["four"]


def test_a_tail_shows_the_selected_ranks_and_the_selected_attempt(tmp_path):
    both = [start(tmp_path, 0), start(tmp_path, 1)]
    for number, rank in itertools.product(range(2), range(2)):
        write(tmp_path, number, rank, f"{number}-{rank}\n")
    every = texts(Tail(LogSelection(None)), both, is_last=True, selection=LogSelection(None))
    assert every == ["rank 0 | 0-0", "rank 1 | 0-1", "rank 0 | 1-0", "rank 1 | 1-1"]
    assert texts(Tail(LogSelection((1,), attempt=1)), both, is_last=True) == ["1-1"]
    assert texts(Tail(LogSelection((5,), has_headings=True)), both[:1], is_last=True) == ["== attempt 0: 2 ranks"]


def test_late_lines_of_an_earlier_start_are_read_on_a_shared_file_system_only(tmp_path):
    both = [start(tmp_path, 0), start(tmp_path, 1)]
    own, shared = Tail(LogSelection()), Tail(LogSelection(), is_shared=True)
    assert [*texts(own, both, is_last=False), *texts(shared, both, is_last=False)] == []
    write(tmp_path, 0, 0, "late\n")
    assert texts(own, both, is_last=False) == []
    assert texts(shared, both, is_last=False) == ["late"]
    assert shared.has_files(start(tmp_path, 0, ranks=(0,))) and not shared.has_files(both[1])


def test_a_line_has_its_rank_attempt_and_stream(tmp_path):
    write(tmp_path, 3, 1, "rank 7 | event  == words\n")
    for is_stderr, stream in ((False, "stdout"), (True, "stderr")):
        selection = LogSelection((1,), is_stderr=is_stderr, has_headings=True)
        assert list(Tail(selection).new_lines([start(tmp_path, 3)], is_last=True)) == [
            LogLine("attempt", None, "attempt 3: 2 ranks", 3),
            LogLine("line", 1, "rank 7 | event  == words", 3, stream=stream),
        ]


def test_events_come_before_the_start_that_follows_them(tmp_path):
    times = []

    def events_until(time_s):
        times.append(time_s)
        yield LogLine("event", None, f"until {time_s}", time_s=time_s)

    both = [start(tmp_path, 0, began_s=1.0), start(tmp_path, 1, began_s=2.0)]
    write(tmp_path, 0, 0, "one\n")
    write(tmp_path, 1, 0, "two\n")
    tail = Tail(LogSelection(), events_until)
    assert texts(tail, both, is_last=False) == ["one", "event  until 2.0", "two"]
    assert (texts(tail, both, is_last=True), times) == ([], [2.0])


@pytest.mark.parametrize(
    ("refuse", "code", "allowed"),
    [
        (lambda: following.refuse_unknown_ranks((0, 8), 8), "E707", "0 to 7"),
        (lambda: following.refuse_unknown_ranks((0,), 0), "E707", "none: the job has no ranks"),
        (lambda: following.refuse_unknown_attempt(2, (0, 1)), "E706", "0 to 1"),
        (lambda: following.refuse_unknown_attempt(1, (0, 2)), "E706", "0, 2"),
        (lambda: following.refuse_unknown_attempt(0, ()), "E706", "none: the workers were never started"),
        (lambda: following.refuse_scaling(RUNNING, "job", 3, 2), "E413", "2"),
        (lambda: following.refuse_scaling(SUCCEEDED, "job", 3, 2), "E412", None),
        (lambda: following.refuse_unplanned_sizes((1, 2, 4), nodes=3, min_nodes=1), "E413", "1, 2, 4"),
    ],
    ids=["rank", "no-ranks", "attempt", "attempts-with-a-gap", "no-attempts", "fixed-size", "ended", "unplanned"],
)
def test_what_a_job_does_not_have_is_refused_with_what_it_has(refuse, code, allowed):
    with pytest.raises(ProblemsFound) as caught:
        refuse()
    (problem,) = caught.value.problems
    assert (problem.code, problem.allowed) == (code, allowed)


def test_what_a_job_has_is_not_refused():
    following.refuse_unknown_ranks((0, 7), 8)
    following.refuse_unknown_ranks(None, 0)
    following.refuse_unknown_attempt(None, ())
    following.refuse_unknown_attempt(1, (0, 1))
    following.refuse_unplanned_sizes((1, 2), nodes=2, min_nodes=1)


def test_every_unplanned_size_is_named():
    with pytest.raises(ProblemsFound) as caught:
        following.refuse_unplanned_sizes((1, 2), nodes=3, min_nodes=5)
    assert [(each.path, each.value) for each in caught.value.problems] == [("nodes", 3), ("min_nodes", 5)]


def test_the_last_state_of_a_progress_bar_has_its_writer():
    line = LogLine("line", 3, "\r 10%\r\x1b[1m 20%\x1b[0m\r", 1)
    assert line.shown(with_writer=True, with_attempt=True) == "rank 3, attempt 1 |  20%"
    assert plain(line.shown(with_writer=False)) == " 20%"


def test_an_event_is_one_line_and_a_warning_a_fault():
    lines = [following.event_line(JobEvent(1.0, "Kind", "words", is_warning=flag)) for flag in (False, True)]
    assert list(shown(lines)) == ["event  Kind: words", "fault  Kind: words"]
    assert [(line.kind, line.text, line.time_s) for line in lines] == [
        ("event", "Kind: words", 1.0),
        ("fault", "Kind: words", 1.0),
    ]
