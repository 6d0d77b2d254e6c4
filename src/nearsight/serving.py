"""A model behind an address: images are posted to it, predictions come back as JSON. Bundles need no torch.

Requests that come at the same time are predicted together. The first image of a batch waits for others only as long
as there are others on their way, and never longer than a few milliseconds.
"""

import asyncio
import base64
import hashlib
import html
import io
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from . import __version__
from .app.guard import (
    LOCAL,
    Access,
    App,
    Message,
    Receive,
    Scope,
    Send,
    check_access,
    ending_at_hangup,
    prompt_protocol,
    read_body,
    replayed,
)
from .app.uploads import MOST_BYTES, MOST_PIXELS, refuse_bombs
from .arguments import checked
from .console import first_line
from .data.image import decode
from .data.samples import BadImage
from .runs.bundle import Bundle
from .runs.predictor import Predictor, load
from .tasks.predictions import Prediction

if TYPE_CHECKING:
    import torch
    import uvicorn

PORT = 8000
BATCH, WHOLE = 32, 8  # images at a time, of which a part or the whole is shown
DECODERS = min(8, os.cpu_count() or 1)  # threads that decode images while others are predicted
PIXELS_AT_ONCE = 4 * MOST_PIXELS  # of all images that wait together
MOST = 10**6  # of any setting
MOST_TEXT = 2**20  # bytes of a multipart body besides its image
HANDED = 3  # number of the first socket that systemd hands over
HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"x-frame-options": b"DENY",
    b"cache-control": b"no-store",
}
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)  # buckets of times


@checked
def serve(
    source: "str | os.PathLike[str] | Predictor",
    *,
    port: int = PORT,
    host: str = "127.0.0.1",
    password: str | None = None,
    batch: int | None = None,
    wait: float = 5.0,
    waiting: int = 128,
    max_mb: int = MOST_BYTES // 2**20,
    timeout: float = 30.0,
    device: "torch.device | str | None" = None,
    block: bool = True,
) -> "RunningServer | None":
    """Serve a model over HTTP: `POST /predict` takes an image and gives what the model says about it as JSON.

    `GET /` is a page about the rest: `/openapi.json`, `/model`, `/health` and, for Prometheus, `/metrics`. SIGTERM and
    Ctrl+C stop it in order: whatever was sent is still responded to.

    Args:
        source: Folder of a finished run, its weight file, a bundle, a model's name, or what `nearsight.load` returned.
        port: To listen at; 0 takes a free one. A socket that systemd hands over comes first.
        host: Address to listen at; another than this machine's own needs a password.
        password: Requests have to bring it, as `Authorization: Bearer` or Basic; None asks for none.
        batch: Images that are predicted together at most; None takes 32, of a detector or segmenter 8.
        wait: Milliseconds that an image waits for others that are on their way.
        waiting: Requests at the same time; more are told to come back later (503).
        max_mb: Size of an image in MB (2^20 bytes) that is still taken.
        timeout: Seconds for a request, to be received and to be predicted each; and for all requests together once the
            server is to stop.
        device: Where to compute; None takes a GPU if there is one. Bundles run on the CPU.
        block: Serve until the program is stopped, and return None; otherwise serve in a thread.

    Raises:
        ValueError: The model, the port or the host can't be used, or the packages of `nearsight[serve]` are missing.

    Example:
        >>> import io, json, urllib.request
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (40, 30)).save(file, "PNG")
        >>> with serve("localvit_nano", port=0, block=False) as server:
        ...     asked = urllib.request.Request(server.url + "/predict?top=2", data=file.getvalue())
        ...     found = json.load(urllib.request.urlopen(asked))
        >>> found["image"], len(found["answers"])
        ('image', 2)
        >>> serve("localvit_nano", host="0.0.0.0")
        Traceback (most recent call last):
        ValueError: --host 0.0.0.0 lets other machines in; give --password as well, or leave --host out to stay on...
    """
    check_access(host, password)
    for name, value in (("batch", batch), ("waiting", waiting), ("max_mb", max_mb), ("timeout", timeout)):
        if value is not None and not 0 < value <= MOST:
            raise ValueError(f"{name} is {value}; give more than 0, and {MOST:,} at most.")
    if not 0 <= wait <= MOST:
        raise ValueError(f"wait is {wait} ms; give 0 or more, and {MOST:,} at most.")
    check_packages()
    predictor = load(source)
    if not isinstance(source, Predictor) and not isinstance(predictor.preprocessing, Bundle):
        from .models.fold import fold

        predictor = replace(predictor, model=fold(predictor.model))
    listening = open_socket(host, port)
    try:
        service = Service(predictor, device, batch, wait / 1000, waiting, max_mb * 2**20, timeout)
        access = Access(password, LOCAL if host in LOCAL else None)
        server = make_server(service, access, timeout)
        number = listening.getsockname()[1]
        url = f"http://{f'[{host}]' if ':' in host else host}:{number}"
    except BaseException:
        listening.close()
        raise
    if not block:
        return RunningServer(url, server, listening)
    ending = " (Ctrl+C ends it)" * sys.stderr.isatty()
    print(f"Nearsight serves {predictor.name} ({predictor.task}) at {url}{ending}.", file=sys.stderr, flush=True)
    with ending_well(), ending_at_hangup(server):
        server.run([listening])
    print(f"Nearsight served {service.count:,} images and ends.", file=sys.stderr)
    return None


