"""The calibration server is never early, and works with other load generators."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from enginebay.lab.loadgen.calibration import run_calibration_server
from enginebay.lab.loadgen.calibration_server import answer_plain_request
from enginebay.lab.loadgen.sender_pool import run_loadgen
from enginebay.lab.loadgen.sender_task import TargetServer, split_into_tasks
from enginebay.lab.workload.request_records import Request

TTFT_S, ITL_S = 0.04, 0.005


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with run_calibration_server(TTFT_S, ITL_S) as found:
        yield found


def test_no_token_comes_before_its_time(url: str) -> None:
    requests = [Request((1, 2, 3), 3, tokens) for tokens in (1, 2, 5, 9, 30, 3, 7, 12)]
    times = [0.003 * number for number in range(len(requests))]
    result = run_loadgen(split_into_tasks(TargetServer(url, "known"), requests, times, 4, 1), requests)
    assert [record.output_tokens for record in result.records] == [request.output_tokens for request in requests]
    for record in result.records:
        arrivals = result.tokens[record.index]
        assert len(arrivals) == record.output_tokens
        for index, arrival in enumerate(arrivals):
            assert arrival - record.sent_s >= TTFT_S + index * ITL_S


def test_it_lists_its_model(url: str) -> None:
    with urllib.request.urlopen(f"{url}/v1/models", timeout=30) as answer:
        assert [one["id"] for one in json.load(answer)["data"]] == ["known"]
    with urllib.request.urlopen(f"{url}/health", timeout=30) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("path", ["/metrics", "/v1/completions", "/"])
def test_unknown_paths_return_404(url: str, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{url}{path}", timeout=30)
    assert refused.value.code == 404
    refused.value.close()


def test_only_a_posted_completion_streams() -> None:
    assert answer_plain_request(b"POST /v1/completions HTTP/1.1\r\n\r\n") is None
    assert answer_plain_request(b"POST /v1/chat/completions HTTP/1.1\r\n\r\n") is None
    assert answer_plain_request(b"POST /tokenize HTTP/1.1\r\n\r\n") is not None


def test_an_interrupt_stops_it_silently() -> None:
    command = [sys.executable, "-m", "enginebay.lab.loadgen.calibration_server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, output = process.communicate(timeout=10)
    assert (process.returncode, output) == (-signal.SIGINT, b"")
