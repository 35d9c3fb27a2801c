"""Compare Enginebay's transformers engine with the library's own continuous batching: the same prompts, in turn.

    python -m bench.gpu.transformers_batching.batching_study --out FILE.jsonl [--model FOLDER | --shape NAME] [--seconds 400] [--pairs 5]
                                              [--workloads NAME=ROWSxINPUT+OUTPUT...] [--candidates PATTERN...] [--ways PATTERN...]

Without `--model`, a shape with random weights: Llama-3-8B's. Every way has a process of its own, which keeps its model on the device;
one of them computes at a time. For each workload, every configuration of the library that matches `--candidates` gets a short trial
(all rows, a quarter of the output). Its fastest one and the engine then take turns; the order alternates. What fails or times out is
reported, and the rest goes on. `ours, compiled` needs memory that long texts use up: it ends before the workload `long`.
Prints tok/s, and the ratio of the means with its 95% interval; writes every run and every trial as a JSON line, and a log per way beside
the file. The library is the one on PYTHONPATH, so that another version than the installed one can be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from bench.gpu.model_shapes import SHAPES, make_shape, make_tokenizer
from enginebay.lab.statistics.confidence_intervals import ratio_interval

LIBRARY, OURS, COMPILED = "library", "ours", "ours, compiled"
WAYS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    OURS: ("ours", {}),
    COMPILED: ("ours", {"torch_compile": True}),
    LIBRARY: ("library", {}),
}
_SHARES = {"batch": 2.0, "one": 1.0, "long": 4.0}  # of the time; other names: 1
_LOAD_S, _TURN_S, _TRIAL_S = 100.0, 90.0, 30.0  # limits; a trial: preparation and each of two runs
_MARGIN_S = 10.0  # a child that misses its limit is killed after this
_HOPELESS = 3.0  # a candidate whose first run takes this many times the best one's has no second run
TOLERANCE = 0.15


@dataclass(frozen=True)
class Workload:
    name: str
    rows: int
    input: int
    output: int

    @property
    def size(self) -> dict[str, int]:
        return {"rows": self.rows, "input": self.input, "output": self.output}

    @property
    def trial(self) -> Workload:
        return Workload(self.name, self.rows, self.input, max(1, self.output // 4))


def parse_workload(text: str) -> Workload:
    """Parse `NAME=ROWSxINPUT+OUTPUT`."""
    match = re.fullmatch(r"([^=]+)=(\d+)x(\d+)\+(\d+)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=ROWSxINPUT+OUTPUT")
    return Workload(match[1], *map(int, match.groups()[1:]))


def divide_time(left_s: float, workloads: Sequence[Workload]) -> float:
    """Return the first workload's share of the time."""
    shares = [_SHARES.get(workload.name, 1.0) for workload in workloads]
    return left_s * shares[0] / sum(shares)


def judge_ratio(low: float | None, high: float | None) -> str:
    """Say whether the library's throughput is within the tolerance of ours."""
    if low is not None and low >= 1 - TOLERANCE:
        return "within 15%"
    return "not within 15%" if high is not None and high < 1 - TOLERANCE else "undecided"


class WayFailed(Exception):
    """A way did not answer as it should."""


