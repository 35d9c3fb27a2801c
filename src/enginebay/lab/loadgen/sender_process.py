"""One process of the load generator: `python -m enginebay.lab.loadgen.sender_process TASK OUTCOMES`.

It prints "ready" when its connections are open, reads the start of the window from its standard input, and then prints
its progress as lines of JSON. On SIGTERM it sends no more requests and waits for those in flight.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

import msgspec

from enginebay.lab.loadgen.process_priority import raise_priority
from enginebay.lab.loadgen.sender import RequestSender
from enginebay.lab.loadgen.sender_task import SenderProgress, SenderTask
from enginebay.util.file_limits import raise_open_file_limit


def main(task_file: str, outcomes_file: str) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the parent stops this process
    raise_open_file_limit()
    task = msgspec.msgpack.decode(Path(task_file).read_bytes(), type=SenderTask)
    if task.core is not None:
        os.sched_setaffinity(0, {task.core})
    raise_priority()
    encode = msgspec.json.Encoder().encode

    def report(progress: SenderProgress) -> None:
        try:
            os.write(1, encode(progress) + b"\n")
        except BrokenPipeError:
            os._exit(1)  # the parent is gone

    sender = RequestSender(task, report)
    signal.signal(signal.SIGTERM, lambda number, frame: sender.stop())
    try:
        sender.connect()
    except OSError as error:
        print(f"failed {error}", flush=True)
        return 1
    gc.collect()
    gc.freeze()
    gc.disable()  # a collection in the window would count as the server's delay
    print("ready", flush=True)
    zero = float(sys.stdin.readline())
    outcomes = sender.run(zero)
    Path(outcomes_file).write_bytes(msgspec.msgpack.encode(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
