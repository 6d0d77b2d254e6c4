"""`nearsight app`: a page in the browser."""

from typing import Annotated

import typer


def app(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN|MODEL...",
            help="Runs, weight files or names of models to offer first.",
            show_default="the nano models",
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Of the page.", show_default="7860 or later")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen at; another than this machine's own needs a password.")
    ] = "127.0.0.1",
    password: Annotated[
        str | None,
        typer.Option(
            envvar="NEARSIGHT_PASSWORD",
            show_envvar=True,
            help="Ask visitors for it (under any name).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Open a page: drop an image, click on it, and see what models do there."""
    from ..app import launch_app

    launch_app(runs or (), port=port, host=host, password=password)
