"""Checks that a JSON schema is safe to compile: size, references, patterns and counts.

Nothing here is recursive, so a schema of any depth is refused without hitting Python's recursion limit. The walk stops
once the size exceeds the limit, so an oversized schema costs no more than an allowed one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

from enginebay.constraints.regex_limits import ConstraintLimits, count_states
from enginebay.constraints.schema_contradictions import find_contradiction
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
# In-place applicators: they apply to the same value, not to a part of it. A cycle through these alone never ends.
_IN_PLACE_SINGLE = ("not", "if", "then", "else")
_IN_PLACE_LIST = ("allOf", "anyOf", "oneOf")
_IN_PLACE_MAPPING = ("dependentSchemas",)
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_OTHER_REFERENCES = ("$dynamicRef", "$recursiveRef")

_SET_FACTOR = 4

_Schema = dict[str, Any]
_SchemaPath = tuple[Any, str]  # the parent path and one step; joined to text only for a message


def check_schema(schema: Any, limits: ConstraintLimits, param: str, compiled: bool = True) -> None:
    """Raise `InvalidRequest` or `Unsupported` if this schema must not reach an engine. `schema`: decoded JSON.

    Without `compiled`, the engine only shows it to the model, as text: counts, enums and patterns may be of any size.
    """
    if schema is True:
        return
    if not isinstance(schema, dict):
        raise InvalidRequest("the schema is not a JSON object", "send a schema such as {}", param=param)
    _check_size(schema, limits.schema_depth, limits.schema_nodes, limits.schema_bytes, param)
    _SchemaChecker(schema, limits, param, compiled).check()


def check_schema_set(schemas: Sequence[Any], limits: ConstraintLimits, param: str) -> None:
    """Check the total size of a request's schemas, which may be `_SET_FACTOR` times that of one schema."""
    max_nodes, max_bytes = _SET_FACTOR * limits.schema_nodes, _SET_FACTOR * limits.schema_bytes
    _check_size({"allOf": list(schemas)}, 10**9, max_nodes, max_bytes, param)


def _check_size(schema: _Schema, max_depth: int, max_nodes: int, max_bytes: int, param: str) -> None:
    nodes, size, depth = 0, 0, 0
    pending: list[tuple[Any, int]] = [(schema, 1)]
    while pending and size <= max_bytes:
        value, level = pending.pop()
        nodes += 1
        size += _estimate_json_bytes(value)
        if isinstance(value, (dict, list)):
            depth = max(depth, level)
            if size <= max_bytes:
                children = value.values() if isinstance(value, dict) else value
                pending.extend((child, level + 1) for child in children)
    bound = "at least " if size > max_bytes else ""  # the rest was not counted
    for unit, count, maximum, setting, advice in (
        ("nested levels", depth, max_depth, "schema_depth", "move inner parts to $defs and refer to them"),
        ("values", nodes, max_nodes, "schema_nodes", "remove parts that the output does not need"),
        ("bytes", size, max_bytes, "schema_bytes", "remove parts that the output does not need"),
    ):
        if count > maximum:
            raise InvalidRequest(
                f"the schema has {bound}{count} {unit}; the maximum is {maximum}", format_limit_hint(setting, advice),
                param=param,
            )  # fmt: skip


def _estimate_json_bytes(value: Any) -> int:
    """Return the approximate size of a value in compact JSON, without its children; an object includes its keys."""
    if isinstance(value, str):
        return len(value) + 2 if value.isascii() else len(value.encode("utf-8", "surrogatepass")) + 2
    if isinstance(value, dict):
        return 1 + max(len(value), 1) + sum(_estimate_json_bytes(name) + 1 for name in value)
    if isinstance(value, list):
        return 1 + max(len(value), 1)
    if isinstance(value, int) and not isinstance(value, bool):
        return value.bit_length() // 3 + 1  # `str` is slow for huge numbers
    return len(repr(value)) if isinstance(value, float) else 4


