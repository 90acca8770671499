"""STORE-3: a process goes on while every file of its store is cut: a file that is mapped into memory would end it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from hicache.testing.contract import clause
from hicache.testing.storage.driver import StorageDriver
from hicache.testing.storage.faults import files_of

from .names import page_keys

CHILD = """
import json, sys
from hicache.storage.registry import open_backend
from hicache.testing.storage.page_bytes import Sheet, page_bytes

name, scope, options, size, keys = json.loads(sys.argv[1])
backend = open_backend(name, scope, options)

def write(keys, version):
    sheet = Sheet([[size]] * len(keys))
    for number, key in enumerate(keys):
        sheet.write(number, page_bytes(scope, key, version, size))
    return backend.set(keys, sheet.pages, [])

def wrong(keys):
    sheet = Sheet([[size]] * len(keys))
    answers = backend.get(keys, sheet.pages, [])
    right = [[page_bytes(scope, key, version, size) for version in (0, 1)] for key in keys]
    return sum(answer and sheet.read(number) not in right[number] for number, answer in enumerate(answers))

write(keys[:4], 0)
found = wrong(keys[:4])
backend.exists(keys, [], [])
print("ready", flush=True)
for _ in sys.stdin:
    for call in (lambda: backend.has(keys), lambda: wrong(keys), lambda: backend.exists(keys, [], []),
                lambda: write(keys, 1), lambda: wrong(keys), lambda: backend.has(keys), backend.stats):
        answer = call()
        found += answer if type(answer) is int and call.__code__.co_names[0] == "wrong" else 0
    print("went on", flush=True)
backend.close()
print(found, flush=True)
"""
"""Opens a backend, and calls its verbs for each line that it is sent. Prints the number of pages with wrong bytes."""

TIMEOUT_S = 300


@clause("STORE-3")
@pytest.mark.parametrize("divisor", [0, 2], ids=["to nothing", "to a half"])
def test_a_process_whose_files_are_cut_goes_on(store: StorageDriver, divisor: int) -> None:
    if not store.place.subject.is_on_disk:
        pytest.skip(f"no option of {store.place.subject.name} is a folder: there is no file to cut")
    store.instances[0].close()
    task = [store.place.subject.name, store.scope, store.place.options, store.page_size, page_keys(8)]
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, json.dumps(task)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as child:
        assert child.stdin is not None, "the process was started with pipes"
        assert child.stdout is not None, "the process was started with pipes"
        assert child.stdout.readline() == "ready\n", f"STORE-3: a store can be opened, got {child.communicate()}"
        for path in files_of(store.place.directory):
            os.truncate(path, path.stat().st_size // divisor if divisor else 0)
        out, told = child.communicate("on\non\n", timeout=TIMEOUT_S)
    assert child.returncode == 0, (
        f"STORE-3: expected a process whose files were cut to go on to its end, got {child.returncode}: {told[-500:]}"
    )
    assert out.splitlines() == ["went on", "went on", "0"], f"STORE-3: no page with wrong bytes, got {out!r}"
