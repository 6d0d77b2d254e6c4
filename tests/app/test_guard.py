"""Nobody reads files of the machine through the page, comes in without the password, or is called by it."""

import base64
import http.client
import itertools
import json
import os
import socket
import threading
import time
import urllib.error
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from nearsight.app import guard
from nearsight.app.guard import MOST_BODY, OUTSIDE
from nearsight.app.serve import check_access, free_port

from .conftest import any_port

ROOT = Path(__file__).parents[2]


def ask(url: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> tuple[int, bytes, Any]:
    request = urllib.request.Request(url, body, headers or {})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read(), error.headers


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/file=/etc/passwd",
        "/gradio_api/file=/proc/self/environ",
        f"/gradio_api/file={ROOT / 'pyproject.toml'}",
        "/gradio_api/file=pyproject.toml",
        "/gradio_api/file=../../../../../../etc/passwd",
        "/gradio_api/file=..%2F..%2F..%2F..%2Fetc%2Fpasswd",
        "/gradio_api/file=file:///etc/passwd",
        "/gradio_api/file=http://127.0.0.1/",
        "/file=/etc/passwd",
        "/gradio_api/static/../../../../../etc/passwd",
        "/static/..%2f..%2f..%2f..%2f..%2fetc%2fpasswd",
        "/assets/..%2f..%2f..%2f..%2f..%2fetc%2fpasswd",
        "/theme.css/..%2f..%2fetc/passwd",
        "/gradio_api/custom_component/x/../../../../etc/passwd",
        "/gradio_api/proxy=http://127.0.0.1:9/",
        "/gradio_api/proxy=https://example.com/",
    ],
)
def test_files_and_other_addresses_stay_closed(address: str, path: str) -> None:
    status, body, _ = ask(address + path)
    assert status >= 400, path
    assert b"root:" not in body and b"[project]" not in body and b"PATH=" not in body


@pytest.mark.parametrize("kind", ["text", "image", "link", "address"])
def test_a_file_of_the_machine_can_not_be_passed_off_as_an_upload(address: str, tmp_path: Path, kind: str) -> None:
    """The page's upload is called as a program would call it, with the path of a file that was never uploaded."""
    secret = tmp_path / "secret.png"
    Image.new("RGB", (40, 40), "red").save(secret)
    (tmp_path / "link.png").symlink_to(secret)
    target = {
        "text": "/etc/passwd",
        "image": str(secret),
        "link": str(tmp_path / "link.png"),
        "address": f"{address}/theme.css",
    }[kind]
    config = json.loads(ask(f"{address}/config")[1])
    uploads = [one for one in config["dependencies"] if [kind for _, kind in one["targets"]] == ["upload"]]
    assert len(uploads) == 1
    session = uuid.uuid4().hex
    given = {"path": target, "meta": {"_type": "gradio.FileData"}, "orig_name": "a.png"}
    payload = {"data": [None, given], "fn_index": uploads[0]["id"], "session_hash": session, "event_data": None}
    join = json.dumps(payload).encode()
    status, body, _ = ask(f"{address}/gradio_api/queue/join", join, {"content-type": "application/json"})
    told = body
    if status == 200:
        _, told, _ = ask(f"{address}/gradio_api/queue/data?session_hash={session}")
    assert b"root:" not in told and b"ns-panel" not in told
    assert status == 403 and b"was not uploaded here" in told
    assert secret.exists()


def test_responses_forbid_the_browser_to_call_others(address: str) -> None:
    status, body, headers = ask(address)
    assert status == 200
    policy = headers["content-security-policy"]
    assert "default-src 'self'" in policy and "http" not in policy and "*" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert not OUTSIDE.search(body)
    assert b"fonts.googleapis.com" not in body and b"cdnjs" not in body


def test_nothing_was_called_while_the_page_ran(address: str, called: list[Any]) -> None:
    ask(address)
    hosts = {where[0] for where in called if isinstance(where, tuple)}
    assert hosts <= {"127.0.0.1", "localhost", "::1"}


