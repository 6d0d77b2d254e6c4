"""A server on loopback that speaks like the Hugging Face hub about one file, and can be made to fail."""

import hashlib
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Hub:
    """A file behind HTTP.

    Attributes:
        content: Bytes of the file.
        announced: Hash that the server promises.
        asked: Method, path and range of every request.
        answer: What is done instead of sending the file; it gets the handler and the first byte that is wanted, and
            says whether it did something.
        missing: Whether there is no such file.
        silent: Methods that are never answered.
    """

    def __init__(self, content: bytes):
        self.content, self.announced = content, hashlib.sha256(content).hexdigest()
        self.asked: list[tuple[str, str, str | None]] = []
        self.answer: Callable[[BaseHTTPRequestHandler, int], bool] = lambda handler, first: False
        self.missing, self.silent = False, ()
        self.ended = threading.Event()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.respond()

            def do_GET(self) -> None:
                self.respond()

            def respond(self) -> None:
                hub.asked.append((self.command, self.path, self.headers["Range"]))
                if self.command in hub.silent:
                    hub.ended.wait(30)
                    self.close_connection = True
                elif hub.missing:
                    self.begin(404, 0, {"X-Error-Code": "RepoNotFound"})
                elif "/resolve/" in self.path:  # large files lie on another host, as those of the hub
                    place = f"http://localhost:{hub.server.server_port}/storage"
                    size, tag = str(len(hub.content)), f'"{hub.announced}"'
                    told = {"X-Repo-Commit": "0" * 40, "X-Linked-Size": size, "X-Linked-Etag": tag}
                    self.begin(302, 0, {"Location": place, "ETag": '"other"', **told})
                else:
                    wanted = self.headers["Range"]
                    first = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
                    if not hub.answer(self, first):
                        self.begin(206 if wanted else 200, len(hub.content) - first)
                        self.wfile.write(hub.content[first:])

            def begin(self, status: int, length: int, headers: dict[str, str] | None = None) -> None:
                self.send_response(status)
                for key, value in {"Content-Length": str(length), **(headers or {})}.items():
                    self.send_header(key, value)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """End the server."""
        self.ended.set()
        self.server.shutdown()
        self.server.server_close()

    def break_off(self, handler: BaseHTTPRequestHandler, first: int, share: float = 0.5) -> bool:
        """Send a share of what is wanted and hang up."""
        handler.begin(206 if first else 200, len(self.content) - first)  # type: ignore[attr-defined]
        handler.wfile.write(self.content[first : first + int(share * (len(self.content) - first))])
        handler.close_connection = True
        return True

    def send_slowly(self, handler: BaseHTTPRequestHandler, first: int, pieces: int = 5, pause: float = 0.3) -> bool:
        """Send the file in pieces, with pauses between them."""
        handler.begin(206 if first else 200, len(self.content) - first)  # type: ignore[attr-defined]
        step = -(-len(self.content) // pieces)
        for start in range(first, len(self.content), step):
            handler.wfile.write(self.content[start : start + step])
            handler.wfile.flush()
            time.sleep(pause)
        return True
