"""Draw `photos.jpg`, the README's first picture: test photos, and what speaks for the class that a run predicts.

    nearsight train clothing.zip --budget 30m --out RUN
    python docs/images/make_photos.py RUN clothing.zip

The photos are the first of every class of the test images, by name, as far as there is room: none was chosen by its
looks. They are of https://github.com/alexeygrigorev/clothing-dataset-small (CC0).
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np

import nearsight
from nearsight.data import open_data
from nearsight.explanation.figures import smooth_veil
from nearsight.explanation.maps import view_of
from nearsight.plots.style import INK, SOFT
from nearsight.runs.run import Run

WRONG, RIGHT, SHOWN = "#b3261e", "#1d7a4f", 8


def main(folder: str, data: str) -> None:
    predictor, outcome = nearsight.load(folder), Run(Path(folder)).outcome()
    opened = open_data(data)
    assert opened.test is not None and opened.train is not None and outcome is not None
    labels = np.asarray(opened.test.labels)
    chosen = [int(np.flatnonzero(labels == number)[0]) for number in range(len(opened.classes))][:SHOWN]
    views = [view_of(opened.test.read(number), predictor.preprocessing) for number in chosen]
    found = list(predictor.predict([np.asarray(view.image) for view in views]))
    made = nearsight.explain(predictor, [view.image for view in views], method="grad-rollout")

    fig = plt.figure(figsize=(14, 4.4), dpi=120, facecolor="white")
    head = f"nearsight train {Path(data).name} --budget 30m"
    fig.text(0.012, 0.945, head, family="DejaVu Sans Mono", size=15, weight="bold", color=INK, va="center")
    right, count = f"{100 * outcome.test_score:.0f} %", len(opened.test)
    said = (
        f"{len(opened.train):,} photos, two CPU cores: {right} of {count} test photos right. Below, what it looks at."
    )
    fig.text(0.988, 0.945, said, size=13, color=SOFT, ha="right", va="center")
    for column, (view, one, explained, number) in enumerate(zip(views, found, made, chosen, strict=True)):
        (name, confidence), truth = one.top(1)[0], opened.classes[labels[number]]
        maps = np.asarray(explained.arrays["values"])[0, 0]
        for row in (0, 1):
            axes = fig.add_axes((0.012 + 0.1222 * column, 0.482 - 0.396 * row, 0.1185, 0.377))
            axes.imshow(view.image)
            if row:
                size = view.image.height, view.image.width
                cell = size[0] // maps.shape[0], size[1] // maps.shape[1]
                axes.imshow(np.full((*size, 4), (255, 255, 255, 70), dtype=np.uint8))
                axes.imshow(smooth_veil(maps, cell, size))
            axes.set_axis_off()
        under = f"{name} {100 * confidence:.0f} %" + ("" if name == truth else f", but {truth}")
        colour = RIGHT if name == truth else WRONG
        fig.text(0.012 + 0.1222 * column, 0.045, under, size=12, weight="bold", color=colour, va="center")
    fig.savefig(Path(__file__).with_name("photos.jpg"), pil_kwargs={"quality": 88, "optimize": True})


if __name__ == "__main__":
    main(*sys.argv[1:])
