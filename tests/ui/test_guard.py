"""Who may ask the page, and what a browser is told."""

import asyncio
import hmac

import httpx
import pytest
from result_folders import a_job
from starlette.requests import Request
from starlette.testclient import TestClient

from launcher.common.problems import ProblemsFound
from launcher.ui import guard
from launcher.ui.app import app_of
from launcher.ui.guard import Guard
from launcher.ui.state import Ui

TOKEN = "t" * 43
HOST = "http://127.0.0.1:8765"
KEY = hmac.new(TOKEN.encode(), b"recipes-8765", "sha256").hexdigest()
OWN = {"origin": HOST, "sec-fetch-site": "same-origin"}
FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.fixture
def stranger(tmp_path):
    """Return a client without the token."""
    a_job(tmp_path / "results", "a")
    app = Guard(app_of(Ui.of(tmp_path / "results", may_write=False)), TOKEN, 8765)
    return TestClient(app, base_url=HOST, follow_redirects=False)


@pytest.fixture
def user(stranger):
    """Return a client that has opened the address with the token."""
    assert stranger.get(f"/jobs?token={TOKEN}").status_code == 303
    return stranger


@pytest.mark.parametrize("path", ["/", "/jobs", "/jobs/a", "/live/jobs", "/files/page.css", "/nothing"])
@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong", f"?token={TOKEN}x", f"?token={TOKEN[:-1]}"])
def test_nothing_answers_without_the_token(stranger, path, query):
    reply = stranger.get(path + query)
    assert reply.status_code == 401
    assert TOKEN not in reply.text and "<h1>Not signed in</h1>" in reply.text


def test_a_wrong_cookie_is_refused(stranger):
    assert stranger.get("/jobs", headers={"cookie": "recipes-8765=wrong"}).status_code == 401
    for cookie in (f"recipes-1={KEY}", f"recipes-8765={TOKEN}", f"recipes-8765={KEY[:-1]}"):
        assert stranger.get("/jobs", headers={"cookie": cookie}).status_code == 401


def test_the_token_becomes_a_cookie_that_no_script_and_no_other_site_has(stranger):
    reply = stranger.get(f"/jobs?state=failed&token={TOKEN}&q=a%26b")
    assert (reply.status_code, reply.headers["location"]) == (303, "/jobs?state=failed&q=a%26b")
    cookie = reply.headers["set-cookie"]
    assert cookie.startswith(f"recipes-8765={KEY};")  # not the token: servers of other ports are sent it, too
    assert sorted(cookie.split("; ")[1:]) == ["HttpOnly", "Path=/", "SameSite=strict"]
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
    assert stranger.get("/jobs").status_code == 200


@pytest.mark.parametrize(
    ("query", "address"),
    [
        (f"/jobs?token={TOKEN}", "/jobs"),
        (f"/?token={TOKEN}&a=1&token={TOKEN}&a=", "/?a=1&a="),
        (f"/XX/jobs/?token={TOKEN}", "/XX/jobs/"),
        (f"//x?token={TOKEN}", "/x"),
    ],
)
def test_the_address_stays_the_same_but_for_the_token(stranger, query, address):
    for site in ({}, {"sec-fetch-site": "none"}, {"sec-fetch-site": "same-origin"}):
        reply = stranger.get(HOST + query, headers=site)
        assert (reply.status_code, reply.headers["location"]) == (303, address)
    assert stranger.head(HOST + query).status_code == 303


def test_only_reading_signs_in(stranger):
    reply = stranger.post(f"/jobs?token={TOKEN}", headers=OWN | FORM)
    assert (reply.status_code, "set-cookie" in reply.headers) == (401, False)
    assert "Open the address with its token, which <code>recipes ui</code> prints" in reply.text


def test_a_link_of_another_site_is_followed_by_a_page_of_our_own(stranger):
    reply = stranger.get(f"/jobs?token={TOKEN}", headers={"sec-fetch-site": "cross-site"})
    assert reply.status_code == 200
    assert 'content="0;url=/jobs"' in reply.text
    assert reply.headers["set-cookie"].startswith(f"recipes-8765={KEY};")
    reply = stranger.get(f"/a%22b?x=1&y=2&token={TOKEN}", headers={"sec-fetch-site": "same-site"})
    assert 'content="0;url=/a%22b?x=1&amp;y=2"' in reply.text
    assert '<a href="/a%22b?x=1&amp;y=2">Continue</a>' in reply.text


@pytest.mark.parametrize("path", ["//evil.test/jobs", "///evil.test"])
def test_the_token_leads_to_no_other_server(stranger, path):
    reply = stranger.get(f"{HOST}{path}?token={TOKEN}")
    assert reply.headers.get("location", "/")[:2] != "//"


@pytest.mark.parametrize(
    "host", ["evil.test", "evil.test:8765", "127.0.0.1.evil.test", "localhost.evil.test:8765", ""]
)
def test_a_name_of_another_site_that_points_here_is_refused(user, host):
    reply = user.get("/jobs", headers={"host": host})
    assert (reply.status_code, reply.text) == (421, "This server answers only to its own address.")


