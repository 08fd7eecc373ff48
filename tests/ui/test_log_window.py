"""Windows into log files: their arithmetic, their bounds, and what never leaves them."""

import contextlib
import os
import shutil
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from log_runs import a_run, log_path
from result_folders import a_job

from launcher.api import log_stream, log_window
from launcher.api.job import Job
from launcher.api.log_window import Found, Limits, Line, LogSource, TailLine
from launcher.common import redaction
from launcher.common.problems import ProblemsFound
from launcher.common.texts import plain
from launcher.job_store import registry

SMALL = Limits(block=3, searched=8, window=32, line=10, context=4)
GIB = 1 << 30
LAST = b"".join(b"line %d of the end\n" % number for number in range(1000))
TOKEN = "ghp_" + "a1B2" * 9


USUAL = Limits()


def source(path, limits=USUAL):
    return LogSource(0, 0, 0, "stdout", path.stat().st_size, path.stat().st_mtime, 0.0, 1, path, limits)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def huge(folder):
    """Return a sparse file of 1 GiB without any line feed but at its end."""
    path = folder / "huge.log"
    with path.open("wb") as file:
        file.truncate(GIB)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + LAST)
    return source(path)


def naive(data):
    """Return offset, text and completeness of every line of a file, split as a whole."""
    place, found = 0, []
    for raw in data.split(b"\n"):
        is_complete = place + len(raw) < len(data)
        if raw or is_complete:
            found.append((place, plain(raw.decode("utf-8", "replace")), is_complete))
        place += len(raw) + 1
    return found


ENDS = st.sampled_from([b"\n", b"\r\n", b"\n\n"])
WORDS = st.one_of(
    st.binary(max_size=9).map(lambda each: each.replace(b"\n", b"")),
    st.text("aé€\N{GRINNING FACE}x ", max_size=3).map(str.encode),
    st.sampled_from([b"", b"loss 2.0", b"\x1b[31mred\x1b[0m", b"1%\r2%\r3%", b"\xff\xfe", b"\xe2\x82", b"a\x00b"]),
)
FILES = st.builds(
    lambda lines, rest: b"".join(a + b for a, b in lines) + rest, st.lists(st.tuples(WORDS, ENDS), max_size=12), WORDS
)


@given(FILES, st.integers(1, 5), st.sampled_from([Limits(), Limits(block=3, window=64)]))
@example(b"", 1, Limits())
@example(b"\n", 1, Limits())
@example(b"a\r\nb", 3, Limits())
def test_windows_have_the_lines_of_the_file(folder, data, most, limits):
    path = folder / "file.log"
    path.write_bytes(data)
    file, lines = source(path, limits), naive(data)

    def shown(window):
        assert window.size == len(data)
        return [(line.offset, line.text, line.is_complete) for line in window.lines]

    forwards, offset = [], 0
    while True:
        window = file.after(offset, most)
        assert window.first == offset
        assert len(window.lines) <= most
        forwards += shown(window)
        offset = window.last
        if window.is_end:
            break
    assert forwards == lines
    window = file.end(most)
    assert window.is_end
    backwards = shown(window)
    while not window.is_start:
        assert file.start_before(window.first, most) == file.before(window.first, most).first
        window = file.before(window.first, most)
        backwards = shown(window) + backwards
    assert backwards == lines
    if limits == Limits():
        assert shown(file.end(most)) == lines[-most:]
        for index, (place, _, _) in enumerate(lines):
            assert shown(file.before(place, most)) == lines[max(0, index - most) : index]
            assert shown(file.after(place, most)) == lines[index : index + most]


@given(st.lists(st.integers(0, 100), max_size=6), st.integers(1, 4))
def test_lines_longer_than_a_window_come_in_pieces_without_gaps(folder, lengths, most):
    path = folder / "long.log"
    path.write_bytes(b"\n".join(b"x" * length for length in lengths))
    file, size = source(path, SMALL), path.stat().st_size
    places, offset = [], 0
    while offset < size:
        window = file.after(offset, most)
        assert offset < window.last <= offset + SMALL.window
        assert all(len(line.text) <= SMALL.line + 2 for line in window.lines)
        places.append((offset, window.last))
        offset = window.last
    while offset:
        window = file.before(offset, most)
        assert offset - SMALL.window <= window.first < offset
        assert window.last == offset
        offset = window.first
    assert offset == 0


