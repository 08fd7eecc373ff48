"""Who may ask the page, and what a browser may do with an answer. Before every view.

- The token, once as `?token=…`, then as a cookie that scripts cannot read and that no other site's page sends.
- The host must be this machine's own name, or a site could point its own name here (DNS rebinding).
- What changes something must come from a page of this server, by its Origin.
- A strict content policy: only this server's own files, no inline script or style, no frame around it.
"""

import hmac
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from launcher.common.problems import fail
from launcher.ui import addresses

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOSTS = ("127.0.0.1", "localhost", "[::1]")
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; "
    "trusted-types page"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # not `no-referrer`: with it, the Origin of a form of our own would be "null"
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
_SAFE = ("GET", "HEAD")
_MOST_BYTES = 1_000_000
"""Of a form."""
_REFUSED = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>Not signed in</title><h1>Not signed in</h1>"
    "<p>Open the address with its token, which <code>recipes ui</code> prints in the terminal."
)
_CONTINUED = (
    '<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content="0;url={0}">'
    '<title>Signed in</title><p><a href="{0}">Continue</a>'
)


class Guard:
    """Passes only requests with the token to an application.

    Args:
        port: Of the server: cookies are not separated by ports, so its name has it.
    """

    def __init__(self, app: "ASGIApp", token: str, port: int):
        self._app, self._token, self._cookie = app, token, f"recipes-{port}"
        # not the token itself: browsers send the cookies of one port to servers of every other port, too
        self._key = hmac.new(token.encode(), self._cookie.encode(), "sha256").hexdigest()

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] != "http":
            return

        async def sent(message: "Message") -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, sent)

    def _refusal(self, scope: "Scope") -> Response | None:
        headers, request = Headers(scope=scope), Request(scope)
        host = headers.get("host", "")
        if _without_port(host) not in HOSTS:
            return PlainTextResponse("This server answers only to its own address.", 421)
        given = request.query_params.get("token")
        if given is not None and request.method in _SAFE:
            return self._signed_in(request, given)
        if not hmac.compare_digest(request.cookies.get(self._cookie, "").encode(), self._key.encode()):
            return HTMLResponse(_REFUSED, 401)
        if request.method not in _SAFE and not _is_own(headers, host):
            return PlainTextResponse("This request did not come from a page of this server.", 403)
        return None

    def _signed_in(self, request: Request, given: str) -> Response:
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return HTMLResponse(_REFUSED, 401)
        rest = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != "token"])
        path = "/" + addresses.path_of(request).lstrip("/")  # `//host` would be another server's address
        address = f"{path}?{rest}" if rest else path
        if request.headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
            response: Response = RedirectResponse(address, 303)
        else:  # a link in another site's page: its redirect would come without the strict cookie
            response = HTMLResponse(_CONTINUED.format(address.replace("&", "&amp;").replace('"', "%22")))
        response.set_cookie(self._cookie, self._key, httponly=True, samesite="strict", path="/")
        return response


def _without_port(host: str) -> str:
    return host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and ":" in host else host


def _is_own(headers: Mapping[str, str], host: str) -> bool:
    return headers.get("origin") == f"http://{host}" and headers.get("sec-fetch-site", "same-origin") == "same-origin"


async def fields(request: Request) -> dict[str, list[str]]:
    """Return the values of a form by their names.

    Raises:
        ProblemsFound: It is not a form, or too long (E744).
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/x-www-form-urlencoded":
        raise fail("E744", "form", "is not a form", value=kind, allowed="application/x-www-form-urlencoded")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BYTES:
            raise fail("E744", "form", "is too long", allowed=f"at most {_MOST_BYTES:,} bytes")
    try:
        return parse_qs(body.decode("ascii"), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=2000)
    except ValueError as error:
        raise fail("E744", "form", f"cannot be read: {error}") from error
