"""A server on loopback that keeps models as the Hugging Face hub does, as far as its client asks."""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ModelHub:
    """Repositories in memory.

    Attributes:
        files: Content of each file, by repository and name.
        private: Whether each repository is.
        asked: Method and path of every request.
        token: What a client must send to write.
    """

    def __init__(self, token: str = "hf_test"):
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.asked: list[tuple[str, str]] = []
        self.token = token
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.respond()

            def do_GET(self) -> None:
                self.respond()

            def do_POST(self) -> None:
                self.respond()

            def respond(self) -> None:
                hub.asked.append((self.command, self.path))
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                may_write = self.headers["Authorization"] == f"Bearer {hub.token}"
                if self.path == "/api/validate-yaml":
                    self.say({"errors": [], "warnings": []})
                elif self.command == "POST" and not may_write:
                    self.say({"error": "Invalid token"}, 401)
                elif self.path == "/api/repos/create":
                    about = json.loads(body)
                    name = f"{about['organization']}/{about['name']}" if about.get("organization") else about["name"]
                    is_private = about.get("private") or about.get("visibility") == "private"
                    hub.files.setdefault(name, {})
                    hub.private.setdefault(name, bool(is_private))
                    self.say({"url": f"{hub.url}/{name}"})
                elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/.*", self.path):
                    plain = {"uploadMode": "regular", "shouldIgnore": False}
                    self.say({"files": [plain | {"path": one["path"]} for one in json.loads(body)["files"]]})
                elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/.*", self.path):
                    for line in map(json.loads, body.splitlines()):
                        if line["key"] == "file":
                            content = base64.b64decode(line["value"]["content"])
                            hub.files[found[1]][line["value"]["path"]] = content
                    self.say({"commitUrl": f"{hub.url}/{found[1]}/commit/{hub.sha(found[1])}", "commitOid": "0" * 40})
                elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/[^?]*)?(?:\?.*)?", self.path):
                    if found[1] not in hub.files:
                        self.say({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
                        return
                    siblings = [{"rfilename": name} for name in hub.files[found[1]]]
                    self.say({"id": found[1], "sha": hub.sha(found[1]), "siblings": siblings})
                elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path):
                    content = hub.files.get(found[1], {}).get(found[3])
                    if content is None:
                        code = "EntryNotFound" if found[1] in hub.files else "RepoNotFound"
                        self.say({"error": "not found"}, 404, {"X-Error-Code": code})
                        return
                    tag = hashlib.sha256(content).hexdigest()
                    self.send(content, 200, {"ETag": f'"{tag}"', "X-Repo-Commit": hub.sha(found[1])})
                else:
                    self.say({"error": f"unknown: {self.command} {self.path}"}, 400)

            def say(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
                self.send(json.dumps(value).encode(), status, {"Content-Type": "application/json", **(headers or {})})

            def send(self, content: bytes, status: int, headers: dict[str, str]) -> None:
                self.send_response(status)
                for key, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(key, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def sha(self, repository: str) -> str:
        """The commit of a repository: it follows from the files."""
        return hashlib.sha1(repr(sorted(self.files[repository].items())).encode()).hexdigest()

    def close(self) -> None:
        """End the server."""
        self.server.shutdown()
        self.server.server_close()