class RunningServer:
    """A server that a thread runs until `close`, or until a `with` ends.

    Attributes:
        url: Where it is.
    """

    def __init__(self, url: str, server: "uvicorn.Server", listening: socket.socket) -> None:
        self.url = url
        self._server = server
        self._thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        self._thread.start()
        while self._thread.is_alive() and not server.started:
            time.sleep(0.01)

    def close(self) -> None:
        """Stop serving, once what was sent is responded to."""
        self._server.should_exit = True
        self._thread.join()

    def __enter__(self) -> "RunningServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RunningServer({self.url!r})"


def check_packages() -> None:
    """Refuse to go on without the packages of the extra."""
    try:
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ValueError(f"Serving needs a package ({error.name}); run `pip install 'nearsight[serve]'`.") from None


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens: the one that systemd handed over, whose queue outlives a restart, or a new one."""
    if os.environ.get("LISTEN_PID") == str(os.getpid()) and os.environ.get("LISTEN_FDS") == "1":
        return socket.socket(fileno=HANDED)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, UnicodeError, TypeError) as error:  # the last two of a name that no host can have
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"Port {port} on {host} can't be used ({reason}); give another --port or --host.") from None


@contextmanager
def ending_well() -> Iterator[None]:
    """Let a server that stopped in order end the program with code 0: uvicorn raises its signals again after that."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread hears signals
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass
class Waiting:
    """An image on its way through the model.

    Attributes:
        pixels: `[H, W, 3]`, upright, perhaps decoded smaller.
        found: Becomes the prediction.
    """

    pixels: NDArray[np.uint8]
    found: "asyncio.Future[Prediction]"


