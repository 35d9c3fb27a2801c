"""A small process that outlives the worker and cleans up, whichever of worker and parent dies first.

The guard is a shell of about a megabyte in its own session. It waits for two ends of file:

- the worker's: the worker has exited. Kill its process group, remove its directory.
- the parent's: the parent has exited. Send SIGTERM to the worker, wait up to 5 s, then do the same.
"""

from __future__ import annotations

import os
import socket
import subprocess

_SCRIPT = """
trap '' TERM INT HUP
group=$1 directory=$2 worker=$3
( read -r _ <&1
  kill -TERM "$worker" 2>/dev/null
  for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do kill -0 "$worker" 2>/dev/null || exit 0; sleep 0.25; done
  kill -KILL "-$group" 2>/dev/null ) </dev/null &
watcher=$!
exec 1>&-
read -r _
kill -KILL "-$group" 2>/dev/null
[ -z "$directory" ] || rm -rf -- "$directory"
kill -KILL "$watcher" 2>/dev/null
exit 0
"""


def start_guard(parent: socket.socket, directory: str) -> None:
    """Start the guard of this process. `parent` reaches end of file when the parent dies; the guard owns it."""
    reading, writing = os.pipe()
    # No other process may hold the worker's end: a forked engine process would hide the worker's exit.
    held = [writing]
    os.register_at_fork(after_in_child=lambda: os.closerange(held[0], held.pop() + 1) if held else None)
    subprocess.Popen(
        ["/bin/sh", "-c", _SCRIPT, "enginebay-guard", str(os.getpgrp()), directory, str(os.getpid())],
        stdin=reading,  # end of file when the worker exits
        stdout=parent.fileno(),  # end of file when the parent exits; a socket, so the guard can read from it
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(reading)
    parent.close()
