"""The search page: three files of this package, whose policy lets them load and reach nothing but this service."""

from collections.abc import Mapping
from importlib.resources import files

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from care_qdrant.serve.endpoint import enter

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
PATHS: Mapping[str, tuple[str, str]] = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}


class PageFile:
    """One file of the page, held in memory."""

    def __init__(self, path: str) -> None:
        """Read the file that a path of `PATHS` serves."""
        name, self._media_type = PATHS[path]
        self._path, self._content = path, files("care_qdrant.serve").joinpath("page", name).read_bytes()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        enter(self._path, scope, ("GET", "HEAD"))
        headers = {"content-security-policy": _POLICY, "cache-control": "no-cache"}
        await Response(self._content, headers=headers, media_type=self._media_type)(scope, receive, send)
