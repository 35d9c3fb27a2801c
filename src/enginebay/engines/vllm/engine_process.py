"""Start vLLM's engine process. Forks when that is safe, because a spawned process imports everything again."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from enginebay.engines.cpu_cores import list_physical_cores
from enginebay.engines.vllm import library
from enginebay.engines.vllm.load_plan import VllmLoadPlan
from enginebay.engines.vllm.patches import mixed_graphs
from enginebay.engines.vllm.patches.load_log import LoadLog

_START_METHOD_VARIABLE = "VLLM_WORKER_MULTIPROC_METHOD"
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
        return AsyncEngineArgs(**plan.arguments).create_engine_config(UsageContext.OPENAI_API_SERVER)


def start_engine(config: Any, plan: VllmLoadPlan, method: str, load_log: LoadLog) -> Any:
    """Start an AsyncLLM and its engine process. Raises `EngineStartFailed`."""
    bound = "VLLM_CPU_OMP_THREADS_BIND" in plan.environment  # only a spawned process reads it
    chosen = "spawn" if bound and method == "auto" else choose_start_method(method)
    try:
        return _start_once(config, plan, chosen, load_log)
    except EngineStartFailed as failure:
        if chosen == "spawn" or method == "fork" or not _should_retry_spawned(failure):
            raise
        logging.getLogger(__name__).warning(
            "vLLM did not start when forked (%s); retrying with spawn, without mixed_graphs", failure
        )
        return _start_once(config, plan, "spawn", load_log)


def choose_start_method(requested: str) -> str:
    """Return "fork" if this process has one thread and no CUDA context, else "spawn"."""
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
            # log_stats makes the engine process send its statistics; `SchedulerStatsReader` turns off the rest.
            llm = AsyncLLM(config, Executor.get_class(config), log_stats=True, log_requests=False)
    except Exception as error:
        raise EngineStartFailed(*(load_log.find_first_error() or (type(error).__name__, str(error)))) from error
    plan.mixed_graphs = method == "fork" and mixed_graphs.has_taken_effect()
    return llm


def _enable_mixed_graphs(config: Any, plan: VllmLoadPlan) -> None:
    """Make engine processes forked from now on capture mixed steps as CUDA graphs, if the config allows it."""
    if config.model_config.enforce_eager or not mixed_graphs.is_supported_config(config):
        return
    from vllm.v1.worker.gpu import cudagraph_utils

    reason = mixed_graphs.find_incompatibility(cudagraph_utils, library.get_version())
    if reason is None:
        mixed_graphs.install(cudagraph_utils)
    else:
        plan.warnings.append(f"mixed_graphs: {reason}; steps with prompts run vLLM's default way, which is slower")


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
