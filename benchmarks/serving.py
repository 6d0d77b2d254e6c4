"""`nearsight serve` against handlers as one writes them first: requests per second on this machine.

    python benchmarks/serving.py RUN|BUNDLE            # half a minute
    python benchmarks/serving.py localvit_nano --clients 1 8 32 --json benchmarks/results/serving.json

The naive handlers open the model once and predict each image by itself: `async` in the event loop, `threads` in
Starlette's pool of threads. `alone` is our server with batches of one. All servers run at once in processes of their
own, and the load goes to one after the other in rounds, so that ratios within a round cancel what slows the machine.
Every client sends its next image as soon as it has a response.
"""

import argparse
import asyncio
import io
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
from PIL import Image

from nearsight.atomic import write_whole
from nearsight.runs.run import processor

KINDS = ("serve", "alone", "async", "threads")


def naive(source: str, kind: str) -> None:
    """A server without batches, limits and drain."""
    import anyio.to_thread
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    import nearsight
    from nearsight.serving import open_socket

    predictor = nearsight.load(source)

    def say(content: bytes) -> dict:
        (found,) = predictor.predict([content], workers=0)
        return found.to_dict()

    async def predict(request: Request) -> JSONResponse:
        content = await request.body()
        return JSONResponse(await anyio.to_thread.run_sync(say, content) if kind == "threads" else say(content))

    listening = open_socket("127.0.0.1", 0)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", file=sys.stderr, flush=True)
    app = Starlette(routes=[Route("/predict", predict, methods=["POST"])])
    uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).run([listening])


def start(source: str, kind: str) -> tuple[subprocess.Popen, int]:
    """A server in a process of its own, and its port."""
    own = ["-m", "nearsight", "serve", source, "--port", "0", *(["--batch", "1"] if kind == "alone" else [])]
    command = own if kind in ("serve", "alone") else [__file__, source, "--naive", kind]
    process = subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = process.stderr.readline()
    return process, int(said.rpartition(":")[2].split()[0].rstrip("."))


async def load(port: int, bodies: list[bytes], seconds: float) -> tuple[int, list[float]]:
    """Responses within some seconds from as many clients as there are images, and how long each took."""
    end, times = time.perf_counter() + seconds, []

    async def client(body: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        while (began := time.perf_counter()) < end:
            writer.write(head + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200"), answer
            length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(length.split(b":")[1]))
            times.append(time.perf_counter() - began)
        writer.close()

    await asyncio.gather(*map(client, bodies))
    return len(times), times


def cpu_seconds(process: int) -> float:
    """Seconds that the processors spent on a process."""
    used = psutil.Process(process).cpu_times()
    return used.user + used.system


def pictures(count: int, side: int) -> list[bytes]:
    """Made images as JPEG files."""
    found = []
    for seed in range(count):
        rough = np.random.default_rng(seed).integers(0, 255, (12, 16, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(rough).resize((side * 4 // 3, side), Image.Resampling.BICUBIC).save(file, "JPEG", quality=85)
        found.append(file.getvalue())
    return found


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("source")
    reader.add_argument("--clients", type=int, nargs="+", default=[32])
    reader.add_argument("--seconds", type=float, default=1.5, help="of each load")
    reader.add_argument("--rounds", type=int, default=3)
    reader.add_argument("--side", type=int, default=240, help="shorter side of the images")
    reader.add_argument("--json", type=Path)
    reader.add_argument("--naive", choices=("async", "threads"), help=argparse.SUPPRESS)
    given = reader.parse_args()
    if given.naive:
        naive(given.source, given.naive)
        return
    loads = [os.getloadavg()[0]]
    servers = {kind: start(given.source, kind) for kind in KINDS}
    rows = []
    try:
        for clients in given.clients:
            bodies = pictures(clients, given.side)
            for _, port in servers.values():
                asyncio.run(load(port, bodies, 0.3))  # the first requests pay for what comes once
            rounds = []
            for _ in range(given.rounds):
                rounds.append({})
                for kind, (_, port) in servers.items():
                    used = cpu_seconds(servers[kind][0].pid)
                    count, times = asyncio.run(load(port, bodies, given.seconds))
                    used = cpu_seconds(servers[kind][0].pid) - used
                    rounds[-1][kind] = (count / given.seconds, 1000 * statistics.median(times), 1000 * used / count)
            row = {"clients": clients}
            for kind in KINDS:
                row[kind] = round(statistics.median(one[kind][0] for one in rounds), 1)
                row[f"{kind}_ms"] = round(statistics.median(one[kind][1] for one in rounds), 1)
                row[f"{kind}_cpu_ms"] = round(statistics.median(one[kind][2] for one in rounds), 2)
            ratios = [one["serve"][0] / max(one["async"][0], one["threads"][0]) for one in rounds]
            row["ratio"] = round(statistics.median(ratios), 2)
            row["ratios"] = [round(ratio, 2) for ratio in ratios]
            rows.append(row)
            loads.append(os.getloadavg()[0])
            print(f"{clients} clients: serve is {row['ratio']:.2f} x the better naive one {row['ratios']}")
            for kind in KINDS:
                rate, median, cpu = row[kind], row[f"{kind}_ms"], row[f"{kind}_cpu_ms"]
                print(f"  {kind:8s}{rate:8,.0f} requests/s, median {median:,.0f} ms, {cpu:.2f} ms of CPU time each")
    finally:
        for process, _ in servers.values():
            process.terminate()
        for process, _ in servers.values():
            process.wait(30)
    if given.json:
        # Load: runnable processes over a minute, ours among them; far above the cores only ratios mean something.
        machine = {"device": processor(), "cores": os.cpu_count(), "threads": os.environ.get("OMP_NUM_THREADS")}
        machine |= {"load": [round(load, 1) for load in loads]}
        found = {"source": given.source, "seconds": given.seconds, "side": given.side, "machine": machine, "rows": rows}
        write_whole(given.json, (json.dumps(found, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