class Batcher:
    """Predicts images that come at the same time together.

    A batch starts when it is full, when nobody else is on the way, or when its first image has waited long enough.

    Args:
        predict: Predictions for images, in their order; runs in a thread of its own.
        size: Images at a time.
        wait: Seconds for which the first one waits.
        note: Is told how many images a batch had and how long it took.

    Attributes:
        on_the_way: Images that were announced and are not predicted yet.
    """

    def __init__(
        self,
        predict: Callable[[list[NDArray[np.uint8]]], list[Prediction]],
        size: int,
        wait: float,
        note: Callable[[int, float], None] = lambda images, seconds: None,
    ):
        self.predict, self.size, self.wait, self.note = predict, size, wait, note
        self.on_the_way = 0
        self.changed = asyncio.Event()
        self.queue: list[Waiting] = []
        self.thread = ThreadPoolExecutor(1, "nearsight-model")

    async def run(self) -> None:
        """Predict what comes, until it is cancelled."""
        while True:
            while not self.queue:
                await self.next_change()
            limit = time.monotonic() + self.wait
            while len(self.queue) < min(self.size, self.on_the_way) and (left := limit - time.monotonic()) > 0:
                await self.next_change(left)
            chosen, self.queue = self.queue[: self.size], self.queue[self.size :]
            chosen = [one for one in chosen if not one.found.done()]  # somebody who went away
            if chosen:
                await self.predict_batch(chosen)

    async def next_change(self, seconds: float | None = None) -> None:
        """Wait until somebody comes or goes."""
        self.changed.clear()
        try:
            await asyncio.wait_for(self.changed.wait(), seconds)
        except (TimeoutError, asyncio.TimeoutError):
            return

    async def predict_batch(self, chosen: list[Waiting]) -> None:
        """Predict images together; if that fails, each alone, so that one does not cost the others."""
        loop, began = asyncio.get_running_loop(), time.perf_counter()
        try:
            found = await loop.run_in_executor(self.thread, self.predict, [one.pixels for one in chosen])
        except Exception as error:  # whatever the model or its runtime raises
            if len(chosen) > 1:
                for one in chosen:
                    await self.predict_batch([one])
            elif not chosen[0].found.done():
                chosen[0].found.set_exception(error)
            return
        self.note(len(chosen), time.perf_counter() - began)
        for one, prediction in zip(chosen, found, strict=True):
            if not one.found.done():
                one.found.set_result(prediction)

    @contextmanager
    def announced(self) -> Iterator[None]:
        """Tell the batch that waits that one more may come, until it is predicted or has failed."""
        self.on_the_way += 1
        try:
            yield
        finally:
            self.on_the_way -= 1
            self.changed.set()

    async def add(self, pixels: NDArray[np.uint8]) -> Prediction:
        """The prediction for an image that was announced."""
        one = Waiting(pixels, asyncio.get_running_loop().create_future())
        self.queue.append(one)
        self.changed.set()
        return await one.found


class Refused(Exception):
    """A request that gets no prediction.

    Attributes:
        status: HTTP's number for it.
        sentence: What was wrong, and what to do.
    """

    def __init__(self, status: int, sentence: str):
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


