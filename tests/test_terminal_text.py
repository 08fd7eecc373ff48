"""What others wrote reaches a terminal as text only."""

import time

import pytest
from terminals import python_on_a_terminal

from launcher.common import console
from launcher.common.problems import Problem
from launcher.common.texts import plain

HOSTILE = {
    "colour": ("\x1b[31mred\x1b[0m", "red"),
    "clear": ("a\x1b[2J\x1b[Hb", "ab"),
    "cursor": ("a\x1b[10Ab\x1b[?25lc", "abc"),
    "title": ("\x1b]0;owned\x07a", "a"),
    "title with st": ("\x1b]2;owned\x1b\\a", "a"),
    "title without end": ("a\x1b]0;owned", "a"),
    "clipboard": ("\x1b]52;c;cm0gLXJm\x07a", "a"),
    "link": ("\x1b]8;;http://x\x1b\\text\x1b]8;;\x1b\\", "text"),
    "device control": ("\x1bP+q544e\x1b\\a", "a"),
    "8 bit": ("\x9b31mred\x9d0;owned\x9ca", "reda"),
    "reset": ("\x1bca\x1b(0b", "ab"),
    "lone escape": ("a\x1b", "a"),
    "bell and backspace": ("a\x07\x08\x08b\x00c\x7f", "abc"),
    "reversed": ("a\u202egpj.exe\u2066", "agpj.exe"),
    "progress": ("\r 0%|  |\r50%|# |\r99%|##|", "99%|##|"),
    "progress, ended": ("a\n 0%\r 50%\r\nb", "a\n 50%\nb"),
    "ordinary": ("a\tb\nc é 日本 ─ …", "a\tb\nc é 日本 ─ …"),
}


@pytest.mark.parametrize(("text", "shown"), HOSTILE.values(), ids=HOSTILE)
def test_control_sequences_are_removed_and_the_text_stays(text, shown):
    assert plain(text) == shown


def test_a_long_sequence_takes_bounded_time():
    for text in ("\x1b]0;" * 200_000, "\x1b[" + ";" * 1_000_000, "\r" * 1_000_000, "\x1bP" + "x" * 1_000_000):
        began = time.process_time()
        assert "\x1b" not in plain(text)
        assert time.process_time() - began < 10


@pytest.mark.slow
def test_a_log_a_problem_and_a_name_reach_a_terminal_as_text():
    code = """
from launcher.cli import terminal
from launcher.common import console
from launcher.common.problems import Problem
from launcher.model.job_spec import LogLine
bad = "\\x1b]0;owned\\x07\\x1b[2J\\x1b]52;c;cm0=\\x07text\\x9b5m"
lines = [LogLine("line", 0, text) for text in (bad, "step 1/2  loss " + bad, "\\r10%\\r20%")]
terminal.follow(iter([*lines, LogLine("fault", None, bad)]))
console.say(bad, "bold")
console.say(bad)
console.say_all([(bad, "bold"), (bad, "")])
console.show_problems((Problem("E001", bad, bad),))
console.show_table(["a", "b"], [[bad, bad]])
with console.while_waiting(bad):
    pass
"""
    written = python_on_a_terminal("-c", code)
    assert written.count("text") >= 10 and "20%" in written and "Traceback" not in written
    for forbidden in ("\x1b]", "\x1b[2J", "owned", "cm0", "\x9b"):
        assert forbidden not in written


def test_output_that_is_piped_is_text_too(capsys):
    console.say("\x1b]0;owned\x07text")
    console.show_problems((Problem("E001", "a\x1b[2J", "b\x1bc"),))
    out, err = capsys.readouterr()
    assert out == "text\n" and "\x1b" not in err
