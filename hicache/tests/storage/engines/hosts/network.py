"""Network: hosts that are network namespaces, each with a cable to one bridge.

All of it is within a namespace of this process. It needs no right on the real network, and it ends with its processes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from hicache.errors import InvariantError

ISOLATED = (
    *("unshare", "--user", "--map-root-user", "--net"),
    *("--pid", "--fork", "--kill-child=SIGKILL", "--mount", "--mount-proc"),
)
"""Before a command: a network and processes of its own. When the first process ends, the system ends all of them."""

INTERRUPTED = 130
"""Exit code after Ctrl-C or SIGTERM."""

BRIDGE = "hosts"
SUBNET = "10.77.0"
_BRIDGE_NUMBER = 254
"""Of the bridge in the subnet: so this process reaches the hosts."""

_ASK_S = 20
_END_S = 10


def refusal() -> str:
    """Why no such network can be made here, in words; empty if one can."""
    for program, package in (("unshare", "util-linux"), ("nsenter", "util-linux"), ("ip", "iproute2")):
        if shutil.which(program) is None:
            return f"{program} is not installed; the package {package} has it"
    for kind in ("veth", "bridge"):
        asked = subprocess.run(
            [*ISOLATED, "ip", "link", "add", "type", kind], capture_output=True, text=True, check=False, timeout=_ASK_S
        )
        if asked.returncode:
            return f"the system permits no network namespace with a device of type {kind}: {asked.stderr.strip()}"
    return ""


def isolated(command: Sequence[str]) -> int:
    """The exit code of a command in a network of its own. With its first process the system ends all of them."""
    # SIGINT as well: a shell lets its background jobs, and all that they start, ignore it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    process = subprocess.Popen([*ISOLATED, *command])
    try:
        return process.wait()
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        _kill(process)


def _kill(unshare: subprocess.Popen[bytes]) -> None:
    """Kill the first process. It ends after all others, and unshare, which waits for it, ends last."""
    if unshare.poll() is None:
        first = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text(encoding="ascii").split()
        for process in map(int, first):
            os.kill(process, signal.SIGKILL)
        if not first:
            unshare.kill()
    unshare.wait()


class Network:
    """Hosts by their place, from 0, in a process that ISOLATED began. A `with` block starts and ends them."""

    def __init__(self, hosts: int) -> None:
        self.addresses = [f"{SUBNET}.{place + 1}" for place in range(hosts)]
        self._anchors: list[subprocess.Popen[str]] = []
        self._held = ExitStack()

    def __enter__(self) -> Network:  # noqa: PYI034 - 3.10 has no Self
        with self._held:
            _call("ip", "link", "set", "lo", "up")
            _call("ip", "link", "add", BRIDGE, "type", "bridge")
            _call("ip", "address", "add", f"{SUBNET}.{_BRIDGE_NUMBER}/24", "dev", BRIDGE)
            _call("ip", "link", "set", BRIDGE, "up")
            for place in range(len(self.addresses)):
                self._add(place)
            self._held = self._held.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._held.close()
        self._anchors.clear()
        _call("ip", "link", "delete", BRIDGE)

    def on(self, place: int, command: Sequence[str]) -> list[str]:
        """The command that runs a command on a host."""
        return ["nsenter", f"--net=/proc/{self._anchors[place].pid}/ns/net", "--", *command]

    def cut(self, place: int) -> None:
        """Pull the cable of a host."""
        _call("ip", "link", "set", _cable(place), "down")

    def restore(self, place: int) -> None:
        """Put the cable of a host back."""
        _call("ip", "link", "set", _cable(place), "up")

    def _add(self, place: int) -> None:
        # The namespace lives as long as a process in it: `cat` ends when its input is closed.
        anchor = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; exec cat"],  # noqa: S607
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._held.callback(_end, anchor)
        assert anchor.stdout is not None, "its output is a pipe"
        anchor.stdout.readline()  # it is in its namespace
        self._anchors.append(anchor)
        cable, peer = _cable(place), str(anchor.pid)
        _call("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", peer)
        _call("ip", "link", "set", cable, "master", BRIDGE, "up")
        _call(*self.on(place, ["ip", "address", "add", f"{self.addresses[place]}/24", "dev", "eth0"]))
        for device in ("lo", "eth0"):
            _call(*self.on(place, ["ip", "link", "set", device, "up"]))


def _cable(place: int) -> str:
    return f"host{place + 1}"


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ASK_S)
    if done.returncode:
        raise InvariantError(f"{' '.join(command)} ends with {done.returncode}: {done.stderr.strip()}")


def _end(process: subprocess.Popen[str]) -> None:
    process.communicate(timeout=_END_S)
