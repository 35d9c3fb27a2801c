"""Worker processes start, fail and die, and leave nothing behind."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from enginebay.contract import Delta, GenerateRequest, Load, Sampling
from enginebay.errors import Draining, EngineFailed, LoadFailed, OutOfMemory, WorkerDied
from enginebay.meters.devices.proc_files import list_process_tree
from enginebay.util.paths import runtime_dir
from enginebay.worker import bootstrap
from enginebay.worker.client_side import worker_process as process_module
from enginebay.worker.client_side.worker_client import WorkerClient
from enginebay.worker.client_side.worker_process import WorkerLaunch, WorkerProcess

ENDLESS = GenerateRequest(token_ids=tuple(b"hello"), sampling=Sampling(ignore_eos=True, max_tokens=4000))


@pytest.fixture(autouse=True)
def _private(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hide the workers of other programs. The path is short because sockets are created there."""
    with tempfile.TemporaryDirectory(prefix="bay") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield


@pytest.fixture
def launch(tmp_path: Path) -> Callable[..., WorkerLaunch]:
    def make(**settings: Any) -> WorkerLaunch:
        load = Load("fake", "enginebay.engines.fake.engine:FakeEngine", "toy", "", settings)
        return WorkerLaunch(load, Path(sys.executable), runtime_dir(), tmp_path / "worker.log")

    return make


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] != "Z"
    except OSError:
        return False


async def _gone(condition: Callable[[], object], within_s: float = 30.0) -> bool:
    deadline = time.monotonic() + within_s
    while condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True


async def _first_token(client: WorkerClient) -> asyncio.Task[None]:
    """A request that runs until something ends it."""
    started = asyncio.Event()

    async def consume() -> None:
        async for event in client.generate(ENDLESS):
            if isinstance(event, Delta):
                started.set()

    task = asyncio.create_task(consume())
    await asyncio.wait_for(started.wait(), 30)
    return task


async def test_the_socket_is_private_and_gone_afterwards(launch: Callable[..., WorkerLaunch]) -> None:
    process = await WorkerProcess.start(launch())
    directory, pids = process.directory, list_process_tree(process.pid)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(directory.parent.stat().st_mode) == 0o700
    assert len(str(directory / "s")) < 100
    await process.close(grace_s=30)
    assert process.returncode == 0
    assert not directory.exists()
    assert await _gone(lambda: any(map(_alive, pids)))


async def test_a_killed_worker_gives_a_clear_error_with_its_log_tail(launch: Callable[..., WorkerLaunch]) -> None:
    process = await WorkerProcess.start(launch(step_s=0.01))
    client = WorkerClient(process.address, process.build_death_error)
    running = await _first_token(client)
    with process.launch.log.open("a") as log:
        log.write("these were its last words\n")
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="SIGKILL") as death:
        await running
    assert "these were its last words" in death.value.hint
    with pytest.raises(WorkerDied):
        async for _ in client.generate(ENDLESS):
            pass
    assert await _gone(process.directory.exists), "the guard did not clean up"
    await client.close()
    await process.close()


async def test_a_crash_in_the_engine_is_reported(launch: Callable[..., WorkerLaunch]) -> None:
    process = await WorkerProcess.start(launch(crash_after_tokens=20, step_s=0.005))
    client = WorkerClient(process.address, process.build_death_error)
    with pytest.raises(WorkerDied, match="SIGSEGV") as death:
        async for _ in client.generate(ENDLESS):
            pass
    assert "crash_after_tokens is 20" in death.value.hint
    await client.close()
    await process.close()


