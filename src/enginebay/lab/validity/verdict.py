"""The verdict on a run, and the reasons for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Literal

Severity = Literal["informative", "invalid"]
Status = Literal["valid", "informative", "invalid"]

_RANK: Mapping[str, int] = {"valid": 0, "informative": 1, "invalid": 2}


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a run is not simply valid. `figure` and `limit` are in the unit that the code's rule names."""

    code: str
    severity: Severity
    message: str
    figure: float | None = None
    limit: float | None = None


class NoReason(Enum):
    """What a check says when it has no reason to give."""

    FINE = "fine"
    UNKNOWN = "unknown"  # the facts it needs are not there: nothing is claimed


FINE, UNKNOWN = NoReason.FINE, NoReason.UNKNOWN
Finding = Reason | NoReason


@dataclass(frozen=True, slots=True)
class Verdict:
    """Valid: publish. Informative: publish with the reasons next to the numbers. Invalid: do not publish."""

    status: Status
    reasons: tuple[Reason, ...] = ()
    checked: tuple[str, ...] = ()  # codes whose facts were there
    unchecked: tuple[str, ...] = ()  # codes of which nothing is claimed

    def status_within(self, codes: Collection[str]) -> Status:
        """The verdict as far as these codes go, such as those that concern energy."""
        return worst_status(reason.severity for reason in self.reasons if reason.code in codes)

    def to_dict(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "status": self.status,
            "reasons": [asdict(reason) for reason in self.reasons],
            "checked": list(self.checked),
            "unchecked": list(self.unchecked),
        }


def worst_status(severities: Iterable[Severity]) -> Status:
    """The worst of these, valid when there are none."""
    found: set[Status] = {"valid", *severities}
    return max(found, key=_RANK.__getitem__)


def grade_figure(code: str, figure: float, informative: float, invalid: float, message: str) -> Finding:
    """A figure that should be small, against two limits. One that is not a number is over both."""
    if not figure <= invalid:
        return Reason(code, "invalid", message, figure, invalid)
    if not figure <= informative:
        return Reason(code, "informative", message, figure, informative)
    return FINE


def pick_gravest(*findings: Finding) -> Finding:
    """The gravest of what was found; unknown only when nothing is known."""
    reasons = [found for found in findings if isinstance(found, Reason)]
    if reasons:
        return max(reasons, key=lambda reason: _RANK[reason.severity])
    return FINE if FINE in findings else UNKNOWN
