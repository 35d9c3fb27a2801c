"""NVIDIA's driver: missing, or reached from an environment without its package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from enginebay.contract import Load
from enginebay.util import nvml
from enginebay.worker import bootstrap
from enginebay.worker.client_side.worker_process import WorkerLaunch, _build_environment


def test_without_the_package_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.delenv(nvml.FILE_VARIABLE, raising=False)
    with pytest.raises(nvml.NvmlMissing, match="nvidia-ml-py is not installed"):
        nvml.open_nvml()


def test_without_a_driver_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    pynvml = pytest.importorskip("pynvml")

    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    with pytest.raises(nvml.NvmlMissing, match=r"cannot be initialized: .*Not Found"):
        nvml.open_nvml()


def test_a_worker_without_the_package_uses_the_servers(tmp_path: Path) -> None:
    """In an empty environment, as an engine's: only the driver may be missing."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    code = (
        f"import sys; sys.path.insert(0, {str(Path(bootstrap.__file__).parent)!r}); import bootstrap\n"
        "from enginebay.util.nvml import _import_pynvml\n"
        "print(_import_pynvml().__file__, _import_pynvml() is _import_pynvml(), 'pynvml' in sys.modules)"
    )
    command = [str(tmp_path / "venv" / "bin" / "python"), "-c", code]
    launch = WorkerLaunch(Load("x", "a:B", "m", ""), Path(command[0]), tmp_path, tmp_path / "log")
    done = subprocess.run(command, capture_output=True, text=True, env=_build_environment(launch), check=False)
    assert done.stdout.split() == [nvml.find_nvml_file(), "True", "False"], done.stderr
