"""Streaming reader of one call written as a JSON object: {"name": …, "arguments": {…}}."""

from __future__ import annotations

from collections.abc import Callable, Collection

from enginebay.text.output_events import OutputEvent, ToolCallArguments, ToolCallStart
from enginebay.text.tool_calls.argument_stream import ArgumentStream
from enginebay.text.tool_calls.json_scanner import JsonValueScanner, is_json, parse_short_string, skip_whitespace

_ARGUMENT_KEYS = ("arguments", "parameters")
# Keys that models write in a call. Any other key means that an unmarked object is not a call.
_CALL_KEYS = frozenset(("name", "type", "id", *_ARGUMENT_KEYS))

_EXACT_KEYS = ("name", "arguments")

_ScanStep = tuple[int, bool]  # where to continue, and whether to continue now or wait for more text


class CallObjectReader:
    """Reads a call from its opening brace. Keys may come in any order; those other than name and arguments are dropped.

    Without `names`, a marker has announced the call: it starts with its name, whatever that is. With `names`, the
    object is unmarked: it is a call only if its name is one of them, its arguments are an object, and it has no foreign
    keys; it starts once that is known. If `exact`, it must have a name and arguments, and no other key.

    Nothing is emitted before `started`; the caller emits an object that is `broken` before that as text. If it breaks
    later, emitted events stay, and the text from the returned position is not part of the call.
    """

    def __init__(self, index: int, names: Collection[str] | None, exact: bool = False) -> None:
        self.started = False
        self.done = False
        self.broken = False
        self._index = index
        self._names = names
        self._exact = exact
        self._name: str | None = None
        self._key = ""
        self._value_at = 0
        self._arguments: ArgumentStream | None = None
        self._early_arguments: list[str] = []  # read before the call could start
        self._skip_scanner = JsonValueScanner()
        self._state: Callable[[str, int, list[OutputEvent]], _ScanStep] = self._read_opening_brace

    def advance(self, text: str, at: int, out: list[OutputEvent]) -> int:
        """Continue at `at`. Until the call starts, the caller keeps the text, so that `at` stays valid."""
        more = True
        while more and not self.done and not self.broken:
            if self._state not in (self._read_arguments, self._skip_other_value):
                at = skip_whitespace(text, at)
            if at == len(text):
                break
            at, more = self._state(text, at, out)
        return at

    def _read_opening_brace(self, text: str, at: int, out: list[OutputEvent]) -> _ScanStep:
        if text[at] != "{":
            return self._break(at)
        self._state = self._read_key
        return at + 1, True

    def _read_key(self, text: str, at: int, out: list[OutputEvent]) -> _ScanStep:
        if text[at] == "}":
            return self._close(at, out)
        end, key = parse_short_string(text, at) if text[at] == '"' else (-1, None)
        if key is None:
            return self._wait_or_break(at, end)
        if self._names is not None and key not in (_EXACT_KEYS if self._exact else _CALL_KEYS):
            return self._break(at)
        self._key = key
        self._state = self._read_colon
        return end, True

    def _read_colon(self, text: str, at: int, out: list[OutputEvent]) -> _ScanStep:
        if text[at] != ":":
            return self._break(at)
        self._state = self._begin_value
        return at + 1, True

    def _begin_value(self, text: str, at: int, out: list[OutputEvent]) -> _ScanStep:
        if self._key == "name" and self._name is None:
            return self._read_name(text, at, out)
        self._value_at = at
        if self._key in _ARGUMENT_KEYS and self._arguments is None:
            self._arguments = ArgumentStream()
            self._state = self._read_arguments
        else:
            self._skip_scanner = JsonValueScanner()
            self._state = self._skip_other_value
        return at, True

    def _read_name(self, text: str, at: int, out: list[OutputEvent]) -> _ScanStep:
        end, name = parse_short_string(text, at) if text[at] == '"' else (-1, None)
        if name is None:
            return self._wait_or_break(at, end)
        if not name or (self._names is not None and name not in self._names):
            return self._break(at)
        self._name = name
        self._state = self._read_separator
        if self._names is None or self._arguments is not None:
            self._start_call(out)
        return end, True

    def _read_arguments(self, text: str, at: int, out: list[OutputEvent]) -> _ScanStep:
        stream = self._arguments
        assert stream is not None
        end, fragment = stream.advance(text, at)
        if self._names is not None and stream.is_object is False:
            return self._break(end)
        if self._name is not None and not self.started and stream.is_object is not None:
            self._start_call(out)
        self._emit_arguments(fragment, out)
        if stream.broken or (stream.done and not self.started and not is_json(text[self._value_at : end])):
            return self._break(end)
        if stream.done:
            self._state = self._read_separator
        return end, stream.done

    def _skip_other_value(self, text: str, at: int, out: list[OutputEvent]) -> _ScanStep:
        end = self._skip_scanner.advance(text, at)
        if self._skip_scanner.broken:
            return self._break(end)
        if self._skip_scanner.done:
            if not self.started and not is_json(text[self._value_at : end]):
                return self._break(end)
            self._state = self._read_separator
        return end, self._skip_scanner.done

    def _read_separator(self, text: str, at: int, out: list[OutputEvent]) -> _ScanStep:
        if text[at] == "}":
            return self._close(at, out)
        if text[at] != ",":
            return self._break(at)
        self._state = self._read_key
        return at + 1, True

    def _close(self, at: int, out: list[OutputEvent]) -> _ScanStep:
        if self._name is None or (self._exact and self._arguments is None):
            return self._break(at)
        if not self.started:
            self._start_call(out)
        if self._arguments is None:
            self._emit_arguments("{}", out)
        self.done = True
        return at + 1, False

    def _start_call(self, out: list[OutputEvent]) -> None:
        assert self._name is not None
        self.started = True
        out.append(ToolCallStart(self._index, self._name))
        self._emit_arguments("".join(self._early_arguments), out)

    def _emit_arguments(self, fragment: str, out: list[OutputEvent]) -> None:
        if not self.started:
            self._early_arguments.append(fragment)
        elif fragment:
            out.append(ToolCallArguments(self._index, fragment))

    def _wait_or_break(self, at: int, end: int) -> _ScanStep:
        return self._break(at) if end < 0 else (at, False)

    def _break(self, at: int) -> _ScanStep:
        self.broken = True
        return at, False