PATTERNS = st.sampled_from(
    ["a", "^a", "%$", "3%", r"\bloss\b", "", r"\x{fffd}", r"\Aa", "(?-s).$", "[^x]2", r"x\s*l"]
)
SIZES = st.sampled_from([Limits(), Limits(block=3, searched=16, window=64)])


@given(FILES, PATTERNS, st.integers(1, 3), st.booleans(), SIZES)
def test_a_search_finds_what_searching_every_line_finds(folder, data, pattern, most, backwards, limits):
    path = folder / "searched.log"
    path.write_bytes(data)
    search = log_stream.compiled(pattern).search
    expected = [each for each in naive(data) if search(each[1])]
    file, found = source(path, limits), []
    offset, is_over = (len(data) if backwards else 0), False
    while not is_over:
        part = file.search(pattern, offset, most, 0.0, backwards)
        lines = [tuple(line) for line in part.lines]
        assert len(lines) <= most
        found = lines + found if backwards else found + lines
        assert part.is_over or part.first < part.last
        offset, is_over = (part.first if backwards else part.last), part.is_over
    assert found == expected


def test_a_pattern_that_is_none_is_refused(huge):
    with pytest.raises(ProblemsFound, match="E728"):
        huge.search("(", 0, 1, 1.0)
    for pattern in (r"a\Q(", "\udcff", "(?=x)"):
        try:
            huge.search(pattern, GIB, 1, 0.0)
        except ProblemsFound as error:
            assert [each.code for each in error.problems] == ["E728"]


def test_a_large_file_is_opened_at_its_end_at_once(huge):
    began = time.process_time()
    window = huge.end(500)
    assert time.process_time() - began < 0.3
    assert [line.text for line in window.lines] == LAST.decode().splitlines()[-500:]
    assert huge.before(window.first, 500).lines[0].text == "line 0 of the end"


