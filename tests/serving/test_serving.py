"""A model behind an address: what it says, whom it refuses, and that nothing that was sent is lost."""

import http.client
import importlib.metadata
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import nearsight
from nearsight.config.recipe import ModelChoice
from nearsight.runs.predictor import save_trained
from nearsight.tasks.build import build

for needed in ("starlette", "uvicorn", "python_multipart", "prometheus_client"):
    pytest.importorskip(needed, reason=f"{needed} is not installed")

DOCKERFILE = Path(__file__).parents[2] / "Dockerfile"
EDITABLE = {"__editable__", "_distutils_hack", "setuptools", "distutils-precedence"}  # of the tests' own environment
CLASSES = ("coat", "<b>hat", "shoe")
WITHOUT_TORCH = """
import sys
from nearsight.cli.shell import main
try:
    main()
finally:
    names = {name.partition(".")[0] for name, module in list(sys.modules.items()) if module}
    print("imported", *names, file=sys.stderr)
"""


def picture(seed: int, size: tuple[int, int] = (40, 30), kind: str = "PNG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with three classes."""
    folder = tmp_path_factory.mktemp("served") / "run"
    torch.manual_seed(0)
    built = build(ModelChoice(name="localvit_nano"), classes=3)
    save_trained(built, "classify", CLASSES, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def bundle(run: Path) -> Path:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    return nearsight.export(run, run.parent / "bundle").folder


@pytest.fixture(scope="module")
def url(run: Path) -> Iterator[str]:
    server = nearsight.serve(run, port=0, block=False)
    assert server is not None
    with server:
        yield server.url


class Answer:
    def __init__(self, response: http.client.HTTPResponse):
        self.status, self.headers, self.body = response.status, response.headers, response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(url: str, path: str, body: Any = None, method: str | None = None, **headers: str) -> Answer:
    host = url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=30)
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    connection.request(method or ("GET" if body is None else "POST"), path, body, named)
    try:
        return Answer(connection.getresponse())
    finally:
        connection.close()


def same_answers(found: Any, wanted: Any) -> None:
    """A response names the classes of a prediction; a folded model's probabilities differ by rounding."""
    names, values = zip(*wanted.top(len(found["answers"])), strict=True)
    assert [one["class"] for one in found["answers"]] == list(names)
    assert [one["probability"] for one in found["answers"]] == pytest.approx(values, abs=1e-5)


def form(name: str, content: bytes, field: str = "image") -> tuple[bytes, str]:
    head = f'--x\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\n\r\n'.encode()
    return head + content + b"\r\n--x--\r\n", "multipart/form-data; boundary=x"


def test_a_server_says_what_the_model_predicts(url: str, run: Path) -> None:
    content = picture(1, (90, 61), "JPEG")
    (wanted,) = nearsight.predict(run, [content], top=2)
    answer = ask(url, "/predict?top=2", content)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json["image"] == "image"
    same_answers(answer.json, wanted)
    body, kind = form("my hat.jpg", content)
    answer = ask(url, "/predict?top=2", body, content_type=kind)
    assert answer.json["image"] == "my hat.jpg"
    same_answers(answer.json, wanted)


def test_an_image_that_lies_on_its_side_is_turned_once(url: str, run: Path) -> None:
    image = Image.open(io.BytesIO(picture(2, (64, 32))))
    exif = image.getexif()
    exif[0x0112] = 6
    file = io.BytesIO()
    image.save(file, "JPEG", exif=exif, quality=95)
    (wanted,) = nearsight.predict(run, [file.getvalue()])
    same_answers(ask(url, "/predict", file.getvalue()).json, wanted)


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        ("/predict", b"", 400, "no image in the request"),
        ("/predict", b"no image", 400, "holds no image"),
        ("/predict", picture(0)[:-60], 400, "can't be read"),
        ("/predict?top=0", picture(0), 400, "top is '0'"),
        ("/predict?top=%C2%B2", picture(0), 400, "whole number"),
        ("/predict?min_score=nan", picture(0), 400, "min_score is 'nan'"),
        ("/predict?k=3", picture(0), 400, "k is no setting"),
        ("/predict", b"x" * (12 * 2**20 + 1), 413, "12 MB are the most"),
        ("/nowhere", None, 404, "nothing here"),
        ("/predict", None, 405, "method"),
    ],
)
def test_what_is_refused_gets_a_sentence(url: str, path: str, body: bytes | None, status: int, sentence: str) -> None:
    answer = ask(url, path, body)
    assert answer.status == status and sentence in answer.json["error"]


