"""One process of the load client: `python -m enginebay.lab.client.process ORDER OUTCOMES`.

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

from enginebay.lab.client.order import Order, Progress
from enginebay.lab.client.priority import before_others
from enginebay.lab.client.shooter import Shooter
from enginebay.open_files import allow_most_open_files


def main(order_file: str, outcomes_file: str) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: who started this process ends it
    allow_most_open_files()
    order = msgspec.msgpack.decode(Path(order_file).read_bytes(), type=Order)
    if order.core is not None:
        os.sched_setaffinity(0, {order.core})
    before_others()
    encode = msgspec.json.Encoder().encode

    def say(progress: Progress) -> None:
        try:
            os.write(1, encode(progress) + b"\n")
        except BrokenPipeError:
            os._exit(1)  # who started this process is gone, and nobody waits for outcomes

    shooter = Shooter(order, say)
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
