"""The rates of Mooncake's own benchmark, `transfer_engine_bench`, between two processes on loopback."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from hicache.errors import InvariantError
from hicache.tests.storage.engines.engine import HOST, START_S, STOP_S, EngineSettings

DURATION_S = 2
"""How long values are written, and how long they are read. The program takes whole seconds."""

GB = 10**9

_POLL_S = 0.01


def transfer_benchmark() -> Path | None:
    """The program, in the package of Mooncake; None if it is not installed."""
    found = find_spec("mooncake")
    folders = [] if found is None else found.submodule_search_locations or []
    programs = [Path(folder) / "transfer_engine_bench" for folder in folders]
    return next((program for program in programs if program.is_file()), None)


def transfer_rates(settings: EngineSettings, value_bytes: int, values: int) -> tuple[float, float]:
    """The bytes that one thread writes to and reads from the memory of another process in a second, over TCP.

    The values of one batch are under way together. No store takes part. Raises InvariantError if the program is not
    installed or fails.
    """
    if (program := transfer_benchmark()) is None:
        raise InvariantError("transfer_engine_bench is not installed; mooncake-transfer-engine-non-cuda has it")
    command = [str(program), "--protocol=tcp", "--metadata_server=P2PHANDSHAKE", f"--local_server_name={HOST}"]
    command += [f"--buffer_size={value_bytes * values}"]
    log = settings.folder / "transfer_target.log"
    with log.open("wb") as output:
        target = subprocess.Popen([*command, "--mode=target"], stdout=output, stderr=output, env=_environment())
    try:
        command += ["--mode=initiator", "--threads=1", f"--batch_size={values}", f"--block_size={value_bytes}"]
        command += [f"--duration={DURATION_S}", "--report_unit=GB", "--report_precision=6"]
        return _rate(target, log, [*command, "--operation=write"]), _rate(target, log, [*command, "--operation=read"])
    finally:
        target.kill()
        target.wait(STOP_S)


def reported_rate(output: str) -> float | None:
    """The bytes per second that the program has printed; None if it did not come to its end."""
    found = re.search(r"Test completed: .* throughput ([\d.]+) GB/s", output)
    return None if found is None else float(found[1]) * GB


def _rate(target: subprocess.Popen[bytes], log: Path, command: Sequence[str]) -> float:
    """The rate of an initiator. A target tells its address before it has memory, so one that is early fails."""
    until, output = time.monotonic() + START_S, ""
    while target.poll() is None and time.monotonic() < until:
        if address := _address(log):
            named = [*command, f"--segment_id={address}"]
            output = _output(named)
            if (rate := reported_rate(output)) is not None:
                return rate
        time.sleep(_POLL_S)
    raise InvariantError(f"transfer_engine_bench does not end well: {output[-1000:]}{log.read_text()[-1000:]}")


def _address(log: Path) -> str | None:
    found = re.search(r"listening on (\S+:\d+)\n", log.read_text(encoding="utf-8", errors="replace"))
    return None if found is None else found[1]


def _output(command: Sequence[str]) -> str:
    """What a run that has ended has printed."""
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, env=_environment(), timeout=DURATION_S + START_S
    )
    return ended.stdout + ended.stderr


def _environment() -> dict[str, str]:
    # A backend sets it to ERROR for its process, and the program would not print its rate.
    return {**os.environ, "MC_LOG_LEVEL": "INFO"}
