"""The OpenAPI document matches the server."""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Any

import jsonschema
import msgspec
import pytest

from enginebay import __version__
from enginebay.config.sections.server_section import ServerLimits
from enginebay.errors import InvalidRequest
from enginebay.server.api.anthropic.messages_input import SERVER_TOOLS
from enginebay.server.api.body_decoder import decode_body
from enginebay.server.api.openapi.document import STATUS_MEANINGS as STATUSES
from enginebay.server.api.openapi.document import build_document
from enginebay.server.api.openapi.operations import OPERATIONS
from enginebay.server.api.openapi.request_overrides import FIELD_DESCRIPTIONS, FIELD_SCHEMAS
from enginebay.server.api.openapi.request_schemas import BODIES
from enginebay.server.api.routes import ROUTES
from enginebay.server.encoding.error_responses import ERROR_TABLE

DOCUMENT = build_document(ROUTES, ServerLimits(), ("tiny", "tiny-lora"), ("embedder",))
SCHEMAS = DOCUMENT["components"]["schemas"]
STRICT = build_document(ROUTES, ServerLimits(), ("tiny", "tiny-lora"), ("embedder",), "refuse")["components"]
STRUCTS = {body.__name__: body for body in BODIES}
OPERATIONS_WITH_BODY = [(path, way) for (way, path), operation in OPERATIONS.items() if operation.body]


def validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator({**SCHEMAS[name], "components": DOCUMENT["components"]})


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    return [(path, way, found) for path, ways in DOCUMENT["paths"].items() for way, found in ways.items()]


def test_every_route_is_described_and_nothing_else() -> None:
    assert {(route.method, route.path) for route in ROUTES} == set(OPERATIONS)
    shown = {(way.upper(), path) for path, way, _ in operations()}
    assert shown == {route for route, operation in OPERATIONS.items() if not operation.hidden}


def test_version_and_openapi() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    assert DOCUMENT["info"]["version"] == __version__
    ids = [found["operationId"] for _, _, found in operations()]
    assert len(set(ids)) == len(ids)


def test_all_references_resolve() -> None:
    text = json.dumps(DOCUMENT)
    found = set(re.findall(r'"\$ref": "#/([^"]+)"', text))
    assert found
    for reference in found:
        at: Any = DOCUMENT
        for key in reference.split("/"):
            at = at[key]


def test_all_schemas_are_schemas() -> None:
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize(("path", "way"), OPERATIONS_WITH_BODY)
def test_examples_fit_the_schema_and_the_struct(path: str, way: str) -> None:
    content = DOCUMENT["paths"][path][way.lower()]["requestBody"]["content"]["application/json"]
    name = content["schema"]["$ref"].rsplit("/", 1)[1]
    assert content["examples"]
    for example in content["examples"].values():
        validator(name).validate(example["value"])
        decode_body(STRUCTS[name], json.dumps(example["value"]).encode())


def test_every_field_has_a_description() -> None:
    for name in STRUCTS:
        for field, schema in SCHEMAS[name]["properties"].items():
            assert schema.get("description"), f"{name}.{field}"


def test_the_document_says_what_happens_to_each_field() -> None:
    fields = SCHEMAS["ChatBody"]["properties"]
    assert fields["verbosity"]["x-enginebay-treatment"] == "ignored"
    assert fields["verbosity"]["description"].startswith("Ignored: ")
    assert fields["repeat_penalty"]["description"] == "Translated: alias for repetition_penalty."
    assert fields["temperature"]["x-enginebay-treatment"] == "honoured"
    assert fields["audio"]["enum"] == [None] and fields["audio"]["x-enginebay-treatment"] == "refused"
    assert fields["tools"]["description"].startswith("Functions that the model may call. Ignored: hosted tools")
    assert SCHEMAS["StreamOptions"]["properties"]["continuous_usage_stats"]["x-enginebay-treatment"] == "translated"


def test_the_tables_name_fields_that_exist() -> None:
    known = {(name, field) for name, schema in SCHEMAS.items() for field in schema.get("properties", ())}
    fields = {field for _, field in known}
    for name, field in FIELD_SCHEMAS:
        assert (name, field) in known or (name == "*" and field in fields), (name, field)
    for key in FIELD_DESCRIPTIONS:
        name, _, field = key.rpartition(".")
        assert (name, field) in known or (not name and field in fields), key


