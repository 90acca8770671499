"""The metrics of a command's caches: served on a port of this machine, and written to a file at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from hicache.cli.command import say
from hicache.errors import ConfigurationError
from hicache.prometheus import CacheMetrics
from hicache.testing.adapter import CacheAdapter


@contextmanager
def exposed(adapter: type[CacheAdapter], file: Path | None, port: int | None) -> Iterator[type[CacheAdapter]]:
    """The adapter class whose caches are exposed; without a file and a port the class itself.

    Raises ConfigurationError without prometheus-client, for an adapter that exposes nothing, and for a port or a file
    that cannot be used.
    """
    if file is None and port is None:
        yield adapter
        return
    metrics = _own_metrics()
    measured = adapter.measured(metrics)
    if measured is None:
        raise ConfigurationError(f"{adapter.__qualname__} exposes no metrics: leave out --metrics-file, --metrics-port")
    with ExitStack() as served:
        if port is not None:
            _serve(metrics, port, served)
        yield measured
        if file is not None:
            _write(metrics, file)


def _own_metrics() -> CacheMetrics:
    """Metrics in a registry of their own, without those of the process."""
    try:
        from prometheus_client import CollectorRegistry
    except ImportError:
        return CacheMetrics()  # which says what to install
    return CacheMetrics(CollectorRegistry())


def _serve(metrics: CacheMetrics, port: int, served: ExitStack) -> None:
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(port, "127.0.0.1", metrics.registry)
    except OSError as error:
        raise ConfigurationError(f"--metrics-port {port}: {error}") from error
    served.callback(thread.join)
    served.callback(server.server_close)
    served.callback(server.shutdown)
    say(Console(emoji=False), f"metrics: http://127.0.0.1:{server.server_port}/metrics")


def _write(metrics: CacheMetrics, file: Path) -> None:
    from prometheus_client import write_to_textfile

    try:
        write_to_textfile(str(file), metrics.registry)
    except OSError as error:
        raise ConfigurationError(f"--metrics-file {file}: {error}") from error
    say(Console(emoji=False), f"metrics: {file}")
