"""A rule of ours beside those of Schemathesis, which loads this file: see test_schema."""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.check
def refusals_name_their_field(ctx: Any, response: Any, case: Any) -> None:
    """A body that is an object and is refused has a field that is to blame, and the answer says which."""
    if response.status_code == 400 and isinstance(case.body, dict):
        error = response.json()["error"]
        if isinstance(error, str):  # Ollama's form has no field for it
            assert error
            return
        assert error["param"] is not None, f"no param: {error['message']}"  # a field may be called ""
