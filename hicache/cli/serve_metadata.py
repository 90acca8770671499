"""`hicache serve-metadata`: says which page of 3FS is whose, until it is told to end."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from hicache.errors import ConfigurationError
from hicache.storage.hf3fs.catalogue import RESERVATION_S, Catalogue
from hicache.storage.hf3fs.service import LOOPBACK, MetadataService

ENDS = (signal.SIGINT, signal.SIGTERM)


def serve_metadata_command(
    host: Annotated[str, typer.Option(help="The address to listen to; nobody is asked who he is.")] = LOOPBACK,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any that is free.")] = 18000,
    file: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Where it lasts, with a journal beside it. Without it: nowhere.")
    ] = None,
    reservation_s: Annotated[
        float, typer.Option(min=1, help="Until a page that was reserved and not confirmed may be handed out again.")
    ] = RESERVATION_S,
) -> None:
    """Serve the metadata of 3FS, until SIGTERM or SIGINT; the file is written a last time then.

    Ends with 2 when the address cannot be had, or the file cannot be used or read, which stays as it is.
    """
    try:
        catalogue = Catalogue(file, age_limit_s=reservation_s)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error), param_hint="--file") from error
    try:
        service = MetadataService(catalogue, host=host, port=port)
    except OSError as error:
        catalogue.close()
        raise typer.BadParameter(f"{host}:{port}: {error}", param_hint="--host, --port") from error
    # Threads take this over, so that a signal waits for this one.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    service.start()
    typer.echo(f"metadata of 3FS at {service.url}")
    signal.sigwait(ENDS)
    service.close()
    catalogue.close()
