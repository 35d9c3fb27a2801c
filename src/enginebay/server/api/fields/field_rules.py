"""What happens to one field of a request, as data, and the function that applies it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Any

from enginebay.errors import InvalidRequest, Unsupported


class Treatment(StrEnum):
    HONOURED = "honoured"
    TRANSLATED = "translated"  # named in x-enginebay-translated
    IGNORED = "ignored"  # the response is as good without it; named in x-enginebay-ignored
    REFUSED = "refused"  # 400, with the alternative


@dataclass(frozen=True, slots=True)
class FieldRule:
    """A field that is not simply honoured. Null asks for nothing, whatever the field."""

    name: str  # of a nested field: object.name
    treatment: Treatment
    detail: str  # translated: what happens. ignored: why. refused: what is wrong
    hint: str = ""  # refused: what to do instead
    neutral: tuple[Any, ...] = ()  # values that ask for nothing
    target: str = ""  # translated: the field that gets the value
    depends: bool = False  # on the model or on other fields: applied where those are known

    @property
    def description(self) -> str:
        """The rule in one sentence."""
        text = f"{self.treatment.capitalize()}: {self.detail}"
        return f"{text}; {self.hint}." if self.hint else f"{text}."


def translate(name: str, detail: str, *, neutral: tuple[Any, ...] = (), depends: bool = False) -> FieldRule:
    return FieldRule(name, Treatment.TRANSLATED, detail, neutral=neutral, depends=depends)


def rename(name: str, target: str) -> FieldRule:
    """Another server's name for a field."""
    return FieldRule(name, Treatment.TRANSLATED, f"alias for {target}", target=target)


def ignore(name: str, detail: str, *, neutral: tuple[Any, ...] = (), depends: bool = False) -> FieldRule:
    return FieldRule(name, Treatment.IGNORED, detail, neutral=neutral, depends=depends)


def refuse(name: str, detail: str, hint: str, *, neutral: tuple[Any, ...] = ()) -> FieldRule:
    return FieldRule(name, Treatment.REFUSED, detail, hint, neutral)


class RuleSet:
    """The rules of one body, in the order in which they apply."""

    def __init__(self, rules: Sequence[FieldRule]) -> None:
        self.rules = {rule.name: rule for rule in rules}
        applied = [rule for rule in rules if not rule.depends]
        self._top_level = [(attrgetter(rule.name), rule) for rule in applied if "." not in rule.name]
        # All at once: most requests set none of these.
        self._read_all = attrgetter(*(rule.name for _, rule in self._top_level)) if self._top_level else _read_nothing
        self._unset = None if len(self._top_level) < 2 else (None,) * len(self._top_level)
        self._nested = [
            (attrgetter(rule.name.rpartition(".")[0]), attrgetter(rule.name.rpartition(".")[2]), rule)
            for rule in applied
            if "." in rule.name
        ]

    def apply(self, body: Any, ignored: dict[str, str], translated: dict[str, str]) -> None:
        """Refuse, translate or note the fields that are set. Change the body where a field is another's name."""
        for read, rule in self._top_level if self._read_all(body) != self._unset else ():
            value = read(body)
            if value is not None and value not in rule.neutral:
                _apply_rule(rule, body, value, ignored, translated)
        for read_outer, read_inner, rule in self._nested:
            outer = read_outer(body)
            value = None if outer is None else read_inner(outer)
            if value is not None and value not in rule.neutral:
                _apply_rule(rule, body, value, ignored, translated)


def _read_nothing(body: Any) -> None:
    return None


NO_RULES = RuleSet(())


def _apply_rule(rule: FieldRule, body: Any, value: Any, ignored: dict[str, str], translated: dict[str, str]) -> None:
    if rule.treatment is Treatment.REFUSED:
        raise Unsupported(rule.detail, rule.hint, param=rule.name)
    if rule.treatment is Treatment.IGNORED:
        ignored[rule.name] = rule.detail
        return
    translated[rule.name] = rule.detail
    if rule.target:
        current = getattr(body, rule.target)
        if current not in (None, value):
            raise InvalidRequest(f"{rule.name} and {rule.target} differ", "remove one of them", param=rule.name)
        setattr(body, rule.target, value)