async def test_a_parent_that_cannot_accept_fails_at_once(
    launch: Callable[..., WorkerLaunch], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def accept(_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_accept", accept)
    with pytest.raises(LoadFailed, match="Too many open files"):
        await asyncio.wait_for(WorkerProcess.start(launch()), 60)
    assert list(runtime_dir().iterdir()) == []


async def test_a_worker_that_cannot_be_killed_is_abandoned(
    launch: Callable[..., WorkerLaunch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stuck in the kernel, on a device or a disk. `close` gives up on it."""
    monkeypatch.setattr(process_module, "_KILL_TIMEOUT_S", 0.2)
    process = await WorkerProcess.start(launch())

    async def never() -> int:
        await asyncio.Event().wait()
        return 0

    monkeypatch.setattr(process._process, "wait", never)
    await asyncio.wait_for(process.close(grace_s=0), 30)
    assert not process.directory.exists()
    assert f"process {process.pid} was killed but does not exit" in process.launch.log.read_text()


async def test_one_failing_request_does_not_harm_the_worker(launch: Callable[..., WorkerLaunch]) -> None:
    process = await WorkerProcess.start(launch(fail_after_tokens=5))
    client = WorkerClient(process.address, process.build_death_error)
    with pytest.raises(EngineFailed):
        async for _ in client.generate(ENDLESS):
            pass
    short = replace(ENDLESS, sampling=Sampling(max_tokens=3, ignore_eos=True))
    assert len([event async for event in client.generate(short)]) == 5
    await client.close()
    await process.close()


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("error", LoadFailed, "fail_load is error"),
        ("out_of_memory", OutOfMemory, "not enough memory"),
        ("crash", LoadFailed, "SIGSEGV"),
    ],
)
async def test_a_failed_load_is_one_clear_error(
    launch: Callable[..., WorkerLaunch], how: str, error: type[Exception], words: str
) -> None:
    before = set(runtime_dir().iterdir())
    with pytest.raises(error, match=words):
        await WorkerProcess.start(launch(fail_load=how))
    assert set(runtime_dir().iterdir()) <= before


async def test_a_load_that_hangs_ends_at_its_deadline(launch: Callable[..., WorkerLaunch]) -> None:
    before = set(runtime_dir().iterdir())
    with pytest.raises(LoadFailed, match="within 2 s"):
        await WorkerProcess.start(launch(fail_load="hang"), timeout_s=2)
    assert set(runtime_dir().iterdir()) <= before


async def test_cancelling_a_load_leaves_nothing(launch: Callable[..., WorkerLaunch]) -> None:
    before, others = set(runtime_dir().iterdir()), set(list_process_tree(os.getpid()))
    starting = asyncio.create_task(WorkerProcess.start(launch(load_s=30)))
    children: list[int] = []

    def none() -> bool:
        found = set(list_process_tree(os.getpid())) - others
        children[:] = [pid for pid in found if "serve" in Path(f"/proc/{pid}/cmdline").read_text()]
        return not children

    assert await _gone(none), "no worker was started"
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert await _gone(lambda: any(map(_alive, children)))
    assert set(runtime_dir().iterdir()) <= before


PARENT = """
    import asyncio, sys
    from pathlib import Path
    from enginebay.contract import Load
    from enginebay.util.paths import runtime_dir
    from enginebay.worker.client_side.worker_process import WorkerLaunch, WorkerProcess

    async def main():
        load = Load("fake", "enginebay.engines.fake.engine:FakeEngine", "toy", "", {"load_s": float(sys.argv[2])})
        start = WorkerProcess.start(WorkerLaunch(load, Path(sys.executable), runtime_dir(), Path(sys.argv[1])))
        task = asyncio.create_task(start)
        await asyncio.sleep(0.7)
        if float(sys.argv[2]) == 0:
            await task
        print("up", flush=True)
        await asyncio.sleep(60)

    asyncio.run(main())
"""


@pytest.mark.parametrize("load_s", [0, 30], ids=["serving", "loading"])
@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM])
async def test_the_worker_ends_when_its_parent_dies(tmp_path: Path, death: signal.Signals, load_s: int) -> None:
    before = set(runtime_dir().iterdir())
    arguments = [sys.executable, "-c", textwrap.dedent(PARENT), str(tmp_path / "log"), str(load_s)]
    parent = subprocess.Popen(arguments, stdout=subprocess.PIPE)
    assert parent.stdout is not None and parent.stdout.readline() == b"up\n"
    assert await _gone(lambda: not list_process_tree(parent.pid)[1:]), "no worker was started"
    children = list_process_tree(parent.pid)[1:]
    parent.send_signal(death)
    parent.wait(30)
    parent.stdout.close()
    assert await _gone(lambda: any(map(_alive, children))), "a worker outlived its parent"
    assert await _gone(lambda: not set(runtime_dir().iterdir()) <= before), "a socket directory was left behind"


async def test_a_stopped_worker_ends_with_its_parent(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", textwrap.dedent(PARENT), str(tmp_path / "log"), "0"]
    parent = subprocess.Popen(arguments, stdout=subprocess.PIPE)
    assert parent.stdout is not None and parent.stdout.readline() == b"up\n"
    worker = next(one for one in list_process_tree(parent.pid)[1:] if os.getpgid(one) == one)
    os.kill(worker, signal.SIGSTOP)
    parent.kill()
    parent.wait(30)
    parent.stdout.close()
    assert await _gone(lambda: _alive(worker)), "a stopped worker outlived its parent"


@pytest.mark.parametrize("how", ["serve", "standby"])
def test_a_worker_whose_parent_died_first_leaves_nothing(how: str, tmp_path: Path) -> None:
    directory = tmp_path / "w1-1"
    directory.mkdir()
    (directory / "c").touch()  # nobody listens there any more
    engine = ["enginebay.engines.fake.engine:FakeEngine"] if how == "standby" else []
    worker = [sys.executable, str(bootstrap.__file__), how, str(directory), *engine]
    done = subprocess.run(worker, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr, directory.exists()) == (0, b"", False)


async def test_health_and_reflection_answer(launch: Callable[..., WorkerLaunch]) -> None:
    import grpc.aio
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    process = await WorkerProcess.start(launch())
    async with grpc.aio.insecure_channel(process.address) as channel:
        service = "enginebay.worker.v1.Worker"
        status = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
        assert status.status == health_pb2.HealthCheckResponse.SERVING
        asks = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        replies = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(asks)
        names = [one.name async for reply in replies for one in reply.list_services_response.service]
        assert service in names
    await process.close()


async def test_a_closed_client_takes_no_requests(launch: Callable[..., WorkerLaunch]) -> None:
    """It raises at once: a request would otherwise wait forever."""
    worker = await WorkerProcess.start(launch())
    try:
        client = WorkerClient(worker.address)
        await client.close()
        with pytest.raises(Draining):
            async with asyncio.timeout(30):
                async for _ in client.generate(ENDLESS):
                    pass
    finally:
        await worker.close()


@pytest.mark.parametrize("standby", [False, True])
async def test_a_worker_gets_no_secrets_of_the_server(
    launch: Callable[..., WorkerLaunch], monkeypatch: pytest.MonkeyPatch, standby: bool
) -> None:
    for name in ("HF_TOKEN", "ENGINEBAY_ADMIN_KEY", "AWS_SECRET_ACCESS_KEY", "SOME_VARIABLE", "THEIRS_API_KEY"):
        monkeypatch.setenv(name, "secret")
    for name in ("OMP_NUM_THREADS", "THEIRS_MODE"):
        monkeypatch.setenv(name, "3")
    plan = replace(launch(), env_prefixes=("THEIRS_",), variables={"MINE": "value"})
    worker = await (WorkerProcess.start_standby(plan) if standby else WorkerProcess.start(plan))
    try:
        inherited = psutil.Process(worker.pid).environ()
    finally:
        await worker.close()
    assert "secret" not in inherited.values()
    wanted = {"OMP_NUM_THREADS": "3", "THEIRS_MODE": "3", "MINE": "value", "PATH": os.environ["PATH"]}
    assert wanted.items() <= inherited.items()


async def test_an_aborted_load_is_one_clear_error(launch: Callable[..., WorkerLaunch], tmp_path: Path) -> None:
    """As libraries do for a damaged file."""
    (tmp_path / "aborting.py").write_text(
        "import os\n\nclass Engine:\n    def __init__(self, load):\n        os.abort()\n"
    )
    plan = launch()
    load = replace(plan.load, engine="aborting:Engine", path="/models/damaged.gguf")
    plan = replace(plan, load=load, environment={"PYTHONPATH": str(tmp_path)})
    with pytest.raises(LoadFailed, match=r"the fake worker exited while loading toy \(signal SIGABRT\)") as caught:
        await WorkerProcess.start(plan)
    assert str(plan.log) in caught.value.hint
