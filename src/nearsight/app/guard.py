"""What stands between the network and the page: who may come in, what may go out."""

import asyncio
import base64
import binascii
import hmac
import json
import re
import signal
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from ..console import first_line
from .uploads import MOST_BYTES

if TYPE_CHECKING:
    import uvicorn

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})
MOST_BODY = MOST_BYTES + 2**20  # a file and what is around it
TOO_LARGE = f"That is too large; {MOST_BYTES // 2**20} MB are the most."
MOST_HEAD = 2**18  # of a request: its address and headers
MOST_MESSAGE = 2**18  # what the page sends about a click or a state
MOST_KEPT = 20 * MOST_BYTES  # of all uploads together, until the page ends
SHORTEST = 8  # characters of a password beyond this machine
PATIENCE = 60.0  # seconds until a file has arrived
HEAD_PATIENCE = 10.0  # and the head of a request
GUESSES, PAUSE = 5, 60.0  # wrong passwords from one address, and seconds until it may try again
ADDRESSES = 1000  # that are remembered for it
# What FastAPI and Gradio would serve: descriptions of themselves, and a way to other machines.
CLOSED = re.compile(r"^(/gradio_api)?/(openapi\.json|docs|redoc|dev)(/|$)|/proxy=")
# Everything comes from here; Gradio's own scripts are inline and make functions of text.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' data: blob:; worker-src 'self' blob:; "
    "object-src 'none'; base-uri 'self'; frame-ancestors 'none'; form-action 'self'"
)
HEADERS = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"x-frame-options": b"DENY",
}
# What Gradio's page would fetch from elsewhere: fonts, and a script for pages inside other pages.
OUTSIDE = re.compile(rb"<(?:link|meta)\b[^>]*https?://[^>]*>|<script\b[^>]*src=\"https?://[^>]*>\s*</script>")


@contextmanager
def ending_at_hangup(server: "uvicorn.Server") -> Iterator[None]:
    """Let a closed terminal (SIGHUP) stop a server in order, as uvicorn lets SIGTERM and Ctrl+C."""
    number = getattr(signal, "SIGHUP", None)  # Windows has none
    if number is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(number)

    def stop(*_: object) -> None:
        server.should_exit = True

    if before != signal.SIG_IGN:  # as nohup wants it
        signal.signal(number, stop)
    try:
        yield
    finally:
        signal.signal(number, before)


def prompt_protocol(seconds: float) -> "type[asyncio.Protocol]":
    """uvicorn's protocol, but for requests whose head does not come to an end: it hangs up after so many seconds.

    Otherwise a few hundred connections that say a letter now and then would keep everybody else out for ever.
    """
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    class PromptProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        """Waits for the head of a request only so long."""

        timer: asyncio.TimerHandle | None = None
        head = 0  # bytes of a request that has not begun

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.wait_for_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self.stop_waiting()
                return
            if self.cycle is None or not self.cycle.more_body:  # else the rest of what was refused
                self.head += len(data)
            if self.head > MOST_HEAD:
                self.transport.close()
            elif self.timer is None:  # a next request on the same connection
                self.wait_for_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self.stop_waiting()
            super().connection_lost(exc)

        def wait_for_head(self) -> None:
            self.timer = asyncio.get_running_loop().call_later(seconds, self.transport.close)

        def stop_waiting(self) -> None:
            self.head = 0
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None

    return PromptProtocol


def check_access(host: str, password: str | None) -> None:
    """Refuse to be reached from other machines without a password.

    Example:
        >>> check_access("127.0.0.1", None)
        >>> check_access("0.0.0.0", "a long password")
    """
    if host in LOCAL:
        return
    if password is None:
        raise ValueError(
            f"--host {host} lets other machines in; give --password as well, or leave --host out to stay on this one."
        )
    if len(password) < SHORTEST:
        raise ValueError(f"--password has {len(password)} characters; beyond this machine give {SHORTEST} or more.")


class Refusal(NamedTuple):
    """Why a request is not let in.

    Attributes:
        status: HTTP's number for it.
        sentence: What to do.
        headers: What else the response says.
    """

    status: int
    sentence: str
    headers: list[tuple[bytes, bytes]]


