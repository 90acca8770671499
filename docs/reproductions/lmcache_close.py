"""`close` of LMCache 0.5.6's clients sometimes never returns.

It needs LMCache and torch alone. Run it with `python docs/reproductions/lmcache_close.py`. A process opens and closes a
client again and again; it depends on timing whether, and when, it stops.
"""

from __future__ import annotations

import itertools
import select
import subprocess
import sys
import tempfile

WAIT_S = 10
MOST = 100_000

CHILD = """
import sys
from lmcache.lmcache_fs import LMCacheFSClient
for _ in range({most}):
    client = LMCacheFSClient(sys.argv[1], 4)
    print("opened", flush=True)
    client.close()
    print("closed", flush=True)
"""


def main() -> None:
    """Count the clients that were closed, until one is not."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", CHILD.format(most=MOST), folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as child:  # noqa: S603
            assert child.stdout is not None, "its output is a pipe"
            last = b""
            for count in itertools.count():
                ready, _, _ = select.select([child.stdout], [], [], 6 * WAIT_S if count == 0 else WAIT_S)
                if not ready:
                    print(f"{count // 2} clients were closed; the next one is {last.decode()}, and nothing more comes")
                    child.kill()
                    return
                line = child.stdout.readline()
                if not line:
                    print(f"all {count // 2} clients were closed")
                    return
                last = line.strip()


if __name__ == "__main__":
    main()