class Service:
    """What a model's address does, without the network.

    Args:
        predictor: The model.
        device: Where to compute.
        batch: Images at a time.
        wait: Seconds for which the first image of a batch waits.
        waiting: Requests at the same time.
        max_bytes: Of an image.
        timeout: Seconds for a request.

    Attributes:
        count: Images that were predicted.
        draining: Whether it is about to stop: then connections are closed after their next response.
    """

    def __init__(
        self,
        predictor: Predictor,
        device: "torch.device | str | None",
        batch: int | None,
        wait: float,
        waiting: int,
        max_bytes: int,
        timeout: float,
    ):
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.predictor, self.device = predictor, device
        shown = predictor.preprocessing
        self.whole = shown.fit is not None if isinstance(shown, Bundle) else shown.dense
        self.enough = None if self.whole else shown.enough()
        self.batch = batch or (WHOLE if self.whole else BATCH)
        self.wait, self.waiting, self.max_bytes, self.timeout = wait, waiting, max_bytes, timeout
        self.draining, self.count, self.pixels = False, 0, 0
        self.decoders = ThreadPoolExecutor(DECODERS, "nearsight-decode")
        self.registry = CollectorRegistry()
        self.responses = Counter("nearsight_responses", "Responses by their code.", ["code"], registry=self.registry)
        self.seconds = Histogram(
            "nearsight_request_seconds", "From an image's last byte on.", buckets=SECONDS, registry=self.registry
        )
        self.model_seconds = Histogram(
            "nearsight_model_seconds", "Of the model, for a batch.", buckets=SECONDS, registry=self.registry
        )
        sizes = sorted({2**power for power in range(11) if 2**power < self.batch} | {self.batch})
        self.sizes = Histogram("nearsight_batch_images", "Images of a batch.", buckets=sizes, registry=self.registry)
        Gauge("nearsight_waiting", "Requests that wait.", registry=self.registry).set_function(self.on_the_way)
        # Proves before anybody asks that the model runs, and pays for what its first call costs.
        (tried,) = self.predict([np.zeros((64, 64, 3), dtype=np.uint8)])
        if tried.problem is not None:
            raise ValueError(f"{predictor.name} can't predict an image of 64×64 pixels: {tried.problem}.")
        self.kind = type(tried)
        self.batcher: Batcher | None = None

    def on_the_way(self) -> int:
        """Requests that are not responded to yet."""
        return 0 if self.batcher is None else self.batcher.on_the_way

    def predict(self, images: list[NDArray[np.uint8]]) -> list[Prediction]:
        """Predictions with everything that a request may ask for."""
        found = self.predictor.predict(
            images, top=len(self.predictor.classes), min_score=0.0, batch=len(images), workers=0, device=self.device
        )
        return list(found)

    def note(self, images: int, seconds: float) -> None:
        """Count a batch."""
        self.count += images
        self.sizes.observe(images)
        self.model_seconds.observe(seconds)

    @contextmanager
    def room_for(self, content: bytes) -> Iterator[None]:
        """Hold the memory that an image takes while it waits.

        Raises:
            Refused: It has too many pixels, or all of them together have.
        """
        try:
            refuse_bombs("The image", content)
            with Image.open(io.BytesIO(content)) as image:
                size = image.width * image.height
        except ValueError as error:
            raise Refused(413, str(error)) from None
        except Exception:  # `decode` says what is wrong with it
            size = 0
        if self.pixels and self.pixels + size > PIXELS_AT_ONCE:
            raise Refused(503, "The server holds all the images it can; try again in a second.")
        self.pixels += size
        try:
            yield
        finally:
            self.pixels -= size

    def read(self, content: bytes) -> NDArray[np.uint8]:
        """The pixels of an image `[H, W, 3]`."""
        return np.asarray(decode("The image", content, self.enough))

    async def respond(self, name: str, content: bytes, top: int, min_score: float | None) -> dict[str, Any]:
        """What the model says about an image.

        Raises:
            Refused: It is no image, or it takes too long.
        """
        assert self.batcher is not None
        began = time.perf_counter()
        loop = asyncio.get_running_loop()

        async def see() -> Prediction:
            pixels = await loop.run_in_executor(self.decoders, self.read, content)
            return await self.batcher.add(pixels)  # type: ignore[union-attr]

        with self.room_for(content):
            try:
                found = await asyncio.wait_for(see(), self.timeout)
            except BadImage as error:
                raise Refused(400, f"The image can't be read: {error.reason}.") from None
            except (TimeoutError, asyncio.TimeoutError):
                raise Refused(504, f"It took more than {self.timeout:g} seconds; try again later.") from None
            except Exception as error:
                print(f"nearsight: an image failed: {first_line(error)}", file=sys.stderr)
                raise Refused(500, "The model failed on this image; the server's log says more.") from None
        if found.problem is not None:
            raise Refused(400, f"The image can't be read: {found.problem}.")
        self.seconds.observe(time.perf_counter() - began)
        asked = found.at_settings(self.predictor.settings, top, min_score)
        return replace(asked, image=name).response()

    def about(self) -> dict[str, Any]:
        """The model in words."""
        return {
            "name": self.predictor.name,
            "task": self.predictor.task,
            "weights": self.predictor.weights,
            "classes": list(self.predictor.classes),
            "settings": self.predictor.settings,
            "nearsight": __version__,
        }

    def openapi(self) -> dict[str, Any]:
        """The description of all addresses in the OpenAPI format."""

        def says(text: str, kind: str, schema: dict[str, Any]) -> dict[str, Any]:
            return {"description": text, "content": {kind: {"schema": schema}}}

        error = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
        refusals = {
            400: "No image, or a wrong setting",
            401: "The password is missing or wrong",
            408: "The body came too slowly",
            413: "Too many bytes or pixels",
            503: "Too many requests at once; try again in a second",
            504: "It took too long",
        }
        plain = {"type": "string", "format": "binary"}
        form = {"type": "object", "required": ["image"], "properties": {"image": plain}}
        top = {"name": "top", "in": "query", "schema": {"type": "integer", "minimum": 1, "default": 5}}
        score = {"name": "min_score", "in": "query", "schema": {"type": "number", "minimum": 0, "maximum": 1}}
        post = {
            "operationId": "predict",
            "summary": "What the model says about an image",
            "parameters": [
                top | {"description": "Of a classifier: how many classes to name."},
                score | {"description": "Score that an object or label needs; without it, what was best in training."},
            ],
            "requestBody": {
                "required": True,
                "content": {"image/*": {"schema": plain}, "multipart/form-data": {"schema": form}},
            },
            "responses": {"200": says("The prediction", "application/json", self.kind.schema())}
            | {str(code): says(text, "application/json", error) for code, text in refusals.items()},
        }
        anything = {"type": "object"}
        paths: dict[str, Any] = {"/predict": {"post": post}}
        for path, text, kind in (
            ("/model", "Name, task, classes and settings of the model", "application/json"),
            ("/health", "Whether requests are taken; 503 while it stops", "application/json"),
            ("/metrics", "Counts and times for Prometheus", "text/plain"),
        ):
            schema = anything if kind == "application/json" else {"type": "string"}
            got = {"operationId": path[1:], "summary": text, "responses": {"200": says(text, kind, schema)}}
            paths[path] = {"get": got}
        found: dict[str, Any] = {"openapi": "3.1.0", "info": {"title": f"Nearsight: {self.predictor.name}"}}
        found["info"] |= {"version": __version__, "summary": f"Trained to {self.predictor.task}"}
        locks = {"password": {"type": "http", "scheme": "bearer"}}
        return found | {"paths": paths, "components": {"securitySchemes": locks}, "security": [{}, {"password": []}]}


