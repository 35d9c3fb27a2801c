"""A tiny process that outlives the worker by a moment, so that nothing is left behind whoever dies first.

The guard is a shell of about a megabyte in a session of its own. It waits for two ends of file:

- the worker's: the worker is gone, by whatever death. End its process group, remove its directory.
- the parent's: whoever started the worker is gone. Ask the worker to end, give it a moment, then do as above.
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
    """Start the guard of this process. `parent` reaches end of file when the parent dies; the guard takes it over."""
    reading, writing = os.pipe()
    # The worker's end must be the only one: a forked engine process that held it would hide the worker's death.
    held = [writing]
    os.register_at_fork(after_in_child=lambda: os.closerange(held[0], held.pop() + 1) if held else None)
    subprocess.Popen(
        ["/bin/sh", "-c", _SCRIPT, "enginebay-guard", str(os.getpgrp()), directory, str(os.getpid())],
        stdin=reading,  # ends with the worker
        stdout=parent.fileno(),  # ends with the parent; a socket, so the guard can read from it
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(reading)
    parent.close()