class Access:
    """Who may come in: asks for the password, and refuses foreign sites and host names.

    Starlette has a middleware for host names alone; the rest would be our own either way, so all of it stands here.

    Args:
        password: None lets everybody in who reaches the port.
        hosts: Names under which the port may be asked; None allows all (then there is a password).
    """

    def __init__(self, password: str | None, hosts: frozenset[str] | None):
        self.password = password
        self.hosts = hosts
        self.wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()  # by address: wrong passwords, and when last

    def refusal(self, scope: Scope) -> Refusal | None:
        """Why a request is not let in; None if it is."""
        headers = dict(scope["headers"])
        if self.hosts is not None and host_name(headers.get(b"host", b"")) not in self.hosts:
            return Refusal(403, "This is for this machine alone; open it as http://127.0.0.1.", [])
        if self.password is not None and (wait := self.seconds_to_wait(scope)):
            pause = [(b"retry-after", str(wait).encode())]
            return Refusal(429, f"Too many wrong passwords; try again in {wait} seconds.", pause)
        if self.password is not None and not self.lets_in(scope, headers.get(b"authorization", b"")):
            ask = [(b"www-authenticate", b'Basic realm="Nearsight: any name, and the password", charset="UTF-8"')]
            return Refusal(401, "The password is missing or wrong.", ask)
        if scope["method"] not in ("GET", "HEAD") and is_foreign(headers):
            return Refusal(403, "That was sent by another site; use the page itself.", [])
        return None

    def seconds_to_wait(self, scope: Scope) -> int:
        """How long an address that guessed too often has to wait; 0 if it may come in."""
        count, last = self.wrong.get(address_of(scope), (0, 0.0))
        return max(0, round(last + PAUSE - time.monotonic())) if count >= GUESSES else 0

    def lets_in(self, scope: Scope, authorization: bytes) -> bool:
        """Whether a header has the password; guesses are counted, a request without one is none."""
        assert self.password is not None
        address = address_of(scope)
        if knows(authorization, self.password):
            self.wrong.pop(address, None)
            return True
        if authorization:
            count, last = self.wrong.pop(address, (0, 0.0))
            now = time.monotonic()
            self.wrong[address] = (count + 1 if now - last < PAUSE else 1, now)
            while len(self.wrong) > ADDRESSES:
                self.wrong.popitem(last=False)
        return False


class Guard:
    """Lets those in who may come in, refuses large bodies, and keeps the page to itself.

    Args:
        app: What is guarded.
        password: None lets everybody in who reaches the port.
        hosts: Names under which the page may be asked for; None allows all (then there is a password).
        folder: Where uploads lie; messages may name no other file.
    """

    def __init__(self, app: App, password: str | None, hosts: frozenset[str] | None, folder: Path):
        self.app = app
        self.access = Access(password, hosts)
        self.folder = folder.resolve()
        self.arriving = 0  # bytes of uploads that are on their way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # the page needs no web sockets
        headers = dict(scope["headers"])
        if (refused := self.access.refusal(scope)) is not None:
            await refuse(send, *refused)
        elif CLOSED.search(scope["path"]):
            await refuse(send, 404, "There is nothing here.")
        elif (length := headers.get(b"content-length", b"")).isdigit() and int(length) > MOST_BODY:
            await refuse(send, 413, TOO_LARGE)
        elif scope["method"] != "POST":
            if scope["path"] == "/":  # not compressed, since the page is looked through on its way out
                kept = [pair for pair in scope["headers"] if pair[0].lower() != b"accept-encoding"]
                scope = {**scope, "headers": kept}
            await Outgoing(send).respond(self.app, scope, receive)
        elif scope["path"].endswith("/upload"):
            await self.pass_upload(scope, receive, send)
        else:
            await self.pass_message(scope, receive, send)

    async def pass_upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a file through that is not too large, also if it did not say how large it is, and finds room."""
        length = dict(scope["headers"]).get(b"content-length", b"")
        claimed = int(length) if length.isdigit() else MOST_BODY
        if size_of(self.folder) + self.arriving + claimed > MOST_KEPT:
            await refuse(send, 507, "The page holds all the images it can; start it anew, or use one that is there.")
            return
        self.arriving += claimed
        try:
            body = await asyncio.wait_for(read_body(receive, MOST_BODY), PATIENCE)
            if body is None:
                await refuse(send, 413, TOO_LARGE)
            else:
                await Outgoing(send).respond(self.app, scope, replayed(body, receive))
        except (TimeoutError, asyncio.TimeoutError):
            await refuse(send, 408, f"The file took more than {PATIENCE:g} seconds to arrive; give a smaller image.")
        except asyncio.CancelledError:
            await refuse(send, 503, "The page ends.")
        finally:
            self.arriving -= claimed

    async def pass_message(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a message through that names no file but uploads. Gradio would take any path or address, and open it."""
        body = await read_body(receive, MOST_MESSAGE)
        try:
            allowed = body is not None and (not body or all(map(self.is_upload, paths_in(json.loads(body)))))
        except (ValueError, RecursionError):
            allowed = False
        if body is None:
            await refuse(send, 413, TOO_LARGE)
        elif not allowed:
            await refuse(send, 403, "That file was not uploaded here; drop an image on the page.")
        else:
            await Outgoing(send).respond(self.app, scope, replayed(body, receive))

    def is_upload(self, path: Any) -> bool:
        """Whether a path leads to a file in the folder of uploads."""
        try:
            return isinstance(path, str) and Path(path).resolve().is_relative_to(self.folder)
        except (OSError, ValueError, RuntimeError):
            return False