@pytest.mark.parametrize(
    ("host", "name"),
    [
        *[("localhost", "localhost"), ("localhost:1", "localhost"), ("[::1]", "[::1]"), ("[::1]:80", "[::1]")],
        *[("a:b:80", "a:b"), ("localhost:", "localhost:"), ("localhost:8x", "localhost:8x"), ("80", "80")],
    ],
)
def test_a_port_is_a_number_behind_the_name(host, name):
    assert guard._without_port(host) == name


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8765", "localhost:8765", "localhost:9999", "[::1]:8765", "127.0.0.1", "[::1]"]
)
def test_a_tunnel_may_have_another_port(stranger, host):
    headers = {"host": host, "cookie": f"recipes-8765={KEY}"}
    assert stranger.get("/jobs", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://evil.test"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "https://127.0.0.1:8765"},
        {"origin": HOST, "sec-fetch-site": "cross-site"},
        {"origin": HOST, "sec-fetch-site": "same-site"},
    ],
)
def test_only_a_page_of_this_server_changes_something(user, headers):
    reply = user.post("/jobs/a/actions/cancel", headers=headers | FORM)
    assert (reply.status_code, reply.text) == (403, "This request did not come from a page of this server.")


def test_a_browser_need_not_name_the_site_of_an_own_request(user):
    assert user.post("/jobs/a/actions/cancel", headers={"origin": HOST} | FORM).status_code == 422


def test_a_page_that_only_reads_refuses_every_action(user):
    for path in ("/jobs/a/actions/cancel", "/jobs/a/actions/scale", "/jobs/a/actions/rerun", "/actions/launch"):
        reply = user.post(path, headers=OWN | FORM, content="nodes=2")
        assert (reply.status_code, "E743" in reply.text) == (422, True), path


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"{}", "application/json"),
        (b"a", "multipart/form-data"),
        (b"a", "text/plain"),
        (b"a" * 2_000_000, FORM["content-type"]),
        (b"a&b", FORM["content-type"]),
        (b"\xff=1", FORM["content-type"]),
    ],
)
def test_what_is_no_form_is_refused(user, content, kind):
    reply = user.post("/actions/launch", headers=OWN | {"content-type": kind}, content=content)
    assert (reply.status_code, "E744" in reply.text) == (422, True)


def read_form(body):
    """Return what `fields` reads of a form that comes in two parts."""
    parts = [
        {"type": "http.request", "body": body[:5], "more_body": True},
        {"type": "http.request", "body": body[5:], "more_body": False},
    ]

    async def receive():
        return parts.pop(0)

    headers = [(b"content-type", b"application/x-www-form-urlencoded; charset=utf-8")]
    return asyncio.run(guard.fields(Request({"type": "http", "method": "POST", "headers": headers}, receive)))


def test_a_form_has_every_value_of_a_name():
    assert read_form(b"a=1&b=&a=x%26y+z") == {"a": ["1", "x&y z"], "b": [""]}
    assert read_form(b"") == {}


@pytest.mark.parametrize(
    ("longest", "longer"),
    [(b"a=" + b"1" * 999_998, b"a=" + b"1" * 999_999), (b"&".join([b"a=1"] * 2000), b"&".join([b"a=1"] * 2001))],
    ids=["bytes", "values"],
)
def test_a_form_is_bounded(longest, longer):
    assert list(read_form(longest)) == ["a"]
    with pytest.raises(ProblemsFound, match="E744"):
        read_form(longer)


def test_only_a_request_reaches_the_application():
    asyncio.run(Guard(None, TOKEN, 8765)({"type": "websocket"}, None, None))


@pytest.mark.parametrize("path", ["/jobs", "/jobs/none", "/files/page.js", "/files/../app.py", "/live/jobs/none"])
def test_every_answer_has_the_strict_policy(user, path):
    headers = user.get(path).headers
    policy = dict(each.split(" ", 1) for each in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert "unsafe" not in headers["content-security-policy"]
    assert all(
        policy[name] == "'self'" for name in ("script-src", "style-src", "img-src", "connect-src", "form-action")
    )
    assert policy["frame-ancestors"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert "no-" in headers["cache-control"]


def test_asking_for_the_head_of_a_stream_ends(user):
    assert user.head("/live/jobs").status_code == 200


def test_another_method_is_refused(user):
    for method in ("PUT", "DELETE", "PATCH"):
        assert user.request(method, "/jobs/a", headers=OWN).status_code == 405


def test_only_known_files_are_served(user):
    for name in ("base.html", "..%2fpyproject.toml", "%2e%2e/app.py", "page.css%00", "/etc/passwd"):
        assert user.get(f"/files/{name}").status_code == 404
    first = user.get("/files/page.css")
    again = user.get("/files/page.css", headers={"if-none-match": first.headers["etag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")


def replies(app, *requests) -> list[httpx.Response]:
    """Return replies to requests by one client, whose paths are decoded once, as by a server."""

    async def sent() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=HOST) as client:
            return [await client.request(method, path, headers=OWN | FORM) for method, path in requests]

    return asyncio.run(sent())


@pytest.mark.parametrize("path", ["/jobs/a%252Fb", "/jobs/a%25%3Fb%23%C3%A9", "/recipes/training/tiny/tiny_lm_cpu"])
def test_signing_in_keeps_the_encoding_of_the_address(stranger, path):
    (reply,) = replies(stranger.app, ("GET", f"{path}?token={TOKEN}&x=1"))
    assert (reply.status_code, reply.headers["location"]) == (303, f"{path}?x=1")


def test_an_action_keeps_the_encoding_of_a_name(tmp_path):
    a_job(tmp_path, "a%2Fb")
    path = "/jobs/a%252Fb/actions/rerun"
    signed_in, question = replies(
        Guard(app_of(Ui.of(tmp_path, may_write=True)), TOKEN, 8765), ("GET", f"/jobs?token={TOKEN}"), ("POST", path)
    )
    assert (signed_in.status_code, question.status_code) == (303, 200)
    assert f'action="{path}"' in question.text
