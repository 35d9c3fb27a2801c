"""Starting vLLM's engine process: forked when that is safe, since a spawned one imports everything again."""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

from enginebay.engines.cpu_cores import list_physical_cores
from enginebay.engines.vllm import library
from enginebay.engines.vllm.load_plan import VllmLoadPlan
from enginebay.engines.vllm.patches import mixed_graphs
from enginebay.engines.vllm.patches.load_log import is_phase_line, parse_phases

_START_METHOD_VARIABLE = "VLLM_WORKER_MULTIPROC_METHOD"
_PR_SET_PDEATHSIG = 1


class EngineStartFailed(Exception):
    """The engine process did not come up. `kind` and `text` are of the first error in any of its processes."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text


def create_config(plan: VllmLoadPlan) -> Any:
    """vLLM's own config, from the engine arguments."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    os.environ.update(plan.environment)
    with _override_environment(VLLM_ENABLE_V1_MULTIPROCESSING="0") if plan.single_process else contextlib.nullcontext():
        # By this word vLLM knows the batch that suits the device; without it, it takes the smallest one.
        return AsyncEngineArgs(**plan.arguments).create_engine_config(UsageContext.OPENAI_API_SERVER)


def start_engine(config: Any, plan: VllmLoadPlan, method: str, load_log: LoadLog) -> Any:
    """An AsyncLLM whose engine process is up. Raises `StartFailed`."""
    bound = "VLLM_CPU_OMP_THREADS_BIND" in plan.environment  # only a spawned process reads where its threads belong
    chosen = "spawn" if bound and method == "auto" else choose_start_method(method)
    try:
        return _start_once(config, plan, chosen, load_log)
    except EngineStartFailed as failure:
        if chosen == "spawn" or method == "fork" or not _should_retry_spawned(failure):
            raise
        logging.getLogger(__name__).warning(
            "vLLM did not start when forked (%s); spawning it, without mixed_graphs", failure
        )
        return _start_once(config, plan, "spawn", load_log)


def choose_start_method(requested: str) -> str:
    """fork where no thread and no CUDA context would be copied half, else spawn."""
    if requested != "auto":
        return requested
    if threading.active_count() > 1 or not hasattr(os, "fork") or sys.platform == "darwin":
        return "spawn"
    import torch

    return "spawn" if torch.cuda.is_initialized() else "fork"


def _start_once(config: Any, plan: VllmLoadPlan, method: str, load_log: LoadLog) -> Any:
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.executor import Executor

    environment = {_START_METHOD_VARIABLE: method, **_build_cpu_environment(config, plan, method)}
    mixed_graphs.disable()
    if plan.mixed_graphs and method == "fork":
        _enable_mixed_graphs(config, plan)
    try:
        with _override_environment(**environment), _kill_children_with_parent(), load_log.capture():
            # With statistics, so that the engine process tells them; `StepStats` ends what this process would count.
            llm = AsyncLLM(config, Executor.get_class(config), log_stats=True, log_requests=False)
    except Exception as error:
        raise EngineStartFailed(*(load_log.find_first_error() or (type(error).__name__, str(error)))) from error
    plan.mixed_graphs = method == "fork" and mixed_graphs.has_taken_effect()
    return llm


def _enable_mixed_graphs(config: Any, plan: VllmLoadPlan) -> None:
    """Have an engine process forked from here on record mixed steps as CUDA graphs, where that means something."""
    if config.model_config.enforce_eager or not mixed_graphs.is_supported_config(config):
        return
    from vllm.v1.worker.gpu import cudagraph_utils

    reason = mixed_graphs.find_incompatibility(cudagraph_utils, library.get_version())
    if reason is None:
        mixed_graphs.install(cudagraph_utils)
    else:
        plan.warnings.append(f"mixed_graphs: {reason}; steps with prompts are launched as vLLM does, which is slower")


