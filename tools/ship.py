"""Put a trained model into the package: `python -m tools.ship RUN NAME --licence CC0-1.0 --about "..."`.

Its weights are written in half precision to src/nearsight/shipped/NAME.safetensors, and beside them the description
that every saved model has, with where they come from: the run's command, its teacher, its scores, the licence.
"""

import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer

from nearsight import load
from nearsight.checkpoints.format import save_model
from nearsight.runs.run import Run, read_record
from nearsight.shipped import FOLDER

LARGEST = 2_000_000  # bytes of the weights in the wheel, which is compressed


def ship(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    name: Annotated[str, typer.Argument(help="MODEL.TAG")],
    licence: Annotated[str, typer.Option(help="SPDX name of the licence of the weights.")],
    about: Annotated[str, typer.Option(help="What they are, in a sentence.")],
) -> None:
    """Write the weights of a run and their description into the package."""
    predictor, run = load(folder), Run(folder)
    outcome, records = run.outcome(), read_record(folder / "environment.json")
    if outcome is None:
        raise typer.BadParameter(f"{folder} is not finished.")
    origin = {
        "model": predictor.name,
        "about": about,
        "licence": licence,
        "teacher": records.get("teacher"),
        "data": Path(run.data()["source"]).name,
        "epochs": outcome.epoch,
        "validation": round(outcome.val_score, 4),
        "test": None if outcome.test_score is None else round(outcome.test_score, 4),
    }
    trained = {"task": predictor.task, "classes": list(predictor.classes), "input": asdict(predictor.preprocessing)}
    target = FOLDER / f"{name}.safetensors"
    save_model(predictor.model.to(torch.float16), target, origin, trained, name=predictor.name)
    size = len(zlib.compress(target.read_bytes()))
    if size > LARGEST:
        target.unlink()
        raise typer.BadParameter(f"{target.name} takes {size:,} bytes in the wheel; {LARGEST:,} are the most.")
    print(f"{target}: {size:,} bytes in the wheel")


if __name__ == "__main__":
    typer.run(ship)