def make_server(service: Service, access: Access, timeout: float) -> "uvicorn.Server":
    """A server for a service, which drains before it stops."""
    import uvicorn

    class DrainingServer(uvicorn.Server):
        """Responds to what was sent on open connections before it closes them."""

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """Take no new connections, let the open ones have their next response, then close what is idle."""
            for server in self.servers:
                server.close()
            service.draining = True
            quiet = 0
            # Somebody may be sending on a connection that looks idle: it is closed after half a second without a word.
            for _ in range(int(timeout / 0.05)):
                await asyncio.sleep(0.05)
                quiet = 0 if self.server_state.tasks else quiet + 1
                if quiet >= 10 or not self.server_state.connections or self.force_exit:
                    break
            await super().shutdown(sockets)

    return DrainingServer(
        uvicorn.Config(
            make_app(service, access),
            log_level="error",
            access_log=False,
            http=prompt_protocol(timeout),
            proxy_headers=False,  # anybody can write there that a request comes from elsewhere
            server_header=False,
            timeout_graceful_shutdown=max(1, round(timeout)),
            limit_concurrency=4 * service.waiting + 64,
        )
    )


def make_app(service: Service, access: Access) -> App:
    """The addresses of a service."""
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, Response
    from starlette.routing import Route

    description = json.dumps(service.openapi(), ensure_ascii=False).encode(errors="backslashreplace")
    page, policy = make_page(service)

    def answer(content: Any, status: int = 200) -> Response:
        body = json.dumps(content, ensure_ascii=False).encode(errors="backslashreplace")
        return Response(body, status, media_type="application/json")

    def settings_of(request: Request) -> tuple[int, float | None]:
        given = request.query_params
        for name in set(given) - {"top", "min_score"}:
            raise Refused(400, f"{name} is no setting of a request; there are top and min_score.")
        top, score = given.get("top", "5"), given.get("min_score")
        if not (top.isdecimal() and top.isascii() and 0 < len(top) < 7 and int(top) > 0):
            raise Refused(400, f"top is {top!r}; give a whole number from 1 on.")
        if score is None:
            return int(top), None
        try:
            value = float(score)
        except ValueError:
            value = -1.0
        if not 0 <= value <= 1:
            raise Refused(400, f"min_score is {score!r}; give a number from 0 to 1.")
        return int(top), value

    async def image_of(request: Request) -> tuple[str, bytes]:
        multipart = request.headers.get("content-type", "").startswith("multipart/form-data")
        most = service.max_bytes + MOST_TEXT * multipart
        too_large = Refused(413, f"That is too large; {service.max_bytes / 2**20:g} MB are the most.")
        length = request.headers.get("content-length", "")
        try:
            # What is a little too large is read to its end: who is still sending would not hear the refusal.
            declared = int(length) if length.isdecimal() else 0
            body = (
                await asyncio.wait_for(read_body(request.receive, most), service.timeout) if declared <= most else None
            )
            if body is None and declared <= 8 * most:
                await asyncio.wait_for(drop_body(request.receive, 8 * most), service.timeout)
        except (TimeoutError, asyncio.TimeoutError):
            raise Refused(408, f"The image took more than {service.timeout:g} seconds to arrive.") from None
        if body is None:
            raise too_large
        if not multipart:
            if not body:
                raise Refused(400, "There is no image in the request; send its bytes as the body.")
            return "image", body
        again = Request(request.scope, replayed(body, request.receive))
        try:
            async with again.form(max_files=1, max_fields=8) as form:
                for value in form.values():
                    if not isinstance(value, str):
                        content = await value.read()
                        if len(content) > service.max_bytes:
                            raise too_large
                        return value.filename or "image", content
        except Refused:
            raise
        except Exception as error:  # whatever is wrong with the form
            raise Refused(400, f"The form can't be read ({first_line(error)}).") from None
        raise Refused(400, "There is no file in the form; send the image as the field `image`.")

    async def predict(request: Request) -> Response:
        assert service.batcher is not None
        top, score = settings_of(request)
        if service.batcher.on_the_way >= service.waiting:
            raise Refused(503, f"{service.waiting} requests wait already; try again in a second.")
        # From its first byte on a request may hold up a batch, for milliseconds.
        with service.batcher.announced():
            name, content = await image_of(request)
            return answer(await service.respond(name, content, top, score))

    async def health(request: Request) -> Response:
        return answer({"status": "stopping" if service.draining else "ok"}, 503 if service.draining else 200)

    async def model(request: Request) -> Response:
        return answer(service.about())

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(service.registry), media_type=CONTENT_TYPE_LATEST)

    async def openapi(request: Request) -> Response:
        return Response(description, media_type="application/json")

    async def show_page(request: Request) -> Response:
        return HTMLResponse(page, headers={"content-security-policy": policy})

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        response = answer({"error": error.sentence}, error.status)
        if error.status == 503:
            response.headers["retry-after"] = "1"
        if error.status in (408, 413):  # the rest of the body is not read
            response.headers["connection"] = "close"
        return response

    async def unknown(request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 500)
        sentence = {404: "There is nothing here; GET / says what there is.", 405: "Another method is meant here."}
        return answer({"error": sentence.get(status, "The server failed; its log says more.")}, status)

    routes = [
        Route("/predict", predict, methods=["POST"]),
        *(Route(path, do) for path, do in (("/", show_page), ("/docs", show_page), ("/health", health))),
        *(Route(path, do) for path, do in (("/model", model), ("/metrics", metrics), ("/openapi.json", openapi))),
    ]
    handlers: Any = {Refused: refuse, 404: unknown, 405: unknown, 500: unknown}
    inner = Starlette(routes=routes, exception_handlers=handlers)

    async def outer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
            return
        if scope["type"] != "http":
            return  # no web sockets

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                service.responses.labels(message["status"]).inc()
                closing = [(b"connection", b"close")] if service.draining else []
                message["headers"] = [*message.get("headers", []), *HEADERS.items(), *closing]
            await send(message)

        # Who watches a server asks for its health without knowing its password.
        refused = None if scope["path"] == "/health" else access.refusal(scope)
        if refused is None:
            await inner(scope, receive, send_with_headers)
        else:
            response = answer({"error": refused.sentence}, refused.status)
            response.raw_headers += refused.headers
            await response(scope, receive, send_with_headers)

    async def lifespan(receive: Receive, send: Send) -> None:
        await receive()
        service.batcher = Batcher(service.predict, service.batch, service.wait, service.note)
        running = asyncio.create_task(service.batcher.run())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        running.cancel()
        await send({"type": "lifespan.shutdown.complete"})

    return outer


