"""Draw `skeleton.png`: the five slots, and what each paper puts into them. Run: python docs/images/make_skeleton.py."""

from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

INK, SOFT, LINE, CARD = "#1f2933", "#6b7785", "#b8c2cc", "#ffffff"
PAPERS = {
    "LocalViT": "#2a7f62",
    "LightViT": "#c26a00",
    "LIT": "#7a3fa0",
    "DWNet": "#1f63b5",
    "LIFE": "#c0314b",
}
# slot: left edge, width, plain parts, [(paper, its part)]
SLOTS = {
    "EMBED": (2.55, 2.45, "patches, tokens-to-token", [("LightViT", "overlapping stem")]),
    "QKV": (5.7, 2.4, "linear", [("LIFE", "multi-scale cascade")]),
    "MIXER": (
        8.6,
        2.75,
        "global, window, reduced",
        [("DWNet", "dynamic depth-wise"), ("LightViT", "gather + broadcast"), ("LIT", "none in early stages")],
    ),
    "FFN": (11.85, 2.6, "MLP", [("LocalViT", "depth-wise between"), ("LightViT", "bi-dimensional gate")]),
    "MERGE": (15.25, 2.4, "2×2 concat, 2×2 conv", [("LIT", "deformable"), ("LightViT", "residual")]),
}
MIDDLE, HALF = 4.9, 0.5


def rounded(ax: Axes, x: float, y: float, width: float, height: float, radius: float, **style: object) -> None:
    box = f"round,pad=0,rounding_size={radius}"
    ax.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=box, **style))


def arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], **style: object) -> None:
    look = {"arrowstyle": "-|>", "mutation_scale": 17, "lw": 1.8, "color": SOFT, "shrinkA": 0, "shrinkB": 0} | style
    ax.add_patch(FancyArrowPatch(start, end, **look))


def draw_slot(ax: Axes, name: str) -> None:
    x, width, plain, papers = SLOTS[name]
    rounded(ax, x, MIDDLE - HALF, width, 2 * HALF, 0.14, fc="#24476b", ec="none", zorder=3)
    ax.text(x + width / 2, MIDDLE, name, color="white", size=17, weight="bold", ha="center", va="center", zorder=4)
    ax.text(x + width / 2, MIDDLE + HALF + 0.27, plain, color=SOFT, size=11, ha="center", va="center", style="italic")
    for row, (paper, part) in enumerate(papers):
        y = MIDDLE - HALF - 1.5 - row * 1.02
        colour = PAPERS[paper]
        rounded(ax, x, y, width, 0.86, 0.12, fc=CARD, ec="none", zorder=2.5)
        rounded(ax, x, y, width, 0.86, 0.12, fc=colour + "14", ec=colour, lw=1.4, zorder=3)
        ax.add_patch(Rectangle((x + 0.13, y + 0.15), 0.07, 0.56, fc=colour, ec="none", zorder=4))
        ax.text(x + 0.34, y + 0.59, paper, color=colour, size=13, weight="bold", va="center", zorder=4)
        ax.text(x + 0.34, y + 0.26, part, color=INK, size=11, va="center", zorder=4)
    ax.plot([x + width / 2] * 2, [MIDDLE - HALF, MIDDLE - HALF - 0.64], color=LINE, lw=1.4, ls=(0, (2, 2)), zorder=2)


def draw_picture(ax: Axes, x: float, y: float, side: float) -> None:
    """A small image cut into patches."""
    shades = ["#cfe3f5", "#a9cdec", "#8fbce4", "#c3ddf2", "#7fb089", "#8fbce4", "#a9cdec", "#6fa57b", "#5d9468"]
    step = side / 3
    for index, shade in enumerate(shades):
        place = (x + index % 3 * step, y + side - (index // 3 + 1) * step)
        ax.add_patch(Rectangle(place, step - 0.05, step - 0.05, fc=shade, ec="none", zorder=3))
    ax.text(x + side / 2, y - 0.24, "image", color=INK, size=12, ha="center", va="center")


def draw() -> None:
    fig = plt.figure(figsize=(15.6, 6.4))
    ax = fig.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, 19.5), ylim=(0, 8))
    ax.axis("off")
    rounded(ax, 0.08, 0.08, 19.34, 7.84, 0.35, fc=CARD, ec="#d9dfe5", lw=1.2)
    rounded(ax, 5.15, 0.4, 12.75, 6.6, 0.25, fc="#f4f7fa", ec=LINE, lw=1.4, zorder=1)
    ax.text(5.42, 6.68, "stage", color=INK, size=13, weight="bold", va="center")
    ax.text(17.65, 6.68, "× stages", color=SOFT, size=12, va="center", ha="right")
    rounded(ax, 5.42, 0.62, 9.3, 5.75, 0.22, fc=CARD, ec=LINE, lw=1.4, zorder=1.5)
    ax.text(14.45, 6.1, "× blocks", color=SOFT, size=12, va="center", ha="right")
    ax.text(5.7, 6.1, "block", color=INK, size=13, weight="bold", va="center")

    draw_picture(ax, 0.5, MIDDLE - 0.6, 1.25)
    for name in SLOTS:
        draw_slot(ax, name)
    for left, right in (("EMBED", "QKV"), ("QKV", "MIXER"), ("MIXER", "FFN"), ("FFN", "MERGE")):
        arrow(ax, (SLOTS[left][0] + SLOTS[left][1], MIDDLE), (SLOTS[right][0], MIDDLE), zorder=3)
    arrow(ax, (1.8, MIDDLE), (2.55, MIDDLE))
    arrow(ax, (17.65, MIDDLE), (18.25, MIDDLE), zorder=3)
    ax.text(18.7, MIDDLE, "head", color=INK, size=13, ha="center", va="center", weight="bold")
    ax.text(0.5, 7.42, "One skeleton, five slots, five papers", color=INK, size=18, weight="bold", va="center")
    ax.text(
        19.0,
        7.42,
        "grey: the plain part · colour: what a paper puts there",
        color=SOFT,
        size=12,
        va="center",
        ha="right",
    )
    fig.savefig(Path(__file__).with_name("skeleton.png"), dpi=110, transparent=True, metadata={"Software": None})


if __name__ == "__main__":
    draw()
