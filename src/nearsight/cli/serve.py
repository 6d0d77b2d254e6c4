"""`nearsight serve`: a model behind an address."""

from typing import Annotated

import typer

from .options import Device, Host


def serve(
    source: Annotated[
        str,
        typer.Argument(metavar="RUN|BUNDLE", help="Folder of a finished run, its model.safetensors, or a bundle."),
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="To listen at; 0 takes a free one.")] = 8000,
    host: Host = "127.0.0.1",
    password: Annotated[
        str | None,
        typer.Option(
            envvar="NEARSIGHT_PASSWORD",
            show_envvar=True,
            help="Requests have to bring it (Authorization: Bearer or Basic).",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Images predicted together at most. Default: 32, of a detector or segmenter 8."),
    ] = None,
    wait: Annotated[
        float, typer.Option(min=0, help="Milliseconds that an image waits for others that are on their way.")
    ] = 5.0,
    waiting: Annotated[int, typer.Option(min=1, help="Requests at the same time; more are refused (503).")] = 128,
    max_mb: Annotated[int, typer.Option(min=1, help="Size of an image in MB that is still taken.")] = 12,
    timeout: Annotated[float, typer.Option(help="Seconds for a request, and for all of them at the end.")] = 30.0,
    device: Device = None,
) -> None:
    """Serve a model: POST an image to /predict and get JSON. GET / says the rest.

    Requests that come at the same time are predicted together. SIGTERM or Ctrl+C stops it once all are responded to.
    A bundle that `nearsight export` wrote runs without torch.
    """
    from ..serving import serve as run

    run(
        source,
        port=port,
        host=host,
        password=password,
        batch=batch,
        wait=wait,
        waiting=waiting,
        max_mb=max_mb,
        timeout=timeout,
        device=device,
    )