def _should_retry_spawned(failure: EngineStartFailed) -> bool:
    """A model that cannot be loaded fails in a spawned process too. One that just vanished might not, nor one that was
    measuring the GPU's free memory while another process gave some back."""
    low = failure.text.lower()
    return "fork" in low or "engine core initialization failed" in low or "error in memory profiling" in low


def _build_cpu_environment(config: Any, plan: VllmLoadPlan, method: str) -> dict[str, str]:
    """All the cores this process may use, shared by the ranks; vLLM alone would keep one back for each rank."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return {}
    import torch

    cores = list_physical_cores()
    share = max(1, len(cores) // plan.world_size)
    if plan.arguments.get("enforce_eager"):
        torch.compiler.set_stance("force_eager")  # a compiled logprobs kernel cost the first such request 20 s
    found = {"TORCH_COMPILE_DISABLE": "1"} if plan.arguments.get("enforce_eager") else {}
    if method == "fork":
        torch.set_num_threads(share)  # sized here, first used in the child: OpenMP has read its environment long ago
    else:
        found["OMP_NUM_THREADS"] = str(share)
    if "VLLM_CPU_OMP_THREADS_BIND" not in os.environ:
        groups = [cores[rank * share : (rank + 1) * share] or cores for rank in range(plan.world_size)]
        found["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(",".join(map(str, group)) for group in groups)
        found["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"
    return found


class LoadLog:
    """What vLLM logs of exceptions and of times taken, in whichever forked process, where this one can read it.

    Taken by the record factory, since vLLM sets its log handlers anew while it starts. The file has no name, so that
    nothing is left behind; a process that was spawned does not know it, and what it says is only in the log.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (it lives as long as the engine)

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Take notes here, and for good in every process forked meanwhile."""
        make = logging.getLogRecordFactory()

        def note_and_make(*args: Any, **kwargs: Any) -> logging.LogRecord:
            record = make(*args, **kwargs)
            self._record(record)
            return record

        os.ftruncate(self._file.fileno(), 0)
        self._file.seek(0)
        logging.setLogRecordFactory(note_and_make)
        try:
            yield
        finally:
            logging.setLogRecordFactory(make)

    def find_first_error(self) -> tuple[str, str] | None:
        """Class name and message of the first exception."""
        return next(((kind, text) for _, kind, text in self._read_entries() if kind), None)

    def read_phases(self) -> dict[str, float]:
        """Seconds that parts of the load took, as far as they were told."""
        return parse_phases((process, text) for process, kind, text in self._read_entries() if not kind)

    def _record(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and record.levelno >= logging.ERROR:
            self._write(type(error).__name__, str(error)[:2000])
        elif record.levelno == logging.INFO and record.name.startswith("vllm"):
            with contextlib.suppress(Exception):  # a line that cannot be put together is its writer's concern
                line = record.getMessage()
                if is_phase_line(line):
                    self._write("", line[:500])

    def _write(self, kind: str, text: str) -> None:
        os.write(self._file.fileno(), json.dumps([os.getpid(), kind, text]).encode() + b"\n")

    def _read_entries(self) -> list[tuple[int, str, str]]:
        found: list[tuple[int, str, str]] = []
        for line in os.pread(self._file.fileno(), 100_000, 0).splitlines():
            with contextlib.suppress(ValueError):  # the last one may be cut
                process, kind, text = json.loads(line)
                found.append((int(process), str(kind), str(text)))
        return found


@contextlib.contextmanager
def _override_environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


_forking = False
_hooked = False


@contextlib.contextmanager
def _kill_children_with_parent() -> Iterator[None]:
    """Every process forked from here on, and by those, gets SIGKILL when its parent ends: vLLM's would live on."""
    global _forking, _hooked
    if not _hooked and sys.platform == "linux":
        os.register_at_fork(after_in_child=_set_parent_death_signal)
        _hooked = True
    _forking = True
    try:
        yield
    finally:
        _forking = False


def _set_parent_death_signal() -> None:
    if _forking:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
