"""What the model says in each agent's session: read a file, edit it, run a command, answer.

A turn's condition is text that only the tool of the turn before can have printed: if an agent did not run it, or the
server lost its result, the session ends with `LOST` and the test fails.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

FILE, OLD, NEW = "greeting.txt", "Hello, old world.", "Hello, new world."
TASK = f"Make the greeting in {FILE} new and count its words."
COMMAND = f"printf 'counted: %s words\\n' $(wc -w < {FILE}) | tee count.txt"
COUNTED = "counted: 3 words"
ANSWER = "The greeting is new, and it has three words."
LOST = "The script has no rule for this."
PATCH = f"apply_patch <<'EOF'\n*** Begin Patch\n*** Update File: {FILE}\n@@\n-{OLD}\n+{NEW}\n*** End Patch\nEOF\n"

Call = tuple[str, dict[str, Any]]


def script_session(read: Call, edit: Call, run: Call) -> dict[str, Any]:
    """Return the settings of a fake engine that plays the session with these calls."""
    rules = [
        {"tool_offered": "", "text": "A new greeting"},  # for requests beside the session, such as one for its title
        {"turn": 1, "tool_offered": read[0], **_call(read)},
        {"turn": 2, "after_tool": read[0], "prompt_contains": OLD, **_call(edit)},
        {"turn": 3, "after_tool": edit[0], **_call(run)},
        {"turn": 4, "after_tool": run[0], "prompt_contains": COUNTED, "text": ANSWER},
    ]
    return {"script_rules": rules, "script": LOST, "context_length": 400_000}  # tokens are bytes


def _call(call: Call) -> dict[str, Any]:
    name, arguments = call
    return {"call": {"name": name, "arguments": arguments}}


def script_codex(folder: Path) -> dict[str, Any]:
    shell = "exec_command"
    return script_session((shell, {"cmd": f"cat {FILE}"}), (shell, {"cmd": PATCH}), (shell, {"cmd": COMMAND}))


def script_claude(folder: Path) -> dict[str, Any]:
    path = str(folder / FILE)
    return script_session(
        ("Read", {"file_path": path}),
        ("Edit", {"file_path": path, "old_string": OLD, "new_string": NEW}),
        ("Bash", {"command": COMMAND, "description": "Counts the words"}),
    )


def script_opencode(folder: Path) -> dict[str, Any]:
    path = str(folder / FILE)
    return script_session(
        ("read", {"filePath": path}),
        ("edit", {"filePath": path, "oldString": OLD, "newString": NEW}),
        ("bash", {"command": COMMAND, "description": "Counts the words"}),
    )


def script_continue(folder: Path) -> dict[str, Any]:
    path = str(folder / FILE)
    return script_session(
        ("Read", {"filepath": path}),
        ("Edit", {"file_path": path, "old_string": OLD, "new_string": NEW}),
        ("Bash", {"command": COMMAND}),
    )


SCRIPTS = {
    "codex": script_codex,
    "claude": script_claude,
    "opencode": script_opencode,
    "continue": script_continue,
}
