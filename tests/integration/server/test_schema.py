"""Requests made from the published OpenAPI document, right ones and wrong ones: the server answers as the document says.

Schemathesis makes them: the document's examples, each field at its borders and beyond, then random ones. The same
requests every time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.integration.server.bay_process import BayProcess, run_server

ROOT = Path(__file__).parents[3]
RANDOM_PER_OPERATION = 60
# Left out: that every request which fits the document is accepted. What one field allows another, and what a model has
# room for, is beyond a schema: stream_options without stream, a tool_choice that names no tool, max_tokens over the
# context, arguments that are text but not JSON, a constraint that this engine cannot keep. In its place a check of our own
# (schema_checks) sees to it that each refusal names the field.
LEFT_OUT = "positive_data_acceptance"
ENDPOINTS = (
    "chat", "completions", "responses", "messages", "embeddings", "tokenize", "detokenize",
    "ollama.chat", "ollama.generate", "ollama.embed", "ollama.embeddings", "ollama.show",
)  # fmt: skip
# Models come and go meanwhile, and the configuration is read again: the other endpoints answer all the same.
ORDERS = ("load", "sleep", "unload", "switch", "logs", "adapters", "upgrade")
UNCONDITIONAL_ORDERS = ("ps", "switches", "reload", "load", "unload")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BayProcess]:
    """Answers are short, so that there is time for many."""
    adapter = tmp_path_factory.mktemp("adapter")
    text = {"engine": "fake", "loras": {"tiny": str(adapter)}, "fake": {"context_length": 512}}
    config: dict[str, object] = {
        "sampling": {"max_tokens": 8},
        "models": {"text": text, "vectors": {"engine": "fake", "task": "embed"}},
        "server": {"log_format": "json"},
    }
    with run_server(config=config) as running:
        yield running


@pytest.mark.slow
def test_answers_are_as_the_document_says(server: BayProcess, tmp_path: Path) -> None:
    run = subprocess.run(
        [
            sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--no-color",
            "--checks", "all", "--exclude-checks", LEFT_OUT, "--mode", "all",
            "--generation-deterministic", "--max-examples", str(RANDOM_PER_OPERATION), "--no-shrink",
            "--continue-on-failure", "--request-timeout", "20",
            *(f"--header={name}: {value}" for name, value in server.admin_headers.items()),
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=550, check=False,
        env={**os.environ, "SCHEMATHESIS_HOOKS": "tests.integration.server.schema_checks", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-12_000:] + run.stderr[-2000:]
    statuses = answered(server)
    for endpoint in ENDPOINTS:  # a run that did nothing finds nothing either
        assert statuses[endpoint, 200] >= 10 and statuses[endpoint, 400] >= 10, statuses
    for command in ORDERS:
        assert statuses[f"admin.{command}", 400] >= 10, statuses
    for command in UNCONDITIONAL_ORDERS:
        assert statuses[f"admin.{command}", 200] >= 1, statuses
    assert httpx.get(f"{server.url}/health/ready", timeout=60).status_code == 200


def answered(server: BayProcess) -> Counter[tuple[str, int]]:
    """How often each endpoint has answered with each status, by the server's log."""
    lines = [json.loads(line) for line in server.read_log().splitlines() if line.startswith("{")]
    return Counter((line["endpoint"], line["status"]) for line in lines if "endpoint" in line)