def test_models_are_named() -> None:
    assert SCHEMAS["ChatBody"]["properties"]["model"]["enum"] == ["tiny", "tiny-lora"]
    assert SCHEMAS["EmbeddingBody"]["properties"]["model"]["enum"] == ["embedder"]
    assert (
        "enum" not in build_document(ROUTES, ServerLimits())["components"]["schemas"]["ChatBody"]["properties"]["model"]
    )


def test_limits_of_the_configuration_show() -> None:
    schemas = build_document(ROUTES, ServerLimits(n=3, stop=2, messages=7, max_tokens=99))["components"]["schemas"]
    fields = schemas["ChatBody"]["properties"]
    assert fields["n"]["anyOf"][0]["maximum"] == 3
    assert fields["max_tokens"]["anyOf"][0]["maximum"] == 99
    assert fields["messages"]["maxItems"] == 7
    assert [option.get("maxItems") for option in fields["stop"]["anyOf"]] == [None, 2, None]


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": []},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"temperature": 3},
        {"n": 0},
        {"tools": [{"type": "function"}]},
        {"response_format": {"type": "xml"}},
        {"audio": {"voice": "a"}},
        {"chat_template": "{{ x }}"},
        {"structured_outputs": {"xml": "a"}},
    ],
)
def test_what_the_schema_refuses(wrong: dict[str, Any]) -> None:
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    validator("ChatBody").validate(chat)
    assert not validator("ChatBody").is_valid({**chat, **wrong})


@pytest.mark.parametrize("tool", SERVER_TOOLS)
def test_the_schema_lists_every_tool_of_anthropics_servers(tool: str) -> None:
    assert validator("MessagesTool").is_valid({"type": f"{tool}_20260101", "name": "x"})
    assert not validator("MessagesTool").is_valid({"type": "bash_20250124", "name": "bash"})


def test_schema_and_struct_agree_on_unknown_and_null_fields() -> None:
    for name, struct in STRUCTS.items():
        content = next(
            found["requestBody"]["content"]["application/json"]
            for _, _, found in operations()
            if found.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            == {"$ref": f"#/components/schemas/{name}"}
        )
        example = next(iter(content["examples"].values()))["value"]
        optional = [field for field in struct.__struct_encode_fields__ if field not in SCHEMAS[name]["required"]]
        nulls = {**dict.fromkeys(optional), **example}
        validator(name).validate(nulls)
        decode_body(struct, msgspec.json.encode(nulls))
        nonsense = {**example, "nonsense": 1}
        strict = jsonschema.Draft202012Validator({**STRICT["schemas"][name], "components": STRICT})
        assert not strict.is_valid(nonsense)
        with pytest.raises(InvalidRequest):
            decode_body(struct, msgspec.json.encode(nonsense))
        is_admin = name in ("ModelBody", "SwitchBody", "AdapterBody", "AdapterNameBody", "UpgradeBody")
        assert validator(name).is_valid(nonsense) != is_admin


def test_error_statuses_are_listed_where_they_can_occur() -> None:
    for path, way, found in operations():
        statuses = {int(status) for status in found["responses"]}
        assert {200, 400, 431, 500} <= statuses
        route = next(route for route in ROUTES if (route.method.lower(), route.path) == (way, path))
        assert (401 in statuses) == (route.scope not in (None, "optional"))
        assert (route.scope is not None) == bool(found["security"])
        assert (429 in statuses) == ("requestBody" in found or route.limits_streams)
    chat = DOCUMENT["paths"]["/v1/chat/completions"]["post"]["responses"]
    can_happen = {row.status for row in ERROR_TABLE.values()} - {405} | {
        408,
        413,
        415,
        431,
        200,
    }  # 405 is for other methods
    assert {int(status) for status in chat} == can_happen
    assert set(STATUSES) == can_happen - {200}


def test_streams_are_declared() -> None:
    content = DOCUMENT["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    assert set(content) == {"application/json", "text/event-stream"}


def test_the_page_loads_nothing_from_other_hosts() -> None:
    page = resources.files("enginebay.server.api.openapi").joinpath("docs_page.html").read_text()
    assert "/openapi.json" in page
    assert not re.search(r"https?://", page)
    assert "innerHTML" not in page


def test_a_key_that_is_too_long_names_its_field() -> None:
    with pytest.raises(InvalidRequest) as error:
        decode_body(STRUCTS["ConversationBody"], json.dumps({"metadata": {"k" * 65: "v"}}).encode())
    assert error.value.param == "metadata"
