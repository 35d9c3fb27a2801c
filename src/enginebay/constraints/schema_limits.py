"""Is a JSON schema fit to be compiled? Its size, its references, its patterns, its counts.

Nothing here is recursive: a schema of any depth is measured, and refused, without reaching Python's own limit. The
walk ends as soon as the size is over the limit, so it costs no more than a schema that is allowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from enginebay.config.sections.server_section import ServerLimits
from enginebay.constraints.regex_limits import count_states
from enginebay.errors import InvalidRequest, RequestError
from enginebay.util.limit_errors import format_limit_hint

JSON_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")

# Keywords that hold schemas: one, a list, or a mapping of names to schemas.
_SINGLE_KEYWORDS = (
    "items", "additionalItems", "additionalProperties", "contains", "propertyNames", "unevaluatedItems",
    "unevaluatedProperties", "contentSchema", "not", "if", "then", "else",
)  # fmt: skip
_LIST_KEYWORDS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_MAPPING_KEYWORDS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
# Those that speak of the value itself, not of something within it. A circle through these alone never ends.
_IN_PLACE_SINGLE = ("not", "if", "then", "else")
_IN_PLACE_LIST = ("allOf", "anyOf", "oneOf")
_IN_PLACE_MAPPING = ("dependentSchemas",)
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_OTHER_REFERENCES = ("$dynamicRef", "$recursiveRef")

_SET_FACTOR = 4

_Schema = dict[str, Any]
_SchemaPath = tuple[Any, str]  # the place above, and the step from there; joined to text only for a message


def check_schema(schema: Any, limits: ServerLimits, param: str) -> None:
    """Raises `InvalidRequest` or `Unsupported` when this schema must not reach an engine. `schema`: decoded JSON."""
    if schema is True:
        return
    if not isinstance(schema, dict):
        raise InvalidRequest("the schema is not a JSON object", "give a schema such as {}", param=param)
    _check_size(schema, limits, param)
    _SchemaChecker(schema, limits, param).check()


def check_schema_set(schemas: Sequence[Any], limits: ServerLimits, param: str) -> None:
    """Several schemas of one request: together they may be a few times as large as one."""
    widened = replace(
        limits,
        schema_nodes=_SET_FACTOR * limits.schema_nodes,
        schema_bytes=_SET_FACTOR * limits.schema_bytes,
        schema_depth=10**9,
    )
    _check_size({"allOf": list(schemas)}, widened, param)


def _check_size(schema: _Schema, limits: ServerLimits, param: str) -> None:
    nodes, size, depth = 0, 0, 0
    waiting: list[tuple[Any, int]] = [(schema, 1)]
    while waiting and size <= limits.schema_bytes:
        value, level = waiting.pop()
        nodes += 1
        size += _estimate_json_bytes(value)
        if isinstance(value, (dict, list)):
            depth = max(depth, level)
            if size <= limits.schema_bytes:
                children = value.values() if isinstance(value, dict) else value
                waiting.extend((child, level + 1) for child in children)
    cut = "at least " if size > limits.schema_bytes else ""  # what came after was not looked at
    for what, found, setting, instead in (
        ("levels deep", depth, "schema_depth", "move inner parts to $defs and refer to them"),
        ("values long", nodes, "schema_nodes", "leave out what the answer does not need"),
        ("bytes long", size, "schema_bytes", "leave out what the answer does not need"),
    ):
        allowed = getattr(limits, setting)
        if found > allowed:
            raise InvalidRequest(
                f"the schema is {cut}{found} {what}, at most {allowed} are allowed", format_limit_hint(setting, instead),
                param=param,
            )  # fmt: skip


def _estimate_json_bytes(value: Any) -> int:
    """About what a value takes in compact JSON, without what is in it; names count to the object they are in."""
    if isinstance(value, str):
        return len(value) + 2 if value.isascii() else len(value.encode("utf-8", "surrogatepass")) + 2
    if isinstance(value, dict):
        return 1 + max(len(value), 1) + sum(_estimate_json_bytes(name) + 1 for name in value)
    if isinstance(value, list):
        return 1 + max(len(value), 1)
    if isinstance(value, int) and not isinstance(value, bool):
        return value.bit_length() // 3 + 1  # never `str`, which takes long for a huge number
    return len(repr(value)) if isinstance(value, float) else 4


class _SchemaChecker:
    """Goes through every schema within the schema, and through those that only a reference reaches."""

    def __init__(self, schema: _Schema, limits: ServerLimits, param: str) -> None:
        self.root = schema
        self.limits = limits
        self.param = param
        self.states = 0
        self.pending: list[tuple[Any, _SchemaPath | None]] = [(schema, None)]
        self.in_place: dict[
            int, tuple[list[_Schema], _SchemaPath | None]
        ] = {}  # by identity: applied to the same value

    def check(self) -> None:
        while self.pending:
            schema, place = self.pending.pop()
            if isinstance(schema, bool) or id(schema) in self.in_place:
                continue
            if not isinstance(schema, dict):
                raise self.make_schema_error("is not a schema", place)
            self.in_place[id(schema)] = (list(self.iter_in_place_schemas(schema, place)), place)
            self.check_values(schema, place)
            self.pending += self.iter_subschemas(schema, place)
        self.check_cycles()

    def iter_subschemas(self, schema: _Schema, place: _SchemaPath | None) -> Iterator[tuple[Any, _SchemaPath]]:
        """The schemas directly inside this one."""
        for keyword in _SINGLE_KEYWORDS:
            if keyword in schema and not (keyword in _LIST_KEYWORDS and isinstance(schema[keyword], list)):
                yield schema[keyword], (place, keyword)
        for keyword in _LIST_KEYWORDS:
            if keyword in schema and (keyword not in _SINGLE_KEYWORDS or isinstance(schema[keyword], list)):
                here = (place, keyword)
                members = self.expect_type(schema[keyword], list, "a list of schemas", here)
                yield from ((member, (here, str(number))) for number, member in enumerate(members))
        for keyword in _MAPPING_KEYWORDS:
            if keyword in schema:
                here = (place, keyword)
                named = self.expect_type(schema[keyword], dict, "an object of schemas", here)
                yield from ((member, (here, name)) for name, member in named.items())

    def iter_in_place_schemas(self, schema: _Schema, place: _SchemaPath | None) -> Iterator[_Schema]:
        """The schemas that this one applies to the very same value."""
        if "$ref" in schema:
            target = self.resolve_reference(schema["$ref"], (place, "$ref"))
            self.pending.append((target, (place, "$ref")))
            if isinstance(target, dict):
                yield target
        members: list[Any] = [schema.get(keyword) for keyword in _IN_PLACE_SINGLE]
        for keyword in _IN_PLACE_LIST:
            found = schema.get(keyword)
            members += found if isinstance(found, list) else []
        for keyword in _IN_PLACE_MAPPING:
            found = schema.get(keyword)
            members += found.values() if isinstance(found, dict) else []
        yield from (member for member in members if isinstance(member, dict))

    def resolve_reference(self, reference: Any, place: _SchemaPath) -> Any:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            shown = repr(reference)[:60] if isinstance(reference, str) else "no text"
            raise self.make_schema_error(
                f"is {shown}, only references within the schema are followed", place, "write it as #/$defs/NAME"
            )
        target: Any = self.root
        for step in reference.split("/")[1:]:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict) and name in target:
                target = target[name]
            elif isinstance(target, list) and name.isascii() and name.isdigit() and int(name[:9]) < len(target):
                target = target[int(name[:9])]
            else:
                raise self.make_schema_error(f"points to {reference[:60]!r}, which is not there", place)
        if not isinstance(target, (dict, bool)):
            raise self.make_schema_error(f"points to {reference[:60]!r}, which is not a schema", place)
        return target

    def check_values(self, schema: _Schema, place: _SchemaPath | None) -> None:
        """Keywords that hold plain values."""
        for keyword in _OTHER_REFERENCES:
            if keyword in schema:
                raise self.make_schema_error("is not followed", (place, keyword), "use $ref")
        if "type" in schema:
            self.check_type_names(schema["type"], (place, "type"))
        if "enum" in schema:
            here = (place, "enum")
            found = len(self.expect_type(schema["enum"], list, "a list of values", here))
            if found > self.limits.choices:
                what = f"has {found} values, at most {self.limits.choices} are allowed"
                raise self.make_schema_error(what, here, format_limit_hint("choices", "use fewer"))
            if not found:
                raise self.make_schema_error("has no values, so nothing could be answered", here)
        if "required" in schema:
            here = (place, "required")
            if not all(
                isinstance(name, str) for name in self.expect_type(schema["required"], list, "a list of names", here)
            ):
                raise self.make_schema_error("is not a list of names", here)
        for keyword in _COUNTS:
            if keyword in schema:
                self.check_count(schema[keyword], (place, keyword))
        if "pattern" in schema:
            self.check_pattern(schema["pattern"], (place, "pattern"))
        if isinstance(schema.get("patternProperties"), dict):
            for pattern in schema["patternProperties"]:
                self.check_pattern(pattern, (place, "patternProperties"))

    def check_type_names(self, given: Any, place: _SchemaPath) -> None:
        names = given if isinstance(given, list) else [given]
        unknown = [name for name in names if not isinstance(name, str) or name not in JSON_TYPES]
        if unknown or not names:
            shown = repr(unknown[0])[:60] if unknown and isinstance(unknown[0], str) else "no type's name"
            raise self.make_schema_error(f"is {shown}, known are {', '.join(JSON_TYPES)}", place)

    def check_count(self, given: Any, place: _SchemaPath) -> None:
        """Engines write counts out state by state, as they do with repeats in a regex."""
        is_whole = isinstance(given, int) or (isinstance(given, float) and given.is_integer())
        if isinstance(given, bool) or not is_whole or given < 0:
            raise self.make_schema_error("is not a whole number from 0 on", place)
        if given > self.limits.regex_states:
            shown = f"{int(given)}" if given < 10**15 else f"over {10**15}"
            what = f"is {shown}, at most {self.limits.regex_states} is allowed"
            raise self.make_schema_error(what, place, format_limit_hint("regex_states", "leave it out"))

    def check_pattern(self, given: Any, place: _SchemaPath) -> None:
        try:
            self.states += count_states(given, self.limits, self.param)
        except RequestError as error:
            raise type(error)(f"{_format_path(place)}: {error.message}", error.hint, param=self.param) from None
        if self.states > self.limits.regex_states:
            raise InvalidRequest(
                f"the patterns of the schema need {self.states} states together, "
                f"at most {self.limits.regex_states} are allowed",
                format_limit_hint("regex_states", "use fewer or simpler patterns"),
                param=self.param,
            )

    def check_cycles(self) -> None:
        """Refuse a schema that stands for itself: going round leads to no value. Through properties or items it may."""
        done: set[int] = set()
        for start, (_, place) in self.in_place.items():
            path: list[tuple[int, Iterator[_Schema]]] = []
            on_path: set[int] = set()
            upcoming: int | None = start if start not in done else None
            while upcoming is not None or path:
                if upcoming is not None:
                    path.append((upcoming, iter(self.in_place[upcoming][0])))
                    on_path.add(upcoming)
                following = next(path[-1][1], None)
                upcoming = None if following is None else id(following)
                if upcoming in on_path:
                    raise self.make_schema_error(
                        "refers to itself without end", place, "recur through properties or items"
                    )
                if upcoming is None:
                    finished, _ = path.pop()
                    on_path.remove(finished)
                    done.add(finished)
                elif upcoming in done:
                    upcoming = None

    def expect_type(self, value: Any, kind: type, what: str, place: _SchemaPath) -> Any:
        if not isinstance(value, kind):
            raise self.make_schema_error(f"is not {what}", place)
        return value

    def make_schema_error(
        self, what: str, place: _SchemaPath | None, hint: str = "correct the schema"
    ) -> InvalidRequest:
        return InvalidRequest(f"in the schema, {_format_path(place)} {what}", hint, param=self.param)


def _format_path(place: _SchemaPath | None) -> str:
    """The place as a JSON pointer, cut to what a person reads."""
    steps: list[str] = []
    while place is not None:
        place, step = place
        steps.append(step[:40])
    text = "/".join(["#", *reversed(steps)])
    return text if len(text) <= 120 else f"{text[:57]}...{text[-60:]}"
