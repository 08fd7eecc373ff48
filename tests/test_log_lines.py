"""Lines of logs: masked quickly and completely, and written as they arrive."""

import base64
import os
import re
import threading

import pytest
from background import await_true
from hypothesis import given
from hypothesis import strategies as st

from launcher.common import redaction, secret_forms, secret_tokens
from launcher.common.lines import LineReader, LineWriter

VALUE = "s3cr3t-Value with blanks"
SECRETS = (
    *(
        "hf_" + "a1B2" * 10,
        "ghp_" + "a1B2" * 10,
        "xoxb-1234567890",
        "AKIA" + "A1B2" * 4,
        "eyJ" + "a" * 12 + ".eyJ" + "b" * 12 + ".c",
    ),
    *(
        "-----BEGIN RSA PRIVATE KEY-----",
        "https://me:pw1234@host/x",
        "me:pw1234@host.com",
        "HF_TOKEN=abc123",
        "hf-token = abc",
    ),
    *("-DPASSWORD=x1y2z3", '"api_key"="k1k2k3"', "--password  hunter22", "--token=abc1234", "curl -u me:pw1234 x"),
    *(
        "docker login -p pw1234",
        "mysql -ppw1234",
        "redis-cli -a pw1234",
        "wandb login abc123",
        "sshpass -p pw1234 ssh",
    ),
    *(
        "--from-literal=a=pw1234",
        "echo pw1234 | docker login --password-stdin",
        "printf pw1234 > my_token",
        "x login <<< pw1234",
    ),
    *(
        "Authorization: Bearer abcdefgh1234",
        VALUE,
        VALUE.upper(),
        base64.b64encode(VALUE.encode()).decode(),
        "tokens=abc123",
        "tokens=123 token=a1b2c3",
    ),
)
HARMLESS = (
    "loss=2.3",
    "tokens=12,345",
    "tokens/s 12",
    "step 3/10",
    "a@b",
    "==",
    "x = 3",
    "--lr 0.1",
    "-----",
    "é",
    "",
    "max_tokens=5k",
    "16:00:01,123",
)
TEXTS = st.lists(st.sampled_from((*SECRETS, *HARMLESS)), max_size=4).map(" ".join)


@pytest.fixture(autouse=True)
def known(monkeypatch):
    monkeypatch.setenv("OUR_PASSWORD", VALUE)
    redaction._process.read(os.environ, keep=False)
    yield
    monkeypatch.undo()
    redaction._process.read(os.environ, keep=False)


def reference(text):
    """Return what the patterns alone remove, in the order of `redaction.masked`."""
    anywhere, _ = redaction._patterns(redaction._process.known)
    text = anywhere.sub("…", text)
    spans = [*secret_forms._user_info_spans(text)]
    for match in secret_forms._ASSIGNED.finditer(text):
        name = match[1] or match[2]
        if name and secret_forms.is_clear(name, match[4].strip("'\"")):
            spans.append(match.span(4))
    for match in re.finditer(secret_forms._GIVEN, text, re.I):
        if match.lastindex and secret_forms.is_written(match[match.lastindex]):
            spans.append(match.span(match.lastindex))
    kept, first = "", 0
    for begin, end in sorted(spans):
        kept += f"{text[first:begin]}…" if begin >= first else ""
        first = max(first, end)
    return secret_tokens._TOKEN.sub("…", kept + text[first:])


@given(TEXTS)
def test_what_is_left_out_for_speed_finds_nothing_that_the_patterns_do_not(text):
    assert redaction.masked(text) == reference(text)


@pytest.mark.parametrize("text", SECRETS)
def test_each_secret_is_masked(text):
    assert "…" in redaction.masked(text)
    assert redaction.masked_lines(["fine", text, "fine"]).count("fine") == 2


@given(st.lists(TEXTS, min_size=1, max_size=8))
def test_many_lines_are_masked_as_each_by_itself(lines):
    assert redaction.masked_lines(lines) == "\n".join(map(redaction.masked, lines))


def test_a_line_is_written_soon_and_in_order_and_many_lines_together():
    written = []
    with LineWriter(lambda lines: written.append(list(lines))) as writer:
        writer.put("first")
        await_true(lambda: written == [["first"]])
        for number in range(50_000):
            writer.put(str(number))
    assert [line for block in written for line in block] == ["first", *map(str, range(50_000))]
    assert len(written) < 5_000


def test_lines_that_cannot_be_written_are_an_error_where_they_are_put():
    def refuse(_lines):
        raise BrokenPipeError

    def put_all():
        with LineWriter(refuse) as writer:
            while True:
                writer.put("x")

    with pytest.raises(BrokenPipeError):
        put_all()


def test_a_line_that_waits_is_written_when_the_source_fails():
    written, threads = [], threading.active_count()
    with pytest.raises(ValueError, match="broken"), LineWriter(written.extend) as writer:
        writer.put("last")
        raise ValueError("broken")
    assert written == ["last"] and threading.active_count() == threads


def test_what_is_not_a_regular_file_has_no_lines(tmp_path):
    """A device may never end: its lines would fill the memory."""
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for path in (tmp_path, tmp_path / "zeros", tmp_path / "absent"):
        assert list(LineReader(path).new_lines(complete_only=True)) == []
    (tmp_path / "zeros").unlink()
    (tmp_path / "zeros").write_text("one\ntw")
    assert list(LineReader(tmp_path / "zeros").new_lines(complete_only=True)) == ["one"]