def paths_in(message: Any) -> Iterator[Any]:
    """Whatever stands under `path` anywhere in a message."""
    if isinstance(message, dict):
        for key, value in message.items():
            if key == "path" and value is not None:
                yield value
            yield from paths_in(value)
    elif isinstance(message, list):
        for value in message:
            yield from paths_in(value)


async def read_body(receive: Receive, most: int) -> bytes | None:
    """The whole body of a request; None if it has more than so many bytes."""
    parts, total, more = [], 0, True
    while more and total <= most:
        message = await receive()
        parts.append(message.get("body", b""))
        total += len(parts[-1])
        more = message["type"] == "http.request" and message.get("more_body", False)
    return b"".join(parts) if total <= most else None


def replayed(body: bytes, receive: Receive) -> Receive:
    """A body that was read already, then whatever comes."""
    given = False

    async def take() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return take


def host_name(value: bytes) -> str:
    """The name in a Host header, without the port."""
    text = value.decode("latin-1").lower()
    return text[1:].partition("]")[0] if text.startswith("[") else text.rpartition(":")[0] or text


def knows(authorization: bytes, password: str) -> bool:
    """Whether a header has the password: under any name (Basic), or alone (Bearer)."""
    kind, _, value = authorization.partition(b" ")
    if kind.lower() == b"bearer":
        return hmac.compare_digest(value.strip(), password.encode())
    if kind.lower() != b"basic":
        return False
    try:
        given = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(given.partition(b":")[2], password.encode())


def is_foreign(headers: dict[bytes, bytes]) -> bool:
    """Whether a browser says that a page of another site sends this; programs that say nothing are no browsers."""
    if headers.get(b"sec-fetch-site", b"none") not in (b"same-origin", b"none"):
        return True
    origin = headers.get(b"origin")
    return origin is not None and urlsplit(origin).netloc.lower() != headers.get(b"host", b"").lower()


def address_of(scope: Scope) -> str:
    """The address that a request comes from."""
    client = scope.get("client")
    return client[0] if client else ""


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


async def refuse(send: Send, status: int, sentence: str, extra: list[tuple[bytes, bytes]] | None = None) -> None:
    """Respond with a sentence."""
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *HEADERS.items(), *(extra or [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": sentence.encode()})


class Outgoing:
    """Adds headers to responses, takes what points elsewhere out of pages, and puts sentences for failures."""

    def __init__(self, send: Send):
        self.send = send
        self.start: Message | None = None  # of a page, held back until its new length is known
        self.body = b""
        self.began = self.failed = False

    async def respond(self, app: App, scope: Scope, receive: Receive) -> None:
        """Let the page respond. Gradio fails at messages that no page of its own sends."""
        try:
            await app(scope, receive, self)
        except asyncio.CancelledError:  # a response that is still being waited for when the page ends
            pass
        except Exception as error:
            print(f"nearsight: a request failed: {first_line(error)}", file=sys.stderr)
        if not self.began:
            await refuse(self.send, 400, "The page can't make sense of that; open it anew.")

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.failed = message["status"] == 500
        if self.failed:
            return
        self.began = True
        if message["type"] == "http.response.start":
            headers = [pair for pair in message["headers"] if pair[0].lower() not in HEADERS]
            message["headers"] = [*headers, *HEADERS.items()]
            if dict(headers).get(b"content-type", b"").startswith(b"text/html"):
                self.start = message
                return
        elif self.start is not None:
            self.body += message.get("body", b"")
            if message.get("more_body"):
                return
            await self.send_page()
            return
        await self.send(message)

    async def send_page(self) -> None:
        """The page without what it would fetch from elsewhere."""
        assert self.start is not None
        body = OUTSIDE.sub(b"", self.body)
        headers = [pair for pair in self.start["headers"] if pair[0].lower() != b"content-length"]
        self.start["headers"] = [*headers, (b"content-length", str(len(body)).encode())]
        await self.send(self.start)
        await self.send({"type": "http.response.body", "body": body})
