"""`bay chat` on a terminal: editing, history, several lines, commands, Ctrl-C and Ctrl-D."""

from __future__ import annotations

import os
import pty
import re
import select
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
SCRIPTS = 'script_by_prompt={"first\\nsecond": two lines, "a\\nb": continued, hello: answered, fixed: edited}'
UP, HOME, CTRL_C, CTRL_D = "\x1b[A", "\x01", "\x03", "\x04"


class Terminal:
    """A process with a terminal of its own."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        environ = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "ENGINEBAY_HOME": str(home)}
        command = [sys.executable, "-m", "enginebay.cli.main", "chat", "toy", "-e", "fake", *arguments]
        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, *command],
            stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self._seen = ""

    def wait_for(self, text: str, within_s: float = 90) -> str:
        """Return what was shown up to this text."""
        deadline = time.monotonic() + within_s
        while text not in self._seen:
            left_s = deadline - time.monotonic()
            assert left_s > 0 and select.select([self._ours], [], [], left_s)[0], f"no {text!r} in {self._seen!r}"
            self._read()
        before, _, self._seen = self._seen.partition(text)
        return before

    def _read(self) -> None:
        try:
            received = os.read(self._ours, 4096)
        except OSError:  # the process has ended
            received = b""
        assert received, f"ended with {self._seen!r}"
        self._seen += ESCAPES.sub("", received.decode(errors="replace"))

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def interrupt(self, expected: str) -> None:
        """Press Ctrl-C, and again if it was lost: Python's readline ignores one between showing a prompt and waiting for a key."""
        time.sleep(0.3)
        self.type(CTRL_C)
        try:
            self.wait_for(expected, within_s=10)
        except AssertionError:
            self.type(CTRL_C)
            self.wait_for(expected)

    def leave(self) -> int:
        """Press Ctrl-C at an empty prompt, again if it was lost, and return the exit status."""
        for _ in range(6):
            time.sleep(0.3)
            self.type(CTRL_C)
            self._read_until_end(10)
            if self.process.poll() is not None:
                break
        return self.process.wait(1)

    def wait_end(self) -> int:
        self._read_until_end(60)
        return self.process.wait(60)

    def _read_until_end(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while self.process.poll() is None and time.monotonic() < deadline:
            if select.select([self._ours], [], [], 0.1)[0]:
                try:
                    os.read(self._ours, 4096)
                except OSError:
                    break
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(1)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def terminal(home: Path) -> Iterator[Terminal]:
    opened = Terminal(home, "--set", SCRIPTS)
    try:
        opened.wait_for("/help lists the commands\n")
        opened.wait_for("> ")
        yield opened
    finally:
        opened.close()


def test_lines_are_edited_and_remembered(terminal: Terminal, home: Path) -> None:
    terminal.type(f"ixed{HOME}f\r")
    terminal.wait_for("edited")
    terminal.wait_for("> ")
    terminal.type(f"{UP}\r")
    terminal.wait_for("edited")
    terminal.wait_for("> ")
    terminal.type(CTRL_D)
    assert terminal.wait_end() == 0
    history = home / "chat_history"
    assert history.read_text().split() == ["fixed"] or history.read_text().split() == ["fixed", "fixed"]
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    again = Terminal(home, "--set", SCRIPTS)
    try:
        again.wait_for("> ")
        again.type(f"{UP}\r")
        again.wait_for("edited")
    finally:
        again.close()


def test_messages_of_several_lines(terminal: Terminal) -> None:
    terminal.type('"""first\r')
    terminal.wait_for("... ")
    terminal.type('second"""\r')
    terminal.wait_for("two lines")
    terminal.wait_for("> ")
    terminal.type("/clear\r")
    terminal.wait_for("> ")
    terminal.type("a\\\r")
    terminal.wait_for("... ")
    terminal.type("b\r")
    terminal.wait_for("continued")


def test_commands_are_not_sent(terminal: Terminal) -> None:
    terminal.type("/nope\r")
    terminal.wait_for("unknown command /nope")
    terminal.wait_for("> ")
    terminal.type("/model other\r")
    terminal.wait_for("other on fake")
    terminal.wait_for("> ")
    terminal.type("hello\r")
    terminal.wait_for("answered")
    terminal.wait_for("> ")
    terminal.type("/bye\r")
    assert terminal.wait_end() == 0


def test_ctrl_c_clears_a_line_and_leaves_at_an_empty_one(terminal: Terminal) -> None:
    terminal.type("half a line")
    terminal.wait_for("half a line")
    terminal.interrupt("> ")
    terminal.type('"""several\r')
    terminal.wait_for("... ")
    terminal.interrupt("> ")
    terminal.type("hello\r")
    terminal.wait_for("answered")
    terminal.wait_for("> ")
    assert terminal.leave() == 0


def test_ctrl_c_stops_an_answer(home: Path) -> None:
    terminal = Terminal(home, "--ignore-eos", "--max-tokens", "2000", "--set", "step_s=0.05", "--no-history")
    try:
        terminal.wait_for("> ")
        terminal.type("x\r")
        terminal.wait_for("x\n")
        time.sleep(1.0)  # a few tokens
        terminal.type(CTRL_C)
        terminal.wait_for("(stopped)")
        terminal.wait_for("> ")
        assert terminal.leave() == 0
        assert not (home / "chat_history").exists()
    finally:
        terminal.close()


def test_an_unknown_adapter_is_refused_before_the_model_loads(home: Path) -> None:
    command = [sys.executable, "-m", "enginebay.cli.main"]
    for words in (("chat", "toy"), ("run", "toy", "hi")):
        done = subprocess.run(
            [*command, *words, "-e", "fake", "--lora", "nope", "--set", "fail_load=crash"],
            capture_output=True, text=True, timeout=60, env={**os.environ, "ENGINEBAY_HOME": str(home)}, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 2 and done.stderr.startswith("bay: toy has no LoRA adapter 'nope'"), done.stderr
