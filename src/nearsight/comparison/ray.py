"""Runs on a Ray cluster: each is a task that trains in a scratch folder of its node and sends back the small results.

No file system is shared: the data must open under the same name on every node (a path that is there on all of them, a
data set by name, a URL). A run whose node dies begins anew on another.
"""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..atomic import expand_home, write_whole
from ..runs.run import PREDICTIONS
from ..training.session import anchor
from ..training.signals import listening
from .plan import Job, RunPlan, Shared, make_job
from .runner import PAUSE, Stopped, Watcher, last_line, worker_command

# Written here in this order: the run counts as finished with the last two.
SENT = (
    "log.txt",
    "recipe.yaml",
    "environment.json",
    "data.json",
    "metrics.jsonl",
    "summary.md",
    "curves.png",
    "model.json",
    "model.safetensors",
    PREDICTIONS,
    "outcome.json",
)
NODE_DEATHS = 3  # after which a run is given up
WAIT = 10.0  # seconds for a cluster to answer


def run_on_ray(
    runs: Sequence[RunPlan], shared: Shared, address: str, watcher: Watcher, threads: int = 1
) -> dict[Path, str]:
    """Do all runs that are not finished yet on a cluster.

    Args:
        runs: All of the comparison.
        shared: Settings of all runs.
        address: Of the cluster, as Ray takes it: `auto`, `host:port` or `ray://host:port`.
        watcher: Is told what happens.
        threads: CPU cores of a run where the cluster has no GPU.

    Returns:
        For each run that failed, its folder and the sentence.

    Raises:
        ValueError: Ray is not installed, or there is no cluster at the address.
        Stopped: A signal came.
    """
    ray = connect(address)
    gpus = ray.cluster_resources().get("GPU", 0)
    task = ray.remote(num_cpus=threads, num_gpus=1 if gpus else 0, max_retries=NODE_DEATHS)(train_there)
    waiting = {}
    for run in runs:
        if not run.is_finished():
            job = for_elsewhere(make_job(run, shared, threads))
            waiting[task.remote(job.model_dump_json(exclude_unset=True))] = run
            watcher.started(run)
    failures: dict[Path, str] = {}
    with listening() as flag:
        while waiting and not flag.number:
            done, _ = ray.wait(list(waiting), timeout=PAUSE)
            for reference in done:
                run = waiting.pop(reference)
                failure = receive(ray, reference, run)
                if failure is not None:
                    failures[run.folder] = failure
                watcher.ended(run, failure)
            watcher.look()
        for reference in waiting:
            ray.cancel(reference, force=True)
    ray.shutdown()
    if flag.number:
        raise Stopped(flag.number)
    return failures


def need_ray() -> Any:
    """Ray, which not everybody has."""
    try:
        import ray
    except ImportError:
        raise ValueError(
            "--ray needs Ray, which is not installed; install it with: pip install 'nearsight[ray]'"
        ) from None
    return ray


def connect(address: str) -> Any:
    """Ray, connected to a cluster."""
    ray = need_ray()
    try:
        host, colon, port = address.removeprefix("ray://").rpartition(":")
        if colon and port.isdecimal():  # else Ray would go on trying for minutes where nobody listens
            socket.create_connection((host, int(port)), timeout=WAIT).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True)
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"There is no Ray cluster at {address!r} ({reason}); start one with `ray start --head`."
        ) from None
    return ray


def for_elsewhere(job: Job) -> Job:
    """A job as another folder of another machine understands it: with absolute paths."""
    data = expand_home(job.source)
    source = str(data.absolute()) if data.exists() else job.source
    return job.model_copy(update={"source": source, "recipe": anchor(job.recipe)})


def train_there(text: str) -> tuple[int, dict[str, bytes]]:
    """On a node: do a job in a scratch folder; returns the exit code and the small files of the run."""
    scratch = Path(tempfile.mkdtemp(prefix="nearsight-"))
    try:
        folder = scratch / "run"
        folder.mkdir()
        job = Job.model_validate_json(text).model_copy(update={"folder": folder})
        command = worker_command("train", job, folder / "job.json")
        with (folder / "log.txt").open("wb") as log:
            # The pipe closes when this worker is killed; then the process ends, too.
            process = subprocess.Popen(
                command,
                cwd=scratch,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": str(job.threads)},
            )
            code = process.wait()
        files = {name: (folder / name).read_bytes() for name in SENT if (folder / name).is_file()}
        return code, files
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def receive(ray: Any, reference: Any, run: RunPlan) -> str | None:
    """Write the files of a run that came back; returns the sentence with which it failed, if it did."""
    try:
        code, files = ray.get(reference)
    except ray.exceptions.RayError as error:
        return f"It was lost on the cluster: {str(error).splitlines()[0]}"
    for name in SENT:
        if name in files and (code == 0 or name != "outcome.json"):
            write_whole(run.folder / name, files[name])
    if code == 0:
        return None
    return last_line(files.get("log.txt", b"").decode(errors="replace")) or f"Its process ended with code {code}."