def test_forms_without_an_image_are_refused(url: str) -> None:
    text = b'--x\r\nContent-Disposition: form-data; name="image"\r\n\r\nhello\r\n--x--\r\n'
    for body in (text, b"--y--", b""):
        answer = ask(url, "/predict", body, content_type="multipart/form-data; boundary=x")
        assert answer.status == 400 and "form" in answer.json["error"]


def test_an_image_of_too_many_pixels_is_not_decoded(url: str) -> None:
    file = io.BytesIO()
    Image.new("1", (9000, 9000)).save(file, "PNG")
    answer = ask(url, "/predict", file.getvalue())
    assert answer.status == 413 and "81 million pixels" in answer.json["error"]


def test_other_sites_and_names_are_kept_out(url: str) -> None:
    assert ask(url, "/predict", picture(0), origin="http://evil.example").status == 403
    assert ask(url, "/model", host="evil.example").status == 403
    assert ask(url, "/predict", picture(0), origin=url).status == 200


def test_beyond_this_machine_a_password_is_needed(run: Path) -> None:
    with pytest.raises(ValueError, match="give --password as well"):
        nearsight.serve(run, host="0.0.0.0", port=0, block=False)
    with pytest.raises(ValueError, match="has 5 characters"):
        nearsight.serve(run, host="0.0.0.0", password="short", port=0, block=False)


def test_a_password_is_asked_for_everywhere_but_of_the_health(run: Path) -> None:
    server = nearsight.serve(run, port=0, password="correct horse", block=False)
    assert server is not None
    with server:
        assert ask(server.url, "/health").status == 200
        assert [ask(server.url, path).status for path in ("/", "/metrics", "/model", "/openapi.json")] == [401] * 4
        assert ask(server.url, "/predict", picture(0)).status == 401
        assert ask(server.url, "/predict", picture(0), authorization="Bearer correct horse").status == 200
        guesses = [  # what a request says of where it comes from is no excuse
            ask(server.url, "/model", authorization=f"Bearer {n}", x_forwarded_for=f"10.0.0.{n}").status
            for n in range(7)
        ]
        assert guesses[:5] == [401] * 5 and guesses[5:] == [429] * 2


