"""The command line of benchmarks that train for hours, and then write a page."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path


def train_or_page(about: str | None, train: Callable[[Path, Path], None], page: Callable[[Path], None]) -> None:
    """Do what the command line says.

    Args:
        about: What the benchmark is for.
        train: Called for `train` with the folders of the data and of the runs.
        page: Called for `page` with the folder of the runs.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "page"))
    parser.add_argument("--data", type=Path, default=os.environ.get("NEARSIGHT_DATA"))
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.what == "page":
        page(arguments.out)
    elif arguments.data is None:
        parser.error("give --data, or set NEARSIGHT_DATA")
    elif not Path(arguments.data).is_dir():
        parser.error(f"{arguments.data} is no folder; give the one that holds the data sets")
    else:
        train(Path(arguments.data), arguments.out)
