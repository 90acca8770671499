"""`hicache serve-metadata`: the HTTP service that maps keys to pages of 3FS."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from hicache.cli.command import number, option
from hicache.errors import ConfigurationError
from hicache.storage.hf3fs.access import TOKEN_VARIABLE, read_token
from hicache.storage.hf3fs.catalogue import RESERVATION_S, Catalogue
from hicache.storage.hf3fs.service import LOOPBACK, MetadataService

END_SIGNALS = (signal.SIGINT, signal.SIGTERM)


_Host = Annotated[str, typer.Option(help="Address to listen on. An address that is not loopback needs a token.")]
_Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on. 0: any free port.")]
_File = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False,
        help="File for the metadata, on a local disk; a log is written beside it. Without it: memory only.",
    ),
]
_ReservationS = Annotated[
    float,
    typer.Option(
        min=1,
        callback=number,
        help="Seconds after which a page that was reserved and not confirmed may be reserved again.",
    ),
]
_TokenFile = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False,
        help=f"File with the token that requests must present. Default: the variable {TOKEN_VARIABLE}, or none.",
    ),
]
_Names = Annotated[
    list[str] | None,
    typer.Option(help="Further name by which clients reach the service, such as one of DNS; may be repeated."),
]


def serve_metadata_command(
    host: _Host = LOOPBACK,
    port: _Port = 18000,
    file: _File = None,
    reservation_s: _ReservationS = RESERVATION_S,
    token_file: _TokenFile = None,
    name: _Names = None,
) -> None:
    """Serve the metadata of 3FS over HTTP until SIGTERM or SIGINT. It then folds the log into the file.

    Prints the URL of the service when it is ready.

    Exit code:
    - 0: it was ended by SIGTERM or SIGINT.
    - 1: it was ended so, and could not write the file. The log beside it has all changes, and the next start reads it.
    - 2: it cannot listen on the address, has no token for it, or cannot use or read a file. The file stays unchanged.
    """
    for one in name or ():
        if not one or set(one) & set("/ "):
            raise typer.BadParameter(f"{one!r} is not a host name", param_hint="--name")
    with option("--token-file"):
        token = read_token(token_file)
    with option("--file", OSError):
        catalogue = Catalogue(file, age_limit_s=reservation_s)
    try:
        service = MetadataService(catalogue, host=host, port=port, token=token, names=name or ())
    except (OSError, ConfigurationError) as error:
        with suppress(OSError):
            catalogue.close()
        raise typer.BadParameter(f"{host}:{port}: {error}", param_hint="--host, --port") from error
    # The threads of the service inherit this mask, so that only this thread receives the signals.
    signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
    service.start()
    typer.echo(f"serving the metadata of 3FS at {service.url}")
    signal.sigwait(END_SIGNALS)
    service.close()
    try:
        catalogue.close()
    except OSError as error:
        typer.echo(f"{file} cannot be written: {error}; the log beside it has all changes", err=True)
        raise typer.Exit(1) from error