class WayProcess:
    """One way in its own process. `send` raises `WayFailed`; if the process is of no more use, it is killed."""

    def __init__(self, name: str, python: str, model: Path, device: str, log: Path) -> None:
        kind, settings = WAYS[name]
        command = [
            python,
            "-m",
            "bench.gpu.transformers_batching.batching_ways",
            kind,
            "--model",
            str(model),
            "--device",
            device,
        ]
        with log.open("a") as file:
            self._process = subprocess.Popen(
                [*command, "--settings", json.dumps(settings)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True, start_new_session=True,
            )  # fmt: skip
        self._log = log
        self._replies: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read_replies, daemon=True).start()

    def _read_replies(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._replies.put(line)
        self._replies.put("")

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def receive(self, limit_s: float) -> dict[str, Any]:
        try:
            line = self._replies.get(timeout=max(1.0, limit_s))
        except queue.Empty:
            self.kill()
            raise WayFailed(f"no answer within {limit_s:.0f} s") from None
        if not line:
            self.kill()
            raise WayFailed(f"the process ended: {_read_last_line(self._log)}")
        reply: dict[str, Any] = json.loads(line)
        if reply.get("fatal"):
            self.kill()
        if "error" in reply:
            raise WayFailed(reply["error"])
        return reply

    def send(self, limit_s: float, **command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            print(json.dumps({**command, "limit_s": max(1.0, limit_s)}), file=self._process.stdin, flush=True)
        except OSError:
            raise WayFailed(f"the process has ended: {_read_last_line(self._log)}") from None
        return self.receive(limit_s + _MARGIN_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def _read_last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"


class BatchingComparison:
    """Starts the ways, tries the library's configurations and lets them take turns."""

    def __init__(self, args: argparse.Namespace, model: Path) -> None:
        self._args, self._model = args, model
        self._started = time.monotonic()
        self._deadline: float = self._started + args.seconds
        self._ways: dict[str, WayProcess] = {}
        self._candidates: list[str] = []

    def run(self) -> None:
        try:
            self._load([name for name in WAYS if any(fnmatch(name, pattern) for pattern in self._args.ways)])
            workloads = list(self._args.workloads)
            while workloads:
                self._compare(workloads[0], time.monotonic() + divide_time(self._left_s(), workloads))
                workloads.pop(0)
        finally:
            for way in self._ways.values():
                way.kill()

    def _left_s(self) -> float:
        return self._deadline - time.monotonic()

    def _load(self, names: Sequence[str]) -> None:
        """Start these ways together. One that does not load in time is left out."""
        limit = time.monotonic() + min(_LOAD_S, self._left_s())
        for name in names:
            log = self._args.out.with_suffix(f".{name.replace(', ', '-')}.log")
            self._ways[name] = WayProcess(name, self._args.python, self._model, self._args.device, log)
        for name in names:
            try:
                reply = self._ways[name].receive(limit - time.monotonic())
            except WayFailed as error:
                self._note("failed", way=name, step="load", error=str(error))
                self._ways.pop(name).kill()
                continue
            self._candidates = reply.pop("candidates", None) or self._candidates
            self._note("loaded", way=name, **reply)

    def _compare(self, workload: Workload, until: float) -> None:
        self._note("workload", **asdict(workload))
        if workload.name == "long" and COMPILED in self._ways:
            self._ways.pop(COMPILED).kill()
        self._load([name for name, way in self._ways.items() if not way.is_alive])
        active = list(self._ways)
        if LIBRARY in active and not self._prepare_library(workload, until):
            active.remove(LIBRARY)
        active = [name for name in active if self._run_turn(name, workload, "warm-up", 0, until) is not None]
        self._take_turns(active, workload, until)

    def _prepare_library(self, workload: Workload, until: float) -> bool:
        """Choose the fastest configuration. Return False if there is none."""
        seconds: dict[str, float] = {}
        half = (time.monotonic() + until) / 2  # the rest is for the turns
        for candidate in self._candidates:
            if not any(fnmatch(candidate, pattern) for pattern in self._args.candidates):
                continue
            try:
                if seconds and time.monotonic() > half:
                    raise WayFailed("no time left to try it")
                self._try_candidate(candidate, workload, seconds)
            except WayFailed as error:
                self._note("failed", workload=workload.name, way=LIBRARY, step=candidate, error=str(error))
                if not self._ways[LIBRARY].is_alive:
                    self._load([LIBRARY])
                if LIBRARY not in self._ways:
                    return False
        best = min(seconds, key=seconds.__getitem__, default="")
        try:
            if not best:
                raise WayFailed("no configuration works")
            reply = self._ways[LIBRARY].send(_TURN_S, do="prepare", candidate=best, **workload.size)
        except WayFailed as error:
            self._note("failed", workload=workload.name, way=LIBRARY, step="prepare", error=str(error))
            return False
        self._note("chosen", workload=workload.name, candidate=best, **reply)
        return True

    def _try_candidate(self, candidate: str, workload: Workload, seconds: dict[str, float]) -> None:
        library, trial = self._ways[LIBRARY], workload.trial
        prepared = library.send(_TRIAL_S, do="prepare", candidate=candidate, **trial.size)
        for seed in (-1, -2):
            reply = library.send(_TRIAL_S, do="run", seed=seed, **trial.size)
            if seconds and reply["seconds"] > _HOPELESS * min(seconds.values()):
                break
        seconds[candidate] = reply["seconds"]
        rate = reply["tokens"] / reply["seconds"]
        self._note(
            "trial", workload=workload.name, candidate=candidate, output=trial.output, seconds=reply["seconds"],
            tokens_per_s=rate, prepare_s=prepared["seconds"], config=prepared["config"],
        )  # fmt: skip

    def _take_turns(self, active: list[str], workload: Workload, until: float) -> None:
        if not active:
            return
        rates: dict[str, dict[int, float]] = {name: {} for name in active}
        began = time.monotonic()
        for pair in range(1, self._args.pairs + 1):
            if pair > 1 and time.monotonic() + (time.monotonic() - began) / (pair - 1) > until:
                self._note("failed", workload=workload.name, step=f"pair {pair}", error="no time left")
                break
            for name in active[:: 1 if pair % 2 else -1]:
                rate = self._run_turn(name, workload, "run", pair, until)
                if rate is None:
                    active = [other for other in active if other != name]
                else:
                    rates[name][pair] = rate
        for name in rates:
            if name != LIBRARY and LIBRARY in rates:
                self._note_ratio(workload, name, rates)

    def _run_turn(self, name: str, workload: Workload, event: str, pair: int, until: float) -> float | None:
        """Return tok/s, or None if the way failed."""
        try:
            limit_s = min(_TURN_S, max(until - time.monotonic(), 20.0))
            reply = self._ways[name].send(limit_s, do="run", seed=pair, **workload.size)
        except WayFailed as error:
            self._note("failed", workload=workload.name, way=name, step=f"{event} {pair}", error=str(error))
            return None
        rate: float = reply["tokens"] / reply["seconds"]
        self._note(event, workload=workload.name, way=name, pair=pair, tokens_per_s=rate, **reply)
        return rate

    def _note_ratio(self, workload: Workload, name: str, rates: Mapping[str, Mapping[int, float]]) -> None:
        pairs = sorted(rates[name].keys() & rates[LIBRARY].keys())
        ratio = ratio_interval([rates[name][i] for i in pairs], [rates[LIBRARY][i] for i in pairs]) if pairs else None
        if ratio is None:
            return
        self._note(
            "ratio", workload=workload.name, of=f"{LIBRARY} / {name}", estimate=ratio.estimate, low=ratio.low, high=ratio.high,
            pairs=len(pairs), verdict=judge_ratio(ratio.low, ratio.high),
        )  # fmt: skip

    def _note(self, event: str, **fields: Any) -> None:
        with self._args.out.open("a") as lines:
            lines.write(json.dumps({"event": event, "at_s": time.monotonic() - self._started, **fields}) + "\n")
        shown = (
            f"{key}={value:,.3f}" if isinstance(value, float) else f"{key}={value}" for key, value in fields.items()
        )
        print(f"{time.monotonic() - self._started:6.1f} s  {event:<9} {'  '.join(shown)}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", type=Path, help="a folder with a model; unset: the shape")
    parser.add_argument("--shape", choices=[*SHAPES], default="llama-8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the ways")
    parser.add_argument("--seconds", type=float, default=400.0, help="total time limit")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument(
        "--workloads", nargs="+", type=parse_workload, metavar="NAME=ROWSxINPUT+OUTPUT",
        default=[Workload("batch", 256, 128, 128), Workload("one", 1, 128, 128), Workload("long", 16, 7936, 256)],
    )  # fmt: skip
    parser.add_argument(
        "--candidates", nargs="+", metavar="PATTERN", default=["flash, paged decode", "flash", "sdpa*"],
        help="configurations of the library to try; '*' also tries to compile, which takes a minute or more",
    )  # fmt: skip
    parser.add_argument("--ways", nargs="+", metavar="PATTERN", default=["*"], help=", ".join(WAYS))
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = args.model or make_shape(args.shape, folder, make_tokenizer(folder / "words"))
        BatchingComparison(args, model).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
