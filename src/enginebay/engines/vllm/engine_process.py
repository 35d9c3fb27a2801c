"""Start vLLM's engine process, and measure the memory of all its processes."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from enginebay.engines.cpu_cores import list_physical_cores
from enginebay.engines.vllm.load_plan import VllmLoadPlan
from enginebay.engines.vllm.patches import continued_requests, declarations, forked_start, mixed_graphs
from enginebay.engines.vllm.patches.compatibility import PatchSelection
from enginebay.engines.vllm.patches.load_log import LoadLog

_PR_SET_PDEATHSIG = 1


class EngineStartFailed(Exception):
    """The engine process did not start. `kind` and `text` describe the first error in any of its processes."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text


def create_config(plan: VllmLoadPlan) -> Any:
    """Build vLLM's config from the engine arguments."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    os.environ.update(plan.environment)
    with _override_environment(VLLM_ENABLE_V1_MULTIPROCESSING="0") if plan.single_process else contextlib.nullcontext():
        # vLLM picks the default batch size by usage context; without one it picks the smallest.
        config = AsyncEngineArgs(**plan.arguments).create_engine_config(UsageContext.OPENAI_API_SERVER)
    choose_constraint_library(config.structured_outputs_config)
    return config


def choose_constraint_library(structured_outputs: Any) -> None:
    """Replace `auto`: an engine process has one library for constraints, and with `auto` the first constrained request
    chooses it for all. Every request that needs another one would then fail, or lose a part of its constraint."""
    if structured_outputs.backend == "auto":
        structured_outputs.backend = "xgrammar"


def start_engine(config: Any, plan: VllmLoadPlan, patches: PatchSelection, load_log: LoadLog) -> Any:
    """Start an AsyncLLM and its engine process. Raises `EngineStartFailed`."""
    requested = str(patches.settings.get("start_method") or "auto")
    method = "spawn"
    # Only a spawned process reads how threads are bound.
    bound = "VLLM_CPU_OMP_THREADS_BIND" in plan.environment and requested == "auto"
    if not bound and patches.applies(declarations.FORKED_START):
        method = forked_start.choose_start_method(requested)
    try:
        return _start_once(config, plan, method, patches, load_log)
    except EngineStartFailed as failure:
        if method == "spawn" or requested == "fork" or not _should_retry_spawned(failure):
            raise
        logging.getLogger(__name__).warning(
            "vLLM did not start when forked (%s); retrying with spawn, without mixed_graphs", failure
        )
        return _start_once(config, plan, "spawn", patches, load_log)


def _start_once(config: Any, plan: VllmLoadPlan, method: str, patches: PatchSelection, load_log: LoadLog) -> Any:
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.executor import Executor

    environment = {forked_start.START_METHOD_VARIABLE: method, **_build_cpu_environment(config, plan, method)}
    mixed_graphs.disable()
    if plan.mixed_graphs and method == "fork":
        mixed_graphs.enable(config, patches)
    plan.continued_requests = method == "fork" and patches.applies(declarations.CONTINUED_REQUESTS)
    if plan.continued_requests:
        continued_requests.install()
    with_stats = patches.applies(declarations.SCHEDULER_STATS)
    try:
        with _override_environment(**environment), _kill_children_with_parent(), load_log.capture():
            # log_stats makes the engine process send its statistics; `SchedulerStatsReader` turns off the rest.
            llm = AsyncLLM(config, Executor.get_class(config), log_stats=with_stats, log_requests=False)
    except Exception as error:
        raise EngineStartFailed(*(load_log.find_first_error() or (type(error).__name__, str(error)))) from error
    plan.mixed_graphs = mixed_graphs.has_taken_effect()
    if refusal := mixed_graphs.get_refusal():
        patches.warn(declarations.MIXED_GRAPHS, refusal)
    return llm


def _should_retry_spawned(failure: EngineStartFailed) -> bool:
    """Return whether a spawned process might succeed: the forked one died without a cause, or another process freed
    GPU memory while vLLM profiled it."""
    lowered = failure.text.lower()
    return "fork" in lowered or "engine core initialization failed" in lowered or "error in memory profiling" in lowered


def _build_cpu_environment(config: Any, plan: VllmLoadPlan, method: str) -> dict[str, str]:
    """Return variables that share all allowed cores among the ranks. By default vLLM reserves one core per rank."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return {}
    import torch

    cores = list_physical_cores()
    share = max(1, len(cores) // plan.world_size)
    if plan.arguments.get("enforce_eager"):
        torch.compiler.set_stance("force_eager")  # compiling a logprobs kernel costs the first such request 20 s
    environment = {"TORCH_COMPILE_DISABLE": "1"} if plan.arguments.get("enforce_eager") else {}
    if method == "fork":
        torch.set_num_threads(share)  # OpenMP has already read its environment
    else:
        environment["OMP_NUM_THREADS"] = str(share)
    if "VLLM_CPU_OMP_THREADS_BIND" not in os.environ:
        groups = [cores[rank * share : (rank + 1) * share] or cores for rank in range(plan.world_size)]
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(",".join(map(str, group)) for group in groups)
        environment["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"
    return environment


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
    """Send SIGKILL to every process forked from now on, and to its children, when its parent ends.

    vLLM's own processes would survive otherwise.
    """
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


def measure_used_bytes() -> int:
    """Return the memory of this process and vLLM's: resident memory, plus GPU memory if the driver reports it."""
    import psutil  # type: ignore[import-untyped, unused-ignore]

    me = psutil.Process()
    processes = [me, *me.children(recursive=True)]
    return sum(map(_read_resident_bytes, processes)) + _read_gpu_bytes({process.pid for process in processes})


def _read_resident_bytes(process: Any) -> int:
    """Return resident bytes. Counts pages shared by forked processes once, if the system reports that."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):
        pass
    try:
        return int(process.memory_info().rss)
    except Exception:  # the process may have exited
        return 0


def _read_gpu_bytes(pids: set[int]) -> int:
    """Return GPU memory through NVML, which creates no CUDA context in this process."""
    from vllm.platforms import current_platform

    if not current_platform.is_cuda():
        return 0
    from vllm.third_party import pynvml

    total = 0
    try:
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            total += sum(process.usedGpuMemory or 0 for process in running if process.pid in pids)
    except pynvml.NVMLError:
        return total
    return total
