"""Runs on a Ray cluster of two nodes, one of which dies."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nearsight.comparison.plan import Job, Plan, Planned, RunPlan, Shared
from nearsight.comparison.ray import connect, for_elsewhere, run_on_ray
from nearsight.config.files import load_recipe
from nearsight.runs.run import Run

ray = pytest.importorskip("ray", reason="Ray is not installed")


class Listener:
    """Notes what happens to the runs."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def started(self, run: RunPlan) -> None:
        pass

    def look(self) -> None:
        pass

    def ended(self, run: RunPlan, failure: str | None) -> None:
        if failure:
            self.failures.append(failure)


def make_plan(models: list[str], **settings: Any) -> Plan:
    shared = Shared(data="digits", recipe="small-data", limit=160, changes=("batch=32",), **settings)
    planned = tuple(Planned(label=name, name=name, options={}, epochs=2) for name in models)
    return Plan(shared=shared, models=planned, seeds=(0,), baseline=models[0])


def test_paths_of_a_job_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "former.safetensors").touch()
    job = Job(
        source="photos", recipe=load_recipe("deit", {"model.weights": "former.safetensors"}), folder="x", threads=1
    )
    there = for_elsewhere(job)
    assert there.source == str(tmp_path / "photos")
    assert there.recipe.model.weights == str(tmp_path / "former.safetensors")
    named = Job(source="digits", recipe=load_recipe("deit"), folder=tmp_path, threads=1)
    assert for_elsewhere(named) == named


def test_no_cluster_at_the_address_gets_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"There is no Ray cluster at .127\.0\.0\.1:1."):
        connect("127.0.0.1:1")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "1")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 10**8})
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.drill
def test_runs_finish_on_two_nodes_although_one_dies(cluster: Any, tmp_path: Path) -> None:
    second = cluster.add_node(num_cpus=1, object_store_memory=10**8)
    cluster.wait_for_nodes()
    plan = make_plan(["deit_nano", "lit_nano"])
    runs = plan.runs(tmp_path)
    listener = Listener()

    def kill_a_node() -> None:
        time.sleep(float(os.environ.get("NEARSIGHT_NODE_DIES_AFTER", "8")))
        cluster.remove_node(second, allow_graceful=False)

    killer = threading.Thread(target=kill_a_node)
    killer.start()
    failures = run_on_ray(runs, plan.shared, cluster.address, listener)
    killer.join()
    assert failures == {}
    assert listener.failures == []
    for run in runs:
        assert run.is_finished()
        outcome = Run(run.folder).outcome()
        assert outcome is not None
        assert outcome.epochs == 2
        assert not (run.folder / "checkpoints").exists()
