"""Studies, from a config file to the printed results."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from enginebay.lab.loadgen.calibration import run_calibration_server
from tests.integration.lab.conftest import Lab
from tests.integration.server.bay_process import run_server

Write = Callable[..., str]


def result(process: subprocess.CompletedProcess[str]) -> Any:
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def _count(point: dict[str, Any]) -> int:
    """Count all runs, also those that a busy machine made invalid."""
    return len(point["runs"]) + len(point["left_out"])


def test_a_study_of_two_settings_is_measured_compared_and_stored(lab: Lab, write: Write, tmp_path: Path) -> None:
    """A step that takes twice as long is detected; points alternate in every cycle."""
    config = write(sweep={"fake.step_s": [0.004, 0.008]}, num_cycles=3)
    found = result(lab("experiment", config, "--json"))
    assert [_count(point) for point in found["points"]] == [3, 3]
    for comparison in found["comparisons"]:  # what a busy machine made invalid is not compared
        assert 1.2 < comparison["figures"]["tpot_s.median"]["ratio"]["estimate"] < 3  # it adds to both
    listed = result(lab("results", "list", "--json"))
    assert len(listed["runs"]) == 6 and not listed["corrupt"]
    order = [(run["label"], run["cycle"]) for run in sorted(listed["runs"], key=lambda run: run["created"])]
    assert [cycle for _, cycle in order] == [1, 1, 2, 2, 3, 3]
    assert order[1][0] == order[2][0] and order[0][0] == order[3][0]  # back and forth, so that drift meets both alike
    manifests = [result(lab("results", "show", run["id"], "--json")) for run in listed["runs"]]
    tpots = {
        point: [run["measures"]["tpot_s"]["median"] for run in manifests if run["study"]["point"] == point]
        for point in (0, 1)
    }
    assert median(tpots[1]) > 1.2 * median(tpots[0])
    verdicts = [manifest["verdict"] for manifest in manifests]
    assert all({"too_few_cycles", "client_saturated"} <= set(verdict["checked"]) for verdict in verdicts)
    assert sum("parity_broken" in verdict["checked"] for verdict in verdicts) == 3  # the second point against the first
    codes = {reason["code"] for verdict in verdicts for reason in verdict["reasons"]}
    assert not codes & {"too_few_cycles", "parity_broken"}


@pytest.mark.slow
def test_a_run_stores_what_is_needed_to_repeat_it(lab: Lab, write: Write) -> None:
    result(lab("experiment", write(), "--json"))
    manifest = result(lab("results", "show", "latest", "--json"))
    assert manifest["engine"]["kind"] == "fake" and manifest["server"]["ours"]
    assert manifest["measures"]["answered"] == 40 and manifest["measures"]["output_tokens"] == 40 * 8
    assert manifest["measures"]["input_tokens"] == 40 * 16
    assert manifest["effective"]["step_s"] == 0.002
    assert manifest["config"]["fake"] == {"step_s": 0.002}
    assert len(manifest["workload"]["sha256"]) == 64 and manifest["seeds"]
    assert set(manifest["files"]) >= {"requests.parquet", "tokens.parquet", "parity.json"}
    assert manifest["measures"]["server_peak_memory_bytes"] > 10 << 20
    assert 0 < manifest["measures"]["queue_s"]["median"] < 1  # as our server reports it
    assert "energy_j" in manifest["measures"]["absent"] or manifest["measures"]["energy_j"] > 0
    assert "ttft_s.p99" not in manifest["measures"] and "*.p99" in manifest["measures"]["absent"]


@pytest.mark.slow
def test_the_configuration_of_a_run_reproduces_it(lab: Lab, write: Write, tmp_path: Path) -> None:
    result(lab("experiment", write(random_seed=4, decoder={"temperature": 0.5}), "--json"))
    first = result(lab("results", "show", "latest", "--json"))
    again = tmp_path / "again.yaml"
    again.write_text(json.dumps(first["config"]))
    result(lab("experiment", str(again), "--json"))
    second = result(lab("results", "show", "latest", "--json"))
    assert second["config"] == first["config"] and second["workload"] == first["workload"]
    assert second["effective"] == first["effective"]


@pytest.mark.slow
def test_the_same_seed_sends_the_same_requests(lab: Lab, write: Write) -> None:
    hashes = []
    for seed in (1, 1, 2):
        result(lab("experiment", write(random_seed=seed), "--json"))
        hashes.append(result(lab("results", "show", "latest", "--json"))["workload"]["sha256"])
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.slow
def test_a_poisson_rate_is_held(lab: Lab, write: Write) -> None:
    config = write(profile={"kind": "poisson", "rate": 50}, num_input_prompts=100)
    codes = {"delivered_rate"}
    for _ in range(3):  # on a machine that stalls, it is not
        if codes & {"delivered_rate", "client_saturated", "littles_law"}:
            result(lab("experiment", config, "--json"))
            manifest = result(lab("results", "show", "latest", "--json"))
            assert manifest["measures"]["answered"] == 100
            codes = {reason["code"] for reason in manifest["verdict"]["reasons"]}
    assert not codes & {"delivered_rate", "client_saturated", "littles_law", "errors"}


def test_a_dry_run_runs_nothing_and_lists_what_is_left_out(lab: Lab, write: Write, tmp_path: Path) -> None:
    config = write(sweep={"decoder.num_beams": [1, 4], "fake.max_batch": [2, 4]})
    done = lab("experiment", config, "--dry-run", "--json")
    assert len(result(done)["points"]) == 2
    assert done.stderr.count("skipped") == 2 and "num_beams=4" in done.stderr
    assert not (tmp_path / "home" / "runs").exists()


@pytest.mark.slow
def test_a_server_that_already_runs(lab: Lab, write: Write) -> None:
    with run_calibration_server(ttft_s=0.02, itl_s=0.005) as url:
        done = lab("experiment", "--url", url, "--model", "known", "--tokenizer", "bytes", "--profile",
                   "closed:concurrency=4,requests=40", "--set", "parity=false", "--json")  # fmt: skip
        result(done)
    measures = result(lab("results", "show", "latest", "--json"))["measures"]
    assert measures["answered"] == 40
    assert measures["ttft_s"]["median"] >= 0.02 and measures["tpot_s"]["median"] >= 0.0045


@pytest.mark.slow
def test_a_running_bay_server_reports_its_meters_and_queue_times(lab: Lab, tmp_path: Path) -> None:
    config: dict[str, object] = {"models": {"toy": {"engine": "fake", "fake": {"step_s": 0.004, "max_batch": 1}}}}
    config["server"] = {"limits": {"running": 1}}
    with run_server(config=config, environ={"ENGINEBAY_HOME": str(tmp_path / "served")}) as server:
        done = lab("experiment", "--url", server.url, "--tokenizer", "bytes", "--profile",
                   "closed:concurrency=4,requests=40", "--set", "max_input_tokens=16", "--set", "max_output_tokens=8",
                   "--set", "parity=false", "--json")  # fmt: skip
        result(done)
        held = server.read_resident_bytes()
    manifest = result(lab("results", "show", "latest", "--json"))
    measures = manifest["measures"]
    assert manifest["server"]["ours"] and measures["answered"] == 40
    assert measures["queue_s"]["median"] > 0.25 * measures["ttft_s"]["median"]  # three others are before it
    assert measures["queue_s"]["median"] < measures["ttft_s"]["median"]
    assert measures["server_peak_memory_bytes"] > held / 2 and measures["meters_clock_error_s"] == 0.0
    assert "readings failed" in manifest["absent"].get("server meters", "readings failed")  # on a machine that stalls


@contextmanager
def other_clients(url: str, clients: int) -> Iterator[None]:
    """Run other clients of the same server, each sending one long request after the other."""
    body = json.dumps({"model": "toy", "prompt": [65] * 16, "max_tokens": 64, "ignore_eos": True}).encode()
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                answer.read()

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(60)


@pytest.mark.slow
@pytest.mark.parametrize("clients", [0, 4])
def test_requests_of_other_clients_are_detected(lab: Lab, tmp_path: Path, clients: int) -> None:
    config: dict[str, object] = {"models": {"toy": {"engine": "fake", "fake": {"step_s": 0.01}}}}
    with run_server(config=config, environ={"ENGINEBAY_HOME": str(tmp_path / "served")}) as server:
        with other_clients(server.url, clients):
            done = lab("experiment", "--url", server.url, "--tokenizer", "bytes", "--profile",
                       "closed:concurrency=4,requests=40", "--set", "max_input_tokens=16", "--set",
                       "max_output_tokens=32", "--set", "parity=false", "--json")  # fmt: skip
        result(done)
    verdict = result(lab("results", "show", "latest", "--json"))["verdict"]
    assert "machine_busy" in verdict["checked"]
    said = [reason for reason in verdict["reasons"] if "came from other clients" in reason["message"]]
    assert [reason["code"] for reason in said] == (["machine_busy"] if clients else [])


@contextmanager
def bad_server(answer: bytes) -> Iterator[str]:
    """Send the same bytes to every request, and close the connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def talk() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with sock:
                sock.recv(1 << 16)
                sock.sendall(answer)

    threading.Thread(target=talk, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"nonsense\r\n\r\n", "garbage"),
        (_STREAM + b'data: {"choices":[{"text":"half"}]}\n\n', "closed"),
        (_STREAM + b'data: {"choices":[{"text":"a","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n', "no_usage"),
        (b"HTTP/1.1 500 No\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno", "status"),
    ],
)
def test_what_a_bad_server_sends_is_an_error_and_never_tokens(
    lab: Lab, write: Write, answer: bytes, error: str
) -> None:
    with bad_server(answer) as url:
        done = lab("experiment", "--url", url, "--model", "m", "--tokenizer", "bytes", "--profile",
                   "closed:concurrency=2,requests=10", "--set", "parity=false", "--set", "warmup=false", "--json")  # fmt: skip
    assert done.returncode == 1 and "no request of the study was answered" in done.stderr, done.stderr
    manifest = result(lab("results", "show", "latest", "--json"))
    assert manifest["verdict"]["status"] == "invalid"
    assert manifest["measures"]["errors_by_code"] == {error: 10}
    assert not manifest["measures"].get("output_tokens")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"profile": {"kind": "poisson", "rate": 0}}, "rate"),
        pytest.param(
            {"profile": {"kind": "poisson", "rate": 1e9}, "num_input_prompts": 10},
            "above what this client can send",
            marks=pytest.mark.slow,
        ),
        pytest.param({"max_input_tokens": 100_000}, "context", marks=pytest.mark.slow),
        ({"workload": {"kind": "synthetic", "input_tokens": 0}}, "input_tokens"),
        ({"workload": {"kind": "nonsense"}}, "nonsense"),
        ({"slo": {"ttft": 1}}, "SLO"),
        ({"profile": {"kind": "closed", "concurrency": 2, "rate": 3}}, "rate"),
    ],
)
def test_invalid_input_is_reported(lab: Lab, write: Write, changes: dict[str, Any], said: str) -> None:
    done = lab("experiment", write(**changes))
    assert done.returncode in (1, 2), done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr


