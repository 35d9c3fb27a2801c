from __future__ import annotations

import os
import platform
import socket

from enginebay import __version__
from enginebay.lab.store.run_environment import describe_environment


def test_the_host_is_described() -> None:
    found = describe_environment(["H100"])
    assert (found["host"], found["python"], found["enginebay"]) == (
        socket.gethostname(),
        platform.python_version(),
        __version__,
    )
    assert found["gpu"] == ["H100"] and found["cpu"]
    assert 1 <= found["cores"] <= (os.cpu_count() or 1)
    assert found["memory_bytes"] > 1 << 28


def test_only_the_name_and_gpus_of_another_host_are_known() -> None:
    found = describe_environment(["H200"], remote_host="gpu-1")
    assert (found["host"], found["gpu"]) == ("gpu-1", ["H200"]) and not {"cpu", "cores", "memory_bytes"} & set(found)
    assert found["client"]["host"] == socket.gethostname() and found["client"]["cpu"]