def test_the_description_is_what_happens(url: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    described = ask(url, "/openapi.json").json
    assert described["openapi"].startswith("3.1")
    responses = described["paths"]["/predict"]["post"]["responses"]
    for body in (picture(3), b"no image"):
        answer = ask(url, "/predict", body)
        schema = responses[str(answer.status)]["content"]["application/json"]["schema"]
        jsonschema.Draft202012Validator(schema).validate(answer.json)
    for path, methods in described["paths"].items():
        if "get" in methods:
            assert ask(url, path).status == 200
    about = ask(url, "/model").json
    assert (about["task"], about["classes"]) == ("classify", list(CLASSES))


def test_images_that_come_together_are_predicted_together(run: Path) -> None:
    from prometheus_client.parser import text_string_to_metric_families as parse

    pictures = [picture(number) for number in range(24)]
    wanted = list(nearsight.predict(run, pictures))
    found: list[Any] = [None] * len(pictures)
    server = nearsight.serve(run, port=0, wait=200, batch=8, block=False)
    assert server is not None
    with server:
        together = threading.Barrier(len(pictures))

        def send(number: int) -> None:
            together.wait()
            found[number] = ask(server.url, "/predict", pictures[number]).json

        threads = [threading.Thread(target=send, args=(number,)) for number in range(len(pictures))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        families = parse(ask(server.url, "/metrics").body.decode())
        values = {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}
    for one, other in zip(found, wanted, strict=True):
        same_answers(one, other)
    assert values["nearsight_batch_images_sum"] == len(pictures)
    assert 3 <= values["nearsight_batch_images_count"] <= 12
    assert values["nearsight_request_seconds_count"] == len(pictures) and values["nearsight_waiting"] == 0


def test_one_client_does_not_wait_for_others(run: Path) -> None:
    server = nearsight.serve(run, port=0, wait=5000, block=False)
    assert server is not None
    with server:
        began = time.monotonic()
        for number in range(3):
            assert ask(server.url, "/predict", picture(number)).status == 200
        assert time.monotonic() - began < 5


class SlowPredictor:
    """Stands before a predictor and takes its time, or fails on a white image."""

    def __init__(self, predictor: nearsight.runs.predictor.Predictor, seconds: float):  # type: ignore[name-defined]
        self.predictor, self.seconds = predictor, seconds

    def __call__(self, images: list[Any], **settings: Any) -> Any:
        time.sleep(self.seconds if len(images) else 0)
        if any(image.min() == 255 for image in images):
            raise RuntimeError("no white images")
        return type(self.predictor).predict(self.predictor, images, **settings)


@contextmanager
def slow_server(run: Path, seconds: float, **settings: Any) -> Iterator[str]:
    predictor = nearsight.load(run)
    object.__setattr__(predictor, "predict", SlowPredictor(predictor, seconds))
    server = nearsight.serve(predictor, port=0, block=False, **settings)
    assert server is not None
    with server:
        yield server.url


def test_an_image_that_fails_does_not_cost_the_others(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    white = io.BytesIO()
    Image.new("RGB", (20, 20), "white").save(white, "PNG")
    with slow_server(run, 0.05, wait=300) as url:
        answers = together(url, [picture(1), white.getvalue(), picture(2)])
    assert [answer.status for answer in answers] == [200, 500, 200]
    assert "no white images" in capfd.readouterr().err


def together(url: str, bodies: list[bytes]) -> list[Answer]:
    found: list[Any] = [None] * len(bodies)

    def send(number: int) -> None:
        found[number] = ask(url, "/predict", bodies[number])

    threads = [threading.Thread(target=send, args=(number,)) for number in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_more_requests_than_may_wait_are_told_to_come_back(run: Path) -> None:
    with slow_server(run, 0.5, waiting=2, wait=0) as url:
        answers = together(url, [picture(number) for number in range(6)])
    codes = sorted(answer.status for answer in answers)
    assert codes == [200, 200, 503, 503, 503, 503]
    assert all(answer.headers["retry-after"] == "1" for answer in answers if answer.status == 503)


def test_what_takes_too_long_is_given_up(run: Path) -> None:
    with slow_server(run, 1.0, timeout=0.4) as url:
        assert ask(url, "/predict", picture(0)).status == 504
        with socket.create_connection((url.split("/")[2].split(":")[0], int(url.rpartition(":")[2]))) as slow:
            slow.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nhalf")
            slow.settimeout(10)
            assert slow.recv(100).startswith(b"HTTP/1.1 408")


def test_settings_that_make_no_sense_are_refused(run: Path) -> None:
    for name in ("batch", "waiting", "max_mb", "timeout"):
        with pytest.raises(ValueError, match=f"{name} is 0; give more than 0"):
            nearsight.serve(run, port=0, block=False, **{name: 0})  # type: ignore[call-overload]
    for value in (float("nan"), float("inf"), -1.0):
        with pytest.raises(ValueError, match=r"timeout is .*; give more than 0"):
            nearsight.serve(run, port=0, block=False, timeout=value)
        with pytest.raises(ValueError, match=r"wait is .* ms; give 0 or more"):
            nearsight.serve(run, port=0, block=False, wait=value)
    with pytest.raises(ValueError, match="give another --port or --host"):
        nearsight.serve(run, port=0, block=False, host="a" * 80, password="a long one")


class Process:
    """`nearsight serve` as people start it."""

    def __init__(self, source: Path, *words: str, handed: socket.socket | None = None, code: str | None = None):
        start = ["-c", code] if code else ["-m", "nearsight"]
        command = [sys.executable, *start, "serve", str(source), *words]
        before: dict[str, Any] = {}
        if handed is not None:  # as systemd does it
            number = handed.fileno()

            def hand_over() -> None:
                os.dup2(number, 3)
                os.set_inheritable(3, True)
                os.environ["LISTEN_PID"], os.environ["LISTEN_FDS"] = str(os.getpid()), "1"
                os.execvpe(command[0], command, os.environ)

            before = {"preexec_fn": hand_over, "close_fds": False}
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env, **before)
        assert self.process.stderr is not None
        said = self.process.stderr.readline()
        found = re.search(r"http://[\d.]+:\d+", said)
        assert found, said + self.process.stderr.read()
        self.url = found[0]

    def stop(self) -> str:
        """Stop it in order; what it said last."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, said
        return said


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    """Starts processes, and ends what a failed test leaves."""
    with ExitStack() as stack:

        def begin(*arguments: Any, **settings: Any) -> Process:
            made = Process(*arguments, **settings)
            stack.callback(made.process.kill)
            return made

        yield begin


def test_a_bundle_is_served_without_torch_until_it_is_stopped(bundle: Path, start: Callable[..., Process]) -> None:
    content = picture(5)
    (wanted,) = nearsight.predict(bundle, [content])
    server = start(bundle, "--port", "0", code=WITHOUT_TORCH)
    assert server.url.startswith("http://127.0.0.1:")
    assert ask(server.url, "/predict", content).json["answers"] == wanted.to_dict()["answers"]
    said = server.stop().splitlines()
    assert said[0] == "Nearsight served 1 images and ends."
    imported = set(said[1].split()[1:])
    assert "torch" not in imported
    # The Dockerfile installs what that was, or what brings it.
    line = re.search(r"AS bundle.*?pip install --constraint \S+ (.*?)&&", DOCKERFILE.read_text(), re.DOTALL)
    assert line is not None
    installed = closure(line[1].replace("\\", " ").split())
    owners = importlib.metadata.packages_distributions()
    foreign = {name: owners[name] for name in imported if name in owners and name != "nearsight"}
    assert {name for name, found in foreign.items() if not installed & {one.lower() for one in found}} <= EDITABLE


def closure(names: list[str]) -> set[str]:
    """Packages with all that they require."""
    found: set[str] = set()
    while names:
        name = names.pop().lower().replace("_", "-")
        if name not in found:
            found |= {name, name.replace("-", "_")}
            required = importlib.metadata.requires(name) or []
            names += [re.split(r"[^\w.-]", one)[0] for one in required if "extra ==" not in one and ";" not in one]
    return found


class Load:
    """Clients that send one image after the other on connections that stay open, and count what gets no response."""

    def __init__(self, address: tuple[str, int], clients: int):
        self.address, self.ending = address, threading.Event()
        self.sent, self.lost = 0, []  # type: ignore[var-annotated]
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(number,)) for number in range(clients)]

    def run(self, number: int) -> None:
        content, connection = picture(number), None
        while not self.ending.is_set():
            connection = connection or http.client.HTTPConnection(*self.address, timeout=60)
            try:
                connection.request("POST", "/predict", content)
                response = connection.getresponse()
                response.read()
                problem = None if response.status == 200 else str(response.status)
                closing = response.headers.get("connection") == "close"
            except (OSError, http.client.HTTPException) as error:
                problem, closing = repr(error), True
            with self.lock:
                self.sent += 1
                if problem:
                    self.lost.append(problem)
            if closing or number % 2:  # every other client takes a new connection each time
                connection.close()
                connection = None

    def __enter__(self) -> "Load":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        for thread in self.threads:
            thread.join()


@pytest.mark.skipif(sys.platform == "win32", reason="sockets are handed over by systemd")
def test_no_request_is_lost_over_a_restart(bundle: Path, start: Callable[..., Process]) -> None:
    """The socket stays with whoever holds it (systemd, here this test): what comes meanwhile waits in its queue."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as held:
        first = start(bundle, handed=held)
        with Load(held.getsockname(), clients=8) as load:
            time.sleep(0.5)
            said, sent = first.stop(), load.sent
            assert int(re.findall(r"[\d,]+", said)[0].replace(",", "")) > 0
            first = start(bundle, handed=held)
            limit = time.monotonic() + 30
            while load.sent < sent + 40 and time.monotonic() < limit:
                time.sleep(0.05)
        first.stop()
    assert load.lost == [] and load.sent >= sent + 40


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends a process without telling it")
def test_what_was_sent_before_the_end_is_still_responded_to(bundle: Path, start: Callable[..., Process]) -> None:
    """An image whose second half comes after the signal, on a connection that was open before."""
    server, content = start(bundle, "--port", "0"), picture(7)
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n".encode()
        connection.sendall(head + content[:50])
        time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.4)
        connection.sendall(content[50:])
        response = http.client.HTTPResponse(connection)
        response.begin()
        assert response.status == 200 and response.headers["connection"] == "close"
        assert len(json.loads(response.read())["answers"]) == 3
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))
    assert "served 1 images" in server.stop()


def test_a_port_that_is_taken_is_told_in_a_sentence(run: Path, type_in: Callable[..., tuple[int, str, str]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, _, err = type_in("serve", str(run), "--port", str(taken.getsockname()[1]))
    assert code == 1 and "can't be used" in err and len(err.splitlines()) == 1


def test_the_page_works_and_asks_nobody_else(url: str, browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "hat.png"
    file.write_bytes(picture(9))
    page, asked, said = browser.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.goto(url)
    page.set_input_files("input[type=file]", str(file))
    page.click("button")
    page.locator("#out", has_text=re.compile(r"^200")).wait_for()  # the page's policy forbids the browser to eval
    found = json.loads(page.inner_text("#out").removeprefix("200"))
    assert found["answers"] == ask(url, "/predict", file.read_bytes()).json["answers"]
    assert said == [] and [one for one in asked if not one.startswith((url, "data:"))] == []
    page.close()
