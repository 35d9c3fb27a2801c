"""Jobs between steps."""

from __future__ import annotations

import pytest

from enginebay.engines.transformers.step_jobs import StepJob, StepJobQueue
from enginebay.errors import EngineFailed


def test_a_job_waits_for_the_adapter_that_is_in_use() -> None:
    jobs, done = StepJobQueue(), []
    jobs.add(StepJob(lambda: done.append("delete"), after_adapter="a"))
    jobs.add(StepJob(lambda: done.append("load")))
    jobs.run_ready(lambda: {"a", None})
    assert done == ["load"]
    jobs.run_ready(lambda: {"b"})
    jobs.run_ready(set)
    assert done == ["load", "delete"]


def test_an_error_reaches_its_caller_only() -> None:
    def fail() -> None:
        raise ValueError("no")

    jobs, done = StepJobQueue(), []
    bad, good = StepJob(fail), StepJob(lambda: done.append(1))
    jobs.add(bad)
    jobs.add(good)
    jobs.run_ready(set)
    with pytest.raises(ValueError, match="no"):
        bad.future.result(0)
    assert good.future.result(0) is None
    assert done == [1]


def test_waiting_jobs_fail_when_the_engine_stops() -> None:
    jobs = StepJobQueue()
    job = StepJob(lambda: None, after_adapter="a")
    jobs.add(job)
    jobs.fail_all(EngineFailed("stopped"))
    with pytest.raises(EngineFailed):
        job.future.result(0)