def test_a_foreign_host_name_is_refused(address: str) -> None:
    """Otherwise a page from elsewhere could point its own name here and read along."""
    for host in ("evil.example", "evil.example:7860", "127.0.0.1.evil.example"):
        status, body, _ = ask(address, headers={"host": host})
        assert status == 403 and b"for this machine alone" in body
    assert ask(address, headers={"host": "localhost:1234"})[0] == 200


def test_a_large_body_is_refused_before_it_comes(address: str) -> None:
    headers = {"content-type": "application/octet-stream", "content-length": str(MOST_BODY + 1)}
    status, body, _ = ask(f"{address}/gradio_api/upload", b"x", headers)
    assert status == 413 and b"12 MB are the most" in body


def test_a_large_body_that_does_not_say_so_is_refused_in_a_sentence(address: str) -> None:
    folder = Path(os.environ["GRADIO_TEMP_DIR"])
    held = guard.size_of(folder)
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)
    head = b'--x\r\ncontent-disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    chunks = itertools.chain([head], itertools.repeat(bytes(2**20), 40))
    kind = {"content-type": "multipart/form-data; boundary=x", "transfer-encoding": "chunked"}
    with suppress(BrokenPipeError, ConnectionResetError):  # the server need not listen to the end
        connection.request("POST", "/gradio_api/upload", chunks, kind, encode_chunked=True)
    answer = connection.getresponse()
    assert answer.status == 413 and b"12 MB are the most" in answer.read()
    assert guard.size_of(folder) == held
    assert ask(f"{address}/gradio_api/queue/join", bytes(guard.MOST_MESSAGE + 1))[0] == 413