def test_a_line_of_a_gigabyte_has_pieces(huge):
    began = time.process_time()
    window = huge.before(GIB, 500)
    assert (window.first, window.last, len(window.lines)) == (GIB - (1 << 20), GIB, 1)
    assert huge.after(0, 500).last == 1 << 20
    assert huge.before(GIB // 2, 10).lines[0].text.startswith("…")
    assert time.process_time() - began < 0.3


def test_a_search_stops_at_its_deadline_and_goes_on_from_there(huge):
    began = time.process_time()
    first = huge.search("line 7 of", 0, 5, 0.05)
    assert time.process_time() - began < 0.5
    assert not first.is_over and not first.lines and 0 < first.last < GIB
    assert huge.search("line 7 of", first.last, 5, 0.0).first == first.last
    found = huge.search("line 7 of", GIB - 5_000_000, 5, 30.0)
    assert found.is_over and [line.text for line in found.lines] == ["line 7 of the end"]
    found = huge.search("line 7 of", huge.size, 1, 30.0, backwards=True)
    assert [line.text for line in found.lines] == ["line 7 of the end"] and found.first == found.lines[0].offset


@pytest.mark.slow
def test_memory_is_bounded(huge):
    tracemalloc.start()
    try:
        huge.end(500)
        huge.before(GIB, 500)
        huge.search("nothing", 0, 500, 0.2)
        huge.search("nothing", GIB, 500, 0.2, backwards=True)
        for _, _ in zip(range(8), huge.masked(), strict=False):
            pass
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


def test_a_file_that_grows_and_one_that_is_cut_are_read_as_they_are(tmp_path):
    path = tmp_path / "growing.log"
    path.write_text("one\ntw")
    file = source(path)
    window = file.end(10)
    assert [tuple(line)[1:] for line in window.lines] == [("one", True), ("tw", False)]
    assert (window.next, window.last) == (4, 6)
    assert file.search("one|t", 6, 5, 1.0, backwards=True).next == 4
    assert file.search("one|t", 0, 5, 1.0).next == 4
    assert file.search("one|t", 0, 1, 1.0).next == 4
    with path.open("a") as more:
        more.write("o\nthree\n")
    window = file.after(window.next, 10)
    assert [line.text for line in window.lines] == ["two", "three"]
    assert window.next == window.last == window.size == file.search("two", 0, 5, 1.0).next == 14
    path.write_text("new\n")
    window = file.after(14, 10)
    assert (window.lines, window.size, window.is_end) == ((), 4, True)
    assert file.search("new", 14, 1, 1.0, backwards=True).lines[0].text == "new"
    path.unlink()
    with pytest.raises(ProblemsFound, match="E711"):
        file.end(1)


@pytest.fixture
def reads(monkeypatch):
    """Return the size and the offset of every read of a log file since the test began."""
    found, read = [], os.pread

    def pread(file, size, offset):
        found.append((size, offset))
        return read(file, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    return found


def written(folder, data, limits=SMALL):
    path = folder / "a.log"
    path.write_bytes(data)
    return source(path, limits)


TENS = b"0123456789\n" * 10
LONG, FORTY = b"x" * 100, b"x" * 40 + b"\n"
WINDOWS = [
    # content, how it is read; then the offsets of the window and of its lines, and the reads
    (TENS, ("end", 1), (99, 110), [99], [(3, 107), (6, 101), (12, 89), (4, 95)]),
    (TENS, ("before", 11, 1), (0, 11), [0], [(3, 8), (6, 2), (2, 0), (0, 0)]),
    (TENS, ("before", 109, 9), (77, 109), [77, 88, 99], [(3, 106), (6, 100), (12, 88), (11, 77), (1, 76), (4, 73)]),
    (TENS, ("before", 42, 9), (11, 42), [11, 22, 33], [(3, 39), (6, 33), (12, 21), (11, 10), (1, 9), (4, 7)]),
    (TENS, ("after", 0, 1), (0, 11), [0], [(3, 0), (6, 3), (12, 9), (0, 0)]),
    (TENS, ("after", 0, 9), (0, 22), [0, 11], [(3, 0), (6, 3), (12, 9), (11, 21), (0, 0)]),
    (TENS, ("after", 105, 5), (105, 110), [105], [(3, 105), (2, 108), (4, 101)]),
    (TENS, ("after", 0, 0), (0, 0), [], [(3, 0)]),
    (TENS, ("after", 111, 5), (110, 110), [], []),
    (LONG, ("end", 1), (68, 100), [68], [(3, 97), (6, 91), (12, 79), (11, 68), (1, 67), (4, 64)]),
    (LONG, ("after", 10, 1), (10, 42), [10], [(3, 10), (6, 13), (12, 19), (11, 31), (4, 6)]),
    (FORTY, ("end", 1), (9, 41), [9], [(3, 38), (6, 32), (12, 20), (11, 9), (1, 8), (4, 5)]),
    (b"aa\nbc", ("end", 1), (3, 5), [3], [(3, 2), (3, 0)]),
]


def open_files(folder):
    """Return the files of a folder that this process has open; other tests' threads close files meanwhile."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(os.readlink(each))
    return [path for path in found if path.startswith(f"{folder}/")]


@pytest.mark.parametrize(("data", "call", "span", "lines", "expected"), WINDOWS, ids=lambda each: str(each)[-30:])
def test_a_window_reads_no_more_than_its_lines_need(tmp_path, reads, data, call, span, lines, expected):
    file = written(tmp_path, data)
    window = getattr(file, call[0])(*call[1:])
    assert (reads, open_files(tmp_path)) == (expected, [])
    assert (window.first, window.last, window.size) == (*span, len(data))
    assert [line.offset for line in window.lines] == lines
    assert window.next == (lines[-1] if window.is_end and not data.endswith(b"\n") else span[1])
    assert call[0] != "end" or file.start_before(999, call[1]) == span[0]


FOUR = b"aaa\nbbb\nccc\nddd"
A, C, D = Line(0, "aaa"), Line(8, "ccc"), Line(12, "ddd", False)
SEARCHES = [
    # pattern, offset, most lines, seconds, backwards; then lines, first, last, is_over, next
    *[(("c", 0, 5, 60.0), ([C], 0, 15, True, 12)), (("[acd]", 0, 5, 60.0), ([A, C, D], 0, 15, True, 12))],
    *[(("[acd]", 0, 2, 60.0), ([A, C], 0, 12, False, 12)), (("a", 0, 1, 60.0), ([A], 0, 4, False, 4))],
    *[(("d", 8, 5, 0.0), ([D], 8, 15, True, 12)), (("c", 0, 5, 0.0), ([], 0, 8, False, 8))],
    *[(("a", 99, 5, 60.0), ([], 15, 15, True, 15)), (("c", 0, 5, 60.0, True), ([], 0, 0, True, 0))],
    *[
        (("[acd]", 15, 5, 60.0, True), ([A, C, D], 0, 15, True, 12)),
        (("a", 15, 1, 60.0, True), ([A], 0, 15, True, 12)),
    ],
    *[(("[acd]", 99, 2, 60.0, True), ([C, D], 8, 15, False, 12)), (("c", 12, 5, 0.0, True), ([C], 4, 12, False, 12))],
]


@pytest.mark.parametrize(("given", "expected"), SEARCHES, ids=lambda each: str(each[:5])[:40])
def test_a_search_reports_where_to_continue(tmp_path, given, expected):
    assert written(tmp_path, FOUR).search(*given) == Found(tuple(expected[0]), *expected[1:3], 15, *expected[3:])


@pytest.mark.parametrize(
    ("data", "offset", "backwards", "span", "expected"),
    [
        (TENS, 0, False, (0, 22), [(8, 0), (32, 0), (0, 0)]),
        (TENS, 88, False, (88, 110), [(8, 88), (22, 88), (4, 84)]),
        (TENS, 105, False, (105, 110), [(5, 105), (4, 101)]),
        (LONG, 92, False, (92, 100), [(8, 92), (4, 88)]),
        (LONG, 60, False, (60, 92), [(8, 60), (32, 60), (4, 56)]),
        (TENS, 110, True, (88, 110), [(8, 102), (32, 78), (1, 77), (4, 84)]),
        (TENS, 5, True, (0, 5), [(5, 0), (0, 0)]),
        (LONG, 60, True, (28, 60), [(8, 52), (32, 28), (1, 27), (4, 24)]),
        (LONG, 20, True, (0, 20), [(8, 12), (20, 0), (0, 0)]),
        (b"0123456789\n\n", 12, True, (11, 12), [(8, 4), (1, 3), (4, 7)]),
    ],
    ids=lambda each: str(each)[-30:],
)
def test_a_search_reads_a_longer_part_for_a_long_line(tmp_path, reads, data, offset, backwards, span, expected):
    found = written(tmp_path, data).search("absent", offset, 5, 0.0, backwards)
    assert (found.first, found.last) == span
    assert reads == expected


def test_a_file_that_is_cut_while_it_is_read_ends_there(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "pread", lambda *_: b"")
    file = written(tmp_path, FOUR)
    assert file.after(4, 5) == ((), 4, 4, 15)
    assert file.search("a", 0, 5, 60.0) == Found((), 0, 0, 15, False, 0)
    assert file.search("a", 15, 5, 60.0, backwards=True) == Found((), 15, 15, 15, False, 15)
    assert list(file.masked()) == []


LONE_TOKEN, MASKED = b" " * 30 + TOKEN.encode() + b" " * 100, b" " * 6 + "…".encode() + b" " * 20


@pytest.mark.parametrize(
    ("data", "limits", "parts"),
    [
        (b"aaa\nbb\ncccc\nd", SMALL, [b"aaa\nbb\n", b"cccc\nd"]),
        (b"\xff" * 40, SMALL, [b"\xff" * 28, b"\xff" * 12]),
        (LONE_TOKEN, Limits(searched=50, window=100, context=60), [b" " * 24, MASKED, b" " * 80]),
    ],
    ids=["lines", "long", "secret"],
)
def test_a_file_is_handed_out_in_parts_of_whole_lines(tmp_path, data, limits, parts):
    assert list(written(tmp_path, data, limits).masked()) == parts


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_took_the_place_of_a_file_is_not_read(tmp_path, kind):
    path, other = tmp_path / "a.log", tmp_path / "other"
    path.write_text("")
    file = source(path)
    other.write_text("of somebody else")
    path.unlink()
    {"link": lambda: path.symlink_to(other), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[kind]()
    try:
        assert file.end(5).lines == ()
    except ProblemsFound as error:
        assert error.problems[0].code == "E711"


def test_control_codes_are_removed_and_secrets_masked(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(
        b"\x1b]0;title\x07a\x1b[31mb\x9b0mc\x00\n10%\r\x1b[K20%\rdone\r\n" + f"with {TOKEN} in it\n".encode()
    )
    file = source(path)
    assert [line.text for line in file.end(9).lines] == ["ab\N{REPLACEMENT CHARACTER}0mc", "done", "with … in it"]
    assert file.search("with", 0, 1, 1.0).lines[0].text == "with … in it"
    raw = b"".join(file.masked())
    assert raw == path.read_bytes().replace(TOKEN.encode(), "…".encode())


@pytest.mark.slow
@pytest.mark.parametrize("blank", [" ", "x", "="], ids=["words", "one-word", "signs"])
def test_no_part_of_a_secret_is_left_where_a_long_line_is_cut(tmp_path, monkeypatch, blank):
    secret = "c0rrect-h0rse/battery.staple" * 3
    monkeypatch.setattr(redaction, "_process", redaction.Secrets())
    redaction._process.read({"MY_PASSWORD": secret}, keep=False)
    path, piece = tmp_path / "a.log", secret[5:25]
    for place in (0, 9_960, 10_000):
        path.write_text(blank * place + secret + blank * 60_000)
        (line,) = source(path).end(5).lines
        assert piece not in line.text
        assert len(line.text) <= 10_001
        limits = Limits(searched=5_000, window=10_000, context=2_000)
        raw = b"".join(source(path, limits).masked()).decode()
        assert raw == blank * place + "…" + blank * 60_000
        for offset in range(max(0, place - 10), place + len(secret), 19):
            for window in (source(path).after(offset, 5), source(path, limits).after(offset, 5)):
                assert piece not in window.lines[0].text
                assert secret[-12:] not in window.lines[0].text


def test_a_long_line_is_cut_and_a_progress_bar_shows_its_last_state(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(b"y" * 10_000 + b"\n" + b"z" * 10_001 + b"\n" + b"step 1\r" * 300_000 + b"step 2\r\nend\n")
    texts = [line.text for line in source(path, Limits(window=4 << 20)).end(9).lines]
    assert texts == ["y" * 10_000, "z" * 10_000 + "…", "step 2", "end"]
    window = source(path).end(9)
    assert [line.text for line in window.lines] == ["end"]
    assert source(path).before(window.first, 9).lines[-1].text == "step 2"


@pytest.mark.slow
def test_bytes_that_are_no_text_survive_in_the_file_that_is_handed_out(tmp_path):
    path = tmp_path / "a.log"
    data = bytes(range(256)) * 3000 + f"\xff password={'q7' * 9} \n".encode("latin-1") + b"\xff" + TOKEN.encode()
    path.write_bytes(data)
    raw = b"".join(source(path, Limits(searched=1000)).masked())
    assert raw == data.replace(b"q7" * 9, "…".encode()).replace(TOKEN.encode(), "…".encode())


def test_matches_are_marked():
    pattern = log_stream.compiled("(?i)err|o*")
    assert [("Error: ooh"[a:b]) for a, b in log_window.spans(pattern, "Error: ooh")] == ["Err", "o", "oo"]
    assert len(log_window.spans(log_stream.compiled("a"), "a" * 9000)) == 100


def test_sources_cover_every_attempt_rank_and_stream_of_the_last_launch(tmp_path):
    folder = a_job(tmp_path, "a")
    a_run(folder, [(0, 1), (0, 1, 2), (2, 0)])
    stale = folder / "run" / "logs" / "node-1" / "job_older" / "attempt_0" / "0"
    stale.mkdir(parents=True)
    (stale / "stdout.log").write_text("of an earlier launch")
    os.utime(stale / "stdout.log", (1.0, 1.0))
    (folder / "run" / "logs" / "node-0" / "job_x" / "attempt_9" / "0").mkdir(parents=True)
    (folder / "run" / "logs" / "node-0" / "job_x" / "attempt_0" / "..x").mkdir()
    linked = log_path(folder, 0, 0, 1, "stderr")
    linked.unlink()
    linked.symlink_to("/etc/hostname")
    found = log_window.sources(Job(folder))
    expected = [
        (attempt, nodes[rank // 2], rank, stream, 2 * len(nodes))
        for attempt, nodes in enumerate([(0, 1), (0, 1, 2), (2, 0)])
        for rank in range(2 * len(nodes))
        for stream in ("stdout", "stderr")
        if (attempt, rank, stream) != (0, 1, "stderr")
    ]
    assert [(each.attempt, each.node, each.rank, each.stream, each.num_ranks) for each in found] == expected
    assert found[0].end(5).lines[0].text == "stdout of rank 0 in attempt 0"
    assert found[-1].end(5).lines[0].text == "stderr of rank 3 in attempt 2"
    assert found[0].size == log_path(folder, 0, 0, 0, "stdout").stat().st_size


def test_a_source_is_the_newest_file_of_a_worker_since_its_attempt_began(tmp_path):
    folder = a_job(tmp_path, "a")
    a_run(folder, [(0, 1)], begun=1000.0)
    shutil.rmtree(folder / "run" / "logs" / "node-0")
    newest = []
    for local_rank, (early_s, late_s) in enumerate([(999.0, 998.9), (1001.5, 1000.5)]):
        path = log_path(folder, 0, 1, local_rank, "stdout")
        other = folder / "run" / "logs" / "node-1" / "job_w" / path.relative_to(path.parents[2])
        other.parent.mkdir(parents=True)
        other.write_text("of another launch")
        os.utime(other, (late_s, late_s))
        os.utime(path, (early_s, early_s))
        log_path(folder, 0, 1, local_rank, "stderr").unlink()
        newest.append(LogSource(0, 1, 2 + local_rank, "stdout", 30, early_s, 1000.0, 4, path))
    assert log_window.sources(Job(folder)) == tuple(newest)
    os.utime(other, (1001.5, 1001.5))  # of two at once, the later by name
    assert log_window.sources(Job(folder)) == tuple(newest)
    os.utime(other, (1001.6, 1001.6))
    assert log_window.sources(Job(folder))[1].path == other


def test_a_job_without_files_here_has_no_sources(tmp_path):
    assert log_window.sources(Job(a_job(tmp_path, "unstarted"))) == ()
    remote = a_job(tmp_path, "remote", backend="slurm")
    a_run(remote, [(0,)])
    assert log_window.sources(Job(remote)) == ()


def test_a_damaged_plan_is_reported(tmp_path):
    folder = a_job(tmp_path, "a")
    a_run(folder, [(0,)])
    (folder / "plan.json").write_text("{}")
    with pytest.raises(ProblemsFound, match="E703"):
        log_window.sources(Job(folder))


def test_a_tail_has_the_last_lines_of_a_job_as_its_backend_yields_them(tmp_path):
    folder = a_job(tmp_path, "a")
    a_run(folder, [(0,), (0,)], text=f"\x1b[1mred\x1b[0m {TOKEN}\n" + "w" * 30_000 + "\n")
    log_path(folder, 0, 0, 0, "stderr").write_text("of stderr\n")
    job = Job(folder, opened=registry.submitted(folder))
    found = log_window.tail(job, (0,), 2)
    last = (TailLine("line", "red …"), TailLine("line", "w" * 10_000 + "…"))
    assert found == (last, 9, True)  # with a heading for each attempt
    assert log_window.tail(job, (0,), 1, attempt=0, stderr=True).lines == (TailLine("line", "of stderr"),)
    for ranks in (None, (0, 1)):
        every = log_window.tail(job, ranks, 500, grep="red", attempt=1)
        assert {line.text for line in every.lines} == {"rank 0 | red …", "rank 1 | red …"}
    assert log_window.tail(job, (0,), 5, deadline_s=0.0)[1:] == (1, False)
    with pytest.raises(ProblemsFound, match="E707"):
        log_window.tail(job, (7,), 5)
