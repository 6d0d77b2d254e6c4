"""`nearsight data`: look at data before training with them."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from .options import Groups, Shell, Task, refuse_same, watch

data_app = Shell(help="Look at data before training with them.", no_args_is_help=True, rich_markup_mode=None)
make_app = Shell(help="Make data to try things out with.", no_args_is_help=True, rich_markup_mode=None)
data_app.add_typer(make_app, name="make")


@data_app.callback()
def group() -> None:
    """Look at data before training with them, or make some."""


@make_app.callback()
def make_group() -> None:
    """Make data to try things out with."""


@make_app.command()
def shapes(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write; it must not exist, or be empty.")],
    images: Annotated[
        int,
        typer.Option(
            min=4, max=1_000_000, help="Training images; an eighth as many for validation, a quarter for the test."
        ),
    ] = 1200,
    size: Annotated[int, typer.Option(min=32, max=4096, help="Pixels of the longer side.")] = 128,
    seed: Annotated[int, typer.Option(min=0, help="Another seed draws other images.")] = 0,
) -> None:
    """Draw shapes on uneven ground, with boxes, masks and classes, for detection and segmentation."""
    from ..data.sources.synthetic import make_shapes

    counts = make_shapes(out, images=images, size=size, seed=seed)
    listed = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    print(f"Wrote {out}: {listed} images; instances in annotations/, masks in masks/.")


@data_app.command()
def check(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="A folder of class folders, a table, an .npz file, COCO, VOC, YOLO or mask annotations, or a name.",
        ),
    ],
    fix_list: Annotated[
        Path | None,
        typer.Option(
            "--fix-list",
            metavar="FILE",
            help="Write the names of images to remove: unusable ones, and copies on both sides of a split.",
        ),
    ] = None,
    task: Task = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="RUN", help="Also list labels that a finished run contradicts; best one of train --folds."
        ),
    ] = None,
    frozen: Annotated[
        bool, typer.Option("--frozen", help="Also judge labels by features of pretrained weights that are at hand.")
    ] = False,
    page: Annotated[
        Path,
        typer.Option(metavar="FILE", help="With --model or --frozen: page to write, with the images in question."),
    ] = Path("labels.html"),
    groups: Groups = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole report as JSON.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is no such list.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Leave with exit code 1 if there are problems.")] = False,
    workers: Annotated[
        int | None, typer.Option(help="Processes that read images; 0: none besides this one. Default: one per core.")
    ] = None,
) -> None:
    """Find unreadable images, wrong annotations, copies across splits, lopsided classes and odd sizes."""
    from ..atomic import check_output, write_whole
    from ..console import make_console
    from ..data import open_data
    from ..data.check import check_data as check_images
    from ..data.check import fix_list as list_fixes
    from ..data.check import render_report
    from ..runs.run import data_inputs
    from ..tasks.classify import choose_patch

    refuse_same(fix_list=fix_list, page=page if model is not None or frozen else None)
    opened = open_data(data, task)
    if fix_list:
        splits = opened.splits().values()
        names = {os.fsencode(split.name(index)) for split in splits for index in range(len(split))}
        check_output(
            fix_list,
            inputs=data_inputs(data, fix_list),
            is_ours=lambda head: head.endswith(b"\n") and set(head.split(b"\n")[:-1]) <= names,  # of these data
            force=force,
            option="--fix-list",
        )
    judged = model is not None or frozen
    if judged:
        from ..label_issues import check_data, draw_page, is_page

        check_output(page, inputs=data_inputs(data, page), is_ours=is_page, force=force, option="--page")
        report = check_data(
            opened, model=model, frozen=frozen, groups=groups, workers=workers, progress=watch("Judging")
        )
    else:
        report = check_images(opened, groups=groups, workers=workers)
    side = None if report.dense else report.img_size
    models = ("deit_nano", "swin_nano", "swin_tiny")  # a plain transformer, and pyramids of three and four stages
    patches = {name: choose_patch(name, side) for name in models} if side else {}
    if as_json:
        print(json.dumps({**report.to_dict(), "patch_size": patches}, indent=2))
    else:
        make_console().print(render_report(report, patches), highlight=False, crop=False)
    if judged:
        write_whole(page, draw_page(report, opened))
        print(f"Wrote {page}; suspicious labels: {len(report.suspects):,}.", file=sys.stderr)
    if fix_list:
        write_whole(fix_list, list_fixes(report))
        print(f"Wrote {fix_list}; images to remove: {len(report.to_remove):,}.", file=sys.stderr)
    if strict and report.problems:
        raise typer.Exit(1)