def upload(address: str, content: bytes, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    start = b'--x\r\ncontent-disposition: form-data; name="files"; filename="a.png"\r\ncontent-type: image/png\r\n\r\n'
    body = start + content + b"\r\n--x--\r\n"
    kind = {"content-type": "multipart/form-data; boundary=x", **(headers or {})}
    return ask(f"{address}/gradio_api/upload", body, kind)[:2]


@pytest.mark.parametrize(
    "headers", [{"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}]
)
def test_a_page_of_another_site_can_not_upload(address: str, headers: dict[str, str]) -> None:
    """Browsers send simple forms across sites without asking; they say where from, though."""
    status, body = upload(address, b"an image", headers)
    assert status == 403 and b"sent by another site" in body
    own = {"origin": address, "sec-fetch-site": "same-origin"}
    assert upload(address, b"an image", own)[0] == 200


def test_uploads_have_a_limit_together(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held = guard.size_of(Path(os.environ["GRADIO_TEMP_DIR"]))
    monkeypatch.setattr(guard, "MOST_KEPT", held + 2**20)
    outcomes = [upload(address, number.to_bytes(2, "big") * 2**17)[0] for number in range(6)]
    assert outcomes[0] == 200 and outcomes[-1] == 507


def test_uploads_at_once_keep_to_the_limit_together(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them is on the disk yet when the others ask for room."""
    folder = Path(os.environ["GRADIO_TEMP_DIR"])
    most = guard.size_of(folder) + 5 * 2**20
    monkeypatch.setattr(guard, "MOST_KEPT", most)
    with ThreadPoolExecutor(12) as pool:
        outcomes = list(pool.map(lambda n: upload(address, os.urandom(2**20))[0], range(24)))
    assert set(outcomes) == {200, 507} and guard.size_of(folder) <= most


@pytest.mark.parametrize(
    "path", ["/openapi.json", "/docs", "/redoc", "/gradio_api/openapi.json", "/gradio_api/dev/reload"]
)
def test_nothing_describes_the_interface_to_strangers(address: str, path: str) -> None:
    assert ask(address + path)[0] == 404


def header(password: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"anybody:{password}".encode()).decode()}


def test_the_password_opens_everything_and_nothing_opens_without(guarded: str) -> None:
    for path in ("/", "/config", "/gradio_api/info", "/theme.css", "/gradio_api/upload", "/gradio_api/queue/join"):
        status, body, answered = ask(guarded + path)
        assert status == 401 and b"password is missing or wrong" in body
        assert "Basic" in answered["www-authenticate"]
    for headers in (header("wrong"), header(""), {"authorization": "Basic ?"}, {"authorization": "Bearer x"}):
        assert ask(guarded, headers=headers)[0] == 401
    assert ask(guarded, headers=header("correct horse battery"))[0] == 200


def test_guesses_of_the_password_are_few(guarded: str) -> None:
    outcomes = [ask(guarded, headers=header(f"guess {number}"))[0] for number in range(8)]
    assert outcomes == [401] * guard.GUESSES + [429] * (8 - guard.GUESSES)
    status, body, answered = ask(guarded, headers=header("correct horse battery"))
    assert status == 429 and b"try again in" in body and 0 < int(answered["retry-after"]) <= guard.PAUSE


def test_nobody_guesses_under_other_addresses(guarded: str) -> None:
    """What a request says of where it comes from is not what is counted."""
    outcomes = [ask(guarded, headers=header("?") | {"x-forwarded-for": f"10.0.0.{number}"})[0] for number in range(8)]
    assert outcomes == [401] * guard.GUESSES + [429] * (8 - guard.GUESSES)


@pytest.mark.parametrize("name", ["httptools_impl.HttpToolsProtocol", "h11_impl.H11Protocol"])
def test_who_does_not_say_what_he_wants_is_hung_up_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn itself waits for ever, and takes a head of any size."""
    uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    module, _, kind = name.rpartition(".")
    found = pytest.importorskip(f"uvicorn.protocols.http.{module}", reason="httptools is not installed")
    monkeypatch.setattr("uvicorn.protocols.http.auto.AutoHTTPProtocol", getattr(found, kind))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await guard.refuse(send, 200, "Here I am.")

    settings = uvicorn.Config(app, port=any_port(), log_level="critical", http=guard.prompt_protocol(0.5))
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    whole, half = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nX: "
    body = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999\r\n\r\n"
    for sent, says_on in ((b"", b""), (half, b""), (half, b"a"), (whole + half, b"a"), (body, b"a")):
        with socket.create_connection(("127.0.0.1", settings.port), 0.2) as connection:
            connection.sendall(sent)
            end, said, open_still = time.monotonic() + 10, b"", True
            while open_still and time.monotonic() < end:
                with suppress(TimeoutError):
                    try:
                        connection.sendall(says_on)
                        more = connection.recv(2**16)
                    except ConnectionError:
                        more = b""
                    said, open_still = said + more, bool(more)
            assert not open_still
            assert said.count(b"Here I am.") == sent.count(b"\r\n\r\n")
    sent_kb = 0
    with socket.create_connection(("127.0.0.1", settings.port), 20) as connection, suppress(OSError):
        connection.sendall(half)
        while sent_kb < 2**14:
            connection.sendall(b"a" * 2**10)
            sent_kb += 1
    assert sent_kb < 2**13
    server.should_exit = True
    thread.join(20)


@pytest.mark.parametrize("number", [99999, -1])
def test_messages_that_no_page_sends_get_a_sentence(address: str, number: int, capfd: Any) -> None:
    kind, message = {"content-type": "application/json"}, {"data": [], "fn_index": number, "session_hash": "a"}
    status, body, _ = ask(f"{address}/gradio_api/queue/join", json.dumps(message).encode(), kind)
    assert status == 400 and b"can't make sense of that" in body
    said = capfd.readouterr().err
    assert "nearsight: a request failed: " in said and "Traceback" not in said


def test_other_machines_need_a_password() -> None:
    for host in ("0.0.0.0", "192.168.1.5", "::", "example.org"):
        with pytest.raises(ValueError, match="lets other machines in; give --password"):
            check_access(host, None)
        with pytest.raises(ValueError, match="has 5 characters; beyond this machine give 8 or more"):
            check_access(host, "short")
        check_access(host, "long enough")
    for host in ("127.0.0.1", "localhost", "::1"):
        check_access(host, None)


def test_a_port_in_use_is_told(address: str) -> None:
    port = int(address.rpartition(":")[2])
    with pytest.raises(ValueError, match=rf"Port {port} on 127\.0\.0\.1 can't be used .*; give another --port"):
        free_port("127.0.0.1", port)