async def drop_body(receive: Receive, most: int) -> None:
    """Read the rest of a body, up to so many bytes, and keep nothing of it."""
    more = True
    while more and most > 0:
        message = await receive()
        most -= len(message.get("body", b""))
        more = message["type"] == "http.request" and message.get("more_body", False)


SCRIPT = """
const form = document.querySelector('form'), out = document.querySelector('#out');
form.addEventListener('submit', async event => {
  event.preventDefault();
  const file = form.image.files[0];
  if (!file) { out.textContent = 'Choose an image first.'; return; }
  out.textContent = '...';
  const response = await fetch('predict', {method: 'POST', body: file});
  out.textContent = response.status + ' ' + JSON.stringify(await response.json(), null, 1).slice(0, 20000);
});
"""
STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 0.9em/1.45 ui-monospace, monospace; }
pre { padding: 0.75rem; overflow-x: auto; background: color-mix(in srgb, currentColor 8%, transparent); }
table { border-collapse: collapse; } td { padding: 0.25rem 1rem 0.25rem 0; vertical-align: top; }
form { display: flex; flex-wrap: wrap; gap: 0.5rem; } #out:empty { display: none; } #out { max-height: 24rem; }
"""


def make_page(service: Service) -> tuple[str, str]:
    """The page about the addresses, and the policy that lets it run its own script and nothing else."""
    described = service.openapi()
    rows = [
        f"<tr><td><code>{method.upper()} {html.escape(path)}</code></td><td>{html.escape(one['summary'])}</td></tr>"
        for path, methods in described["paths"].items()
        for method, one in methods.items()
    ]
    name, classes = html.escape(service.predictor.name), service.predictor.classes
    schema = html.escape(json.dumps(service.kind.schema(), indent=1))
    text = f"""<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{name}: Nearsight</title>
