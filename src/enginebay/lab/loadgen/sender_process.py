"""One process of the load client: `python -m enginebay.lab.loadgen.sender_process ORDER OUTCOMES`.

It says "ready" when its connections are open, waits to be told the moment at which the window begins, and then says how
far it is, a line of JSON at a time. SIGTERM: nothing more is sent, what runs is waited for.
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: who started this process ends it
    raise_open_file_limit()
    order = msgspec.msgpack.decode(Path(task_file).read_bytes(), type=SenderTask)
    if order.core is not None:
        os.sched_setaffinity(0, {order.core})
    raise_priority()
    encode = msgspec.json.Encoder().encode

    def say(progress: SenderProgress) -> None:
        try:
            os.write(1, encode(progress) + b"\n")
        except BrokenPipeError:
            os._exit(1)  # who started this process is gone, and nobody waits for outcomes

    shooter = RequestSender(order, say)
    signal.signal(signal.SIGTERM, lambda number, frame: shooter.stop())
    try:
        shooter.connect()
    except OSError as problem:
        print(f"failed {problem}", flush=True)
        return 1
    gc.collect()
    gc.freeze()
    gc.disable()  # a collection in the window would be measured as the server's
    print("ready", flush=True)
    zero = float(sys.stdin.readline())
    outcomes = shooter.run(zero)
    Path(outcomes_file).write_bytes(msgspec.msgpack.encode(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
