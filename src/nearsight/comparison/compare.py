"""A comparison from beginning to end: plan, runs, results, report."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from ..config.candidates import Entry
from ..console import tracked
from ..runs.run import refuse_inside
from .budget import epochs_within
from .candidates import Contender, check_contenders, check_run, choose_baseline, recipe_of, suggest_convnet
from .collect import collect
from .latency import ROUNDS
from .plan import Plan, Planned, Shared, check_same, read_plan, write_plan
from .progress import Board
from .report import write_report
from .results import Results, write_results
from .runner import Slot, find_slots, run_here


@dataclass(frozen=True)
class Wish:
    """What the user asked for.

    Attributes:
        shared: Settings of all runs.
        entries: The models.
        seeds: Each model is trained once with each.
        baseline: Label of the model that the others are tested against; None chooses.
        folder: Where everything goes.
        jobs: Runs at a time on the CPU; None chooses.
        ray: Address of a Ray cluster; None runs here.
        quiet: Show no progress.
    """

    shared: Shared
    entries: list[Entry]
    seeds: tuple[int, ...]
    baseline: str | None
    folder: Path
    jobs: int | None = None
    ray: str | None = None
    quiet: bool = False


def run_comparison(wish: Wish) -> Results:
    """Train what is not trained yet, and write `results.json` and `report.html`.

    Raises:
        ValueError: Something in the wish can't be done, or the folder holds another comparison.
        Stopped: A signal came; the same wish goes on.
    """
    refuse_inside(wish.folder, wish.shared.data)
    with locked(wish.folder):
        old = read_plan(wish.folder)
        if old is not None:
            check_same(old, wish.shared, wish.entries, wish.folder)
        contenders, prepared = check_contenders(wish.entries, wish.shared)
        suggestion = suggest_convnet(contenders)
        if suggestion is not None and not wish.quiet:
            print(
                f"No ConvNet is among the models; --baseline {suggestion} adds one of like size as an honest baseline.",
                file=sys.stderr,
            )
        slots = find_slots(len(wish.entries) * len(wish.seeds), wish.jobs)
        plan = make_plan(wish, contenders, old, slots)
        runs = plan.runs(wish.folder)
        for run in runs:
            check_run(run, plan.shared, prepared)
        write_plan(plan, wish.folder)
        with Board(runs, len(slots), wish.quiet) as board:
            if wish.ray is None:
                failures = run_here(runs, plan.shared, slots, board)
            else:
                from .ray import run_on_ray

                failures = run_on_ray(runs, plan.shared, wish.ray, board)
        rounds = range(ROUNDS) if wish.quiet else tracked(range(ROUNDS), "Measuring latency")
        results = collect(
            plan,
            wish.folder,
            contenders,
            prepared,
            failures=failures,
            suggestion=suggestion,
            command=shlex.join(["nearsight", *sys.argv[1:]]),
            rounds=rounds,
        )
        write_results(results, wish.folder)
        write_report(results, wish.folder)
        return results


def make_plan(wish: Wish, contenders: list[Contender], old: Plan | None, slots: list[Slot]) -> Plan:
    """The plan, with the epochs of each model: as given, as planned before, by the budget, or by the recipe."""
    known = {model.label: model.epochs for model in old.models} if old else {}
    fresh = [contender for contender in contenders if contender.entry.label not in known]
    if wish.shared.budget is not None and fresh:
        if not wish.quiet:
            print(f"Timing some steps of {len(fresh)} models ...", file=sys.stderr)
        found = epochs_within(wish.shared.budget, fresh, wish.shared.data, len(slots), slots[0].threads)
        known |= {contender.entry.label: epochs for contender, epochs in zip(fresh, found, strict=True)}
    models = []
    for contender in contenders:
        entry = contender.entry
        epochs = known.get(entry.label, contender.recipe.epochs)
        recipe_of(entry, wish.shared, epochs)  # refuses, for one, a warm-up that is longer
        models.append(Planned(label=entry.label, name=entry.name, options=entry.options, epochs=epochs))
    baseline = choose_baseline(contenders, wish.baseline)
    return Plan(shared=wish.shared, models=tuple(models), seeds=wish.seeds, baseline=baseline)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other comparisons out of a folder."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; give a folder with --out.")
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(
            f"Another comparison is at work in {folder}; wait for it, or give another folder with --out."
        ) from None
    try:
        yield
    finally:
        lock.release()
