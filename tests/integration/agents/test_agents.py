"""Codex, Claude Code, opencode and Continue, as they come from npm, through `bay launch` on scripted sessions."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.agents.outside_proxy import OutsideProxy, run_outside_proxy
from tests.integration.agents.scripted_sessions import ANSWER, COUNTED, FILE, LOST, NEW, OLD, SCRIPTS, TASK
from tests.integration.agents.unprivileged_user import AgentUser, make_user
from tests.integration.server.bay_process import BayProcess, run_server

COMMANDS = ("codex", "claude", "opencode", "cn")
# Without a person to ask, each is told that it may write and run: it can do so only as its own user.
ARGUMENTS = {
    "codex": ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK),
    "claude": ("-p", "--dangerously-skip-permissions", TASK),
    "opencode": ("run", TASK),
    "continue": ("-p", "--auto", TASK),
}
# Files of the user's that name another server: they stay as they are, and do not win.
ELSEWHERE = "http://127.0.0.1:9"
OWN_FILES = {
    "codex": (
        ".codex/config.toml",
        f'model = "other"\nmodel_provider = "other"\n[model_providers.other]\nname = "o"\nbase_url = "{ELSEWHERE}"\n',
    ),
    "claude": (
        ".claude/settings.json",
        f'{{"env": {{"ANTHROPIC_BASE_URL": "{ELSEWHERE}", "ANTHROPIC_API_KEY": "other"}}, "model": "other"}}\n',
    ),
    "opencode": (
        ".config/opencode/opencode.json",
        '{"$schema": "https://opencode.ai/config.json", "model": "other/model"}\n',
    ),
    "continue": (
        ".continue/config.yaml",
        f"name: mine\nversion: 1.0.0\nschema: v1\nmodels: [{{name: o, provider: openai, model: o, apiBase: '{ELSEWHERE}'}}]\n",
    ),
}
# opencode always tries to install its plugin package, and works without it.
EXPECTED_HOSTS = {"opencode": ("registry.",)}


@dataclass
class AgentRun:
    user: AgentUser
    server: BayProcess
    outside: OutsideProxy


@pytest.fixture(scope="module")
def run() -> Iterator[AgentRun]:
    with tempfile.TemporaryDirectory(prefix="bay-agents-") as folder, run_outside_proxy() as outside:
        Path(folder).chmod(0o755)
        user = make_user(Path(folder) / "home", COMMANDS)
        models = {name: {"engine": "fake", "fake": script(user.folder)} for name, script in SCRIPTS.items()}
        with run_server(config={"models": models}) as server:
            yield AgentRun(user, server, outside)


@pytest.mark.parametrize("agent", SCRIPTS)
def test_an_agent_reads_edits_runs_and_answers(run: AgentRun, agent: str) -> None:
    user = run.user
    own_file = user.write(*OWN_FILES[agent])
    own_text = own_file.read_text()
    edited, counted = user.write(f"work/{FILE}", f"{OLD}\n"), user.folder / "count.txt"
    counted.unlink(missing_ok=True)
    done = user.launch(
        agent, "-m", agent, "--url", run.server.url, "--", *ARGUMENTS[agent], environ=run.outside.environ
    )
    shown = f"{done.stdout}\n{done.stderr}\n{run.server.read_log()[-3000:]}"
    assert done.returncode == 0 and ANSWER in done.stdout and LOST not in done.stdout, shown
    assert edited.read_text() == f"{NEW}\n", shown
    assert counted.read_text().strip() == COUNTED, shown
    assert own_file.read_text() == own_text
    assert list((user.home / "tmp").glob("bay-launch-*")) == []
    unexpected = [host for host in run.outside.take_hosts() if not host.startswith(EXPECTED_HOSTS.get(agent, ()))]
    assert unexpected == [], shown