class _SchemaChecker:
    """Walks every subschema, including those that only a reference reaches."""

    def __init__(self, schema: _Schema, limits: ConstraintLimits, param: str, compiled: bool) -> None:
        self.root = schema
        self.limits = limits
        self.param = param
        self.compiled = compiled
        self.states = 0
        self.pending: list[tuple[Any, _SchemaPath | None]] = [(schema, None)]
        # By id(schema): the schemas it applies in place, and its path.
        self.in_place: dict[int, tuple[list[_Schema], _SchemaPath | None]] = {}

    def check(self) -> None:
        while self.pending:
            schema, path = self.pending.pop()
            if isinstance(schema, bool) or id(schema) in self.in_place:
                continue
            if not isinstance(schema, dict):
                raise self.make_schema_error("is not a schema", path)
            self.in_place[id(schema)] = (list(self.iter_in_place_schemas(schema, path)), path)
            self.check_values(schema, path)
            self.pending += self.iter_subschemas(schema, path)
        self.check_cycles()

    def iter_subschemas(self, schema: _Schema, path: _SchemaPath | None) -> Iterator[tuple[Any, _SchemaPath]]:
        """Yield the schemas directly inside this one."""
        for keyword in _SINGLE_KEYWORDS:
            if keyword in schema and not (keyword in _LIST_KEYWORDS and isinstance(schema[keyword], list)):
                yield schema[keyword], (path, keyword)
        for keyword in _LIST_KEYWORDS:
            if keyword in schema and (keyword not in _SINGLE_KEYWORDS or isinstance(schema[keyword], list)):
                here = (path, keyword)
                members = self.expect_type(schema[keyword], list, "a list of schemas", here)
                yield from ((member, (here, str(number))) for number, member in enumerate(members))
        for keyword in _MAPPING_KEYWORDS:
            if keyword in schema:
                here = (path, keyword)
                named = self.expect_type(schema[keyword], dict, "an object of schemas", here)
                yield from ((member, (here, name)) for name, member in named.items())

    def iter_in_place_schemas(self, schema: _Schema, path: _SchemaPath | None) -> Iterator[_Schema]:
        """Yield the schemas that this one applies to the same value."""
        if "$ref" in schema:
            target = self.resolve_reference(schema["$ref"], (path, "$ref"))
            self.pending.append((target, (path, "$ref")))
            if isinstance(target, dict):
                yield target
        members: list[Any] = [schema.get(keyword) for keyword in _IN_PLACE_SINGLE]
        for keyword in _IN_PLACE_LIST:
            listed = schema.get(keyword)
            members += listed if isinstance(listed, list) else []
        for keyword in _IN_PLACE_MAPPING:
            named = schema.get(keyword)
            members += named.values() if isinstance(named, dict) else []
        yield from (member for member in members if isinstance(member, dict))

    def resolve_reference(self, reference: Any, path: _SchemaPath) -> Any:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            shown = repr(reference)[:60] if isinstance(reference, str) else "not a string"
            raise self.make_schema_error(
                f"is {shown}, but only references within the schema are supported", path, "write it as #/$defs/NAME"
            )
        target: Any = self.root
        for step in reference.split("/")[1:]:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict) and name in target:
                target = target[name]
            elif isinstance(target, list) and name.isascii() and name.isdigit() and int(name[:9]) < len(target):
                target = target[int(name[:9])]
            else:
                raise self.make_schema_error(f"points to {reference[:60]!r}, which does not exist", path)
        if not isinstance(target, (dict, bool)):
            raise self.make_schema_error(f"points to {reference[:60]!r}, which is not a schema", path)
        return target

    def check_values(self, schema: _Schema, path: _SchemaPath | None) -> None:
        """Check the keywords that hold plain values."""
        for keyword in _OTHER_REFERENCES:
            if keyword in schema:
                raise self.make_schema_error("is not supported", (path, keyword), "use $ref")
        if "type" in schema:
            self.check_type_names(schema["type"], (path, "type"))
        if "enum" in schema:
            here = (path, "enum")
            count = len(self.expect_type(schema["enum"], list, "a list of values", here))
            if self.compiled and count > self.limits.choices:
                problem = f"has {count} values; the maximum is {self.limits.choices}"
                raise self.make_schema_error(problem, here, format_limit_hint("choices", "use fewer"))
            if not count:
                raise self.make_schema_error("has no values, so no output can match", here)
        if "required" in schema:
            here = (path, "required")
            if not all(
                isinstance(name, str) for name in self.expect_type(schema["required"], list, "a list of names", here)
            ):
                raise self.make_schema_error("is not a list of names", here)
        if contradiction := find_contradiction(schema):
            keyword, problem = contradiction
            raise self.make_schema_error(f"{problem}, so no output can match", (path, keyword))
        for keyword in _COUNTS:
            if keyword in schema:
                self.check_count(schema[keyword], (path, keyword))
        if "pattern" in schema:
            self.check_pattern(schema["pattern"], (path, "pattern"))
        if isinstance(schema.get("patternProperties"), dict):
            for pattern in schema["patternProperties"]:
                self.check_pattern(pattern, (path, "patternProperties"))

    def check_type_names(self, value: Any, path: _SchemaPath) -> None:
        names = value if isinstance(value, list) else [value]
        unknown = [name for name in names if not isinstance(name, str) or name not in JSON_TYPES]
        if unknown or not names:
            shown = repr(unknown[0])[:60] if unknown and isinstance(unknown[0], str) else "not a type name"
            raise self.make_schema_error(f"is {shown}, expected one of {', '.join(JSON_TYPES)}", path)

    def check_count(self, count: Any, path: _SchemaPath) -> None:
        """Check a count, which engines expand state by state like a repeat in a regex."""
        is_integer = isinstance(count, int) or (isinstance(count, float) and count.is_integer())
        if isinstance(count, bool) or not is_integer or count < 0:
            raise self.make_schema_error("is not a non-negative integer", path)
        if self.compiled and count > self.limits.regex_states:
            shown = f"{int(count)}" if count < 10**15 else f"over {10**15}"
            problem = f"is {shown}; the maximum is {self.limits.regex_states}"
            raise self.make_schema_error(problem, path, format_limit_hint("regex_states", "remove it"))

    def check_pattern(self, pattern: Any, path: _SchemaPath) -> None:
        if not self.compiled:
            self.expect_type(pattern, str, "a pattern", path)
            return
        try:
            self.states += count_states(pattern, self.limits, self.param)
        except RequestError as error:
            raise type(error)(f"{_format_path(path)}: {error.message}", error.hint, param=self.param) from None
        if self.states > self.limits.regex_states:
            raise InvalidRequest(
                f"the schema's patterns need {self.states} states in total; the maximum is {self.limits.regex_states}",
                format_limit_hint("regex_states", "use fewer or simpler patterns"),
                param=self.param,
            )

    def check_cycles(self) -> None:
        """Refuse cycles of in-place schemas, which no value satisfies. Cycles through properties or items are fine."""
        done: set[int] = set()
        for start, (_, path) in self.in_place.items():
            stack: list[tuple[int, Iterator[_Schema]]] = []
            on_stack: set[int] = set()
            upcoming: int | None = start if start not in done else None
            while upcoming is not None or stack:
                if upcoming is not None:
                    stack.append((upcoming, iter(self.in_place[upcoming][0])))
                    on_stack.add(upcoming)
                following = next(stack[-1][1], None)
                upcoming = None if following is None else id(following)
                if upcoming in on_stack:
                    raise self.make_schema_error(
                        "refers to itself endlessly", path, "recurse through properties or items"
                    )
                if upcoming is None:
                    finished, _ = stack.pop()
                    on_stack.remove(finished)
                    done.add(finished)
                elif upcoming in done:
                    upcoming = None

    def expect_type(self, value: Any, kind: type, expected: str, path: _SchemaPath) -> Any:
        if not isinstance(value, kind):
            raise self.make_schema_error(f"is not {expected}", path)
        return value

    def make_schema_error(
        self, problem: str, path: _SchemaPath | None, hint: str = "correct the schema"
    ) -> InvalidRequest:
        return InvalidRequest(f"in the schema, {_format_path(path)} {problem}", hint, param=self.param)


def _format_path(path: _SchemaPath | None) -> str:
    """Return the path as a JSON pointer, shortened for a message."""
    steps: list[str] = []
    while path is not None:
        path, step = path
        steps.append(step[:40])
    text = "/".join(["#", *reversed(steps)])
    return text if len(text) <= 120 else f"{text[:57]}...{text[-60:]}"