<link rel="icon" href="data:,"><style>{STYLE}</style></head><body>
<h1>{name}</h1><p>A model that was trained to {html.escape(service.predictor.task)}, with {len(classes):,} classes.</p>
<form><input type="file" name="image" accept="image/*" aria-label="Image"><button>Predict</button></form>
<pre id="out" aria-live="polite"></pre>
<h2>Ask it</h2><pre>curl --data-binary @image.jpg http://HOST:PORT/predict</pre>
<p>Or as a form: <code>curl -F image=@image.jpg http://HOST:PORT/predict</code>. With a password, add
<code>-H 'Authorization: Bearer PASSWORD'</code>. Of a classifier, <code>?top=3</code> names three classes; of a
detector, <code>?min_score=0.5</code> leaves out objects that score less. An image has at most
{service.max_bytes / 2**20:g} MB and {MOST_PIXELS // 10**6} million pixels.</p>
<table>{"".join(rows)}</table>
<h2>What comes back</h2><p>Whatever is refused comes with a sentence under <code>error</code>. The whole description is
in <a href="openapi.json">openapi.json</a>; a prediction has this schema:</p><pre>{schema}</pre>
<script>{SCRIPT}</script></body></html>"""

    def hashed(content: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"

    policy = f"default-src 'none'; connect-src 'self'; img-src data:; script-src {hashed(SCRIPT)}; "
    return text, policy + f"style-src {hashed(STYLE)}; base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
