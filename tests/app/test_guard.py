"""Nobody reads files of the machine through the page, comes in without the password, or is called by it."""

import base64
import json
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from nearsight.app.guard import MOST_BODY, OUTSIDE
from nearsight.app.serve import check_access, free_port

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
def test_files_and_other_places_stay_closed(address: str, path: str) -> None:
    status, body, _ = ask(address + path)
    assert status >= 400, path
    assert b"root:" not in body and b"[project]" not in body and b"PATH=" not in body


@pytest.mark.parametrize("kind", ["text", "picture", "link", "address"])
def test_a_file_of_the_machine_can_not_be_passed_off_as_an_upload(address: str, tmp_path: Path, kind: str) -> None:
    """The page's upload is called as a program would call it, with the path of a file that was never uploaded."""
    secret = tmp_path / "secret.png"
    Image.new("RGB", (40, 40), "red").save(secret)
    (tmp_path / "link.png").symlink_to(secret)
    target = {
        "text": "/etc/passwd",
        "picture": str(secret),
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
    assert b"root:" not in told and b"ns-tile" not in told
    assert status == 403 and b"was not uploaded here" in told
    assert secret.exists()


def test_answers_forbid_the_browser_to_call_others(address: str) -> None:
    status, body, headers = ask(address)
    assert status == 200
    policy = headers["content-security-policy"]
    assert "default-src 'self'" in policy and "http" not in policy and "*" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert not OUTSIDE.search(body)
    assert b"fonts.googleapis.com" not in body and b"cdnjs" not in body


def test_nothing_was_called_while_the_page_ran(address: str, called: list[Any]) -> None:
    ask(address)
    places = {where[0] for where in called if isinstance(where, tuple)}
    assert places <= {"127.0.0.1", "localhost", "::1"}


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


def test_the_password_opens_everything_and_nothing_opens_without(guarded: str) -> None:
    def header(password: str) -> dict[str, str]:
        return {"authorization": "Basic " + base64.b64encode(f"anybody:{password}".encode()).decode()}

    for path in ("/", "/config", "/gradio_api/info", "/theme.css", "/gradio_api/upload", "/gradio_api/queue/join"):
        for headers in ({}, header("wrong"), header(""), {"authorization": "Basic ?"}, {"authorization": "Bearer x"}):
            status, body, answered = ask(guarded + path, headers=headers)
            assert status == 401 and b"password is missing or wrong" in body
            assert "Basic" in answered["www-authenticate"]
    assert ask(guarded, headers=header("correct horse battery"))[0] == 200


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