def test_an_unknown_preset_and_no_server(lab: Lab, write: Write) -> None:
    done = lab("experiment", write(), "--preset", "vllm-thruput")
    assert done.returncode == 2 and "vllm-throughput" in done.stderr
    done = lab("experiment", "--url", "http://127.0.0.1:9", "--tokenizer", "bytes")
    assert done.returncode == 1 and "does not respond" in done.stderr


@pytest.mark.slow
def test_a_setting_that_an_engine_ignores_stops_the_study_unless_allowed(lab: Lab, write: Write) -> None:
    config = write(decoder={"num_beams": 4})
    refused = lab("experiment", config)
    assert refused.returncode == 2 and "num_beams" in refused.stderr
    assert "--ignore-engine-warnings" in refused.stderr
    result(lab("experiment", config, "--ignore-backend-warnings", "--json"))


@pytest.mark.slow
def test_one_engine_that_does_not_start_does_not_stop_the_others(lab: Lab, write: Write) -> None:
    config = write(sweep={"fake.fail_load": ["error", None]}, num_cycles=2)
    done = lab("experiment", config, "--json")
    assert done.returncode == 1 and "failed" in done.stderr
    assert [_count(point) for point in json.loads(done.stdout)["points"]] == [2]


@pytest.mark.slow
def test_a_study_without_arguments_is_sized_announced_and_not_invalid(lab: Lab) -> None:
    """On an engine with delays: what is checked is the way from the measured speed to the verdicts."""
    done = lab("experiment", "-m", "toy", "-e", "fake", "--cycles", "1", "--set", "fake.step_s=0.02", "--set",
               "fake.max_batch=4", "--json")  # fmt: skip
    found = result(done)
    assert "1 run of 1 point, about " in done.stderr and " left" in done.stderr
    runs = result(lab("results", "list", "--json"))["runs"]
    assert len(runs) == 1 and all(run["measures"]["errors"] == 0 for run in runs)
    manifest = result(lab("results", "show", runs[0]["id"], "--json"))
    assert 8 <= manifest["workload"]["requests"] <= 100
    codes = {
        reason["code"]
        for run in runs
        for reason in result(lab("results", "show", run["id"], "--json"))["verdict"]["reasons"]
    }
    assert codes <= {"too_few_cycles", "machine_busy", "send_lag", "client_saturated"}, (
        codes
    )  # of one cycle on a busy machine
    assert [_count(point) for point in found["points"]] == [1]
