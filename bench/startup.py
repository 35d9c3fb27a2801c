"""Time `bay --help`, and `bay run smollm2 "hi"` up to the first byte of the response.

    make bench-start

Targets: help under 0.2 s, the first token within 3 s once the model is downloaded. Medians of several runs.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

BAY = str(Path(sys.executable).with_name("bay"))


def time_help() -> float:
    started = time.perf_counter()
    subprocess.run([BAY, "--help"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def time_first_token() -> float:
    started = time.perf_counter()
    command = [BAY, "run", "smollm2", "hi", "--max-tokens", "8"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        waited = time.perf_counter() - started
        process.stdout.read()
    if not first or process.returncode:
        raise SystemExit("bay run printed no response")
    return waited


def report(name: str, times: list[float], target_s: float) -> bool:
    median = statistics.median(times)
    met = median < target_s
    spread = f"{min(times):.2f} to {max(times):.2f}"
    print(
        f"{name:<28}{median:>7.2f} s   ({spread}, {len(times)} runs)   under {target_s} s: {'met' if met else 'MISSED'}"
    )
    return met


if __name__ == "__main__":
    time_first_token()  # downloads the model, fills the caches
    good = report("bay --help", [time_help() for _ in range(11)], 0.2)
    good &= report("bay run, first token", [time_first_token() for _ in range(7)], 3.0)
    sys.exit(0 if good else 1)
