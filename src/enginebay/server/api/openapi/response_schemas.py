"""Response schemas."""

from __future__ import annotations

from enginebay.server.api.openapi.admin_response_schemas import ADMIN_RESPONSE_COMPONENTS
from enginebay.server.api.openapi.schema_builders import (
    ANY,
    BOOLEAN,
    COUNT,
    INTEGER,
    NUMBER,
    OBJECT,
    STRING,
    Schema,
    any_of,
    array,
    const,
    describe,
    enum,
    nullable,
    obj,
    ref,
)

_FINISH = enum("stop", "length", "tool_calls", "cancelled")
_ENTRY = {"token": STRING, "logprob": NUMBER, "bytes": nullable(array(COUNT))}
_LOGPROBS = obj(
    {"content": array(obj({**_ENTRY, "top_logprobs": array(obj(_ENTRY))})), "refusal": nullable(STRING)}, ("refusal",)
)
_ENVELOPE = {"id": STRING, "created": COUNT, "model": STRING, "system_fingerprint": STRING}
_CALL_DELTA = obj(
    {
        "index": COUNT,
        "id": STRING,
        "type": const("function"),
        "function": obj({"name": STRING, "arguments": STRING}, ("name",)),
    },
    ("id", "type"),
)
_DELTA = obj(
    {
        "role": const("assistant"),
        "content": nullable(STRING),
        "refusal": nullable(STRING),
        "tool_calls": array(_CALL_DELTA),
    },
    ("role", "content", "refusal", "tool_calls"),
)
_MESSAGE = obj(
    {
        "role": const("assistant"),
        "content": nullable(STRING),
        "refusal": nullable(STRING),
        "tool_calls": array(ref("ToolCall")),
    },
    ("tool_calls",),
)
_TEXT_LOGPROBS = obj(
    {
        "tokens": array(STRING),
        "token_logprobs": array(NUMBER),
        "top_logprobs": array({"type": "object", "additionalProperties": NUMBER}),
        "text_offset": array(COUNT),
    }
)
_MODEL = {
    "id": STRING,
    "object": const("model"),
    "created": COUNT,
    "owned_by": STRING,
    "max_model_len": COUNT,
    "parent": describe(STRING, "For an adapter: its model."),
}
_TIMING = {
    "queue_s": describe(NUMBER, "Seconds from the request's receipt until its submission to the engine."),
    "ttft_s": describe(NUMBER, "Seconds from submission to the first token."),
    "total_s": describe(NUMBER, "Seconds from submission to the last token."),
}
_ENERGY = {
    "energy_j": describe(NUMBER, "The request's share of the joules above idle, by its tokens in each step."),
    "energy_idle_w": describe(NUMBER, "Power with the engine loaded and idle; not included in the joules."),
    "energy_absent": describe(STRING, "Why energy_j is missing."),
}
_STATUS = enum("in_progress", "completed", "incomplete")

RESPONSE_COMPONENTS: dict[str, Schema] = {
    "Error": obj(
        {
            "error": obj(
                {
                    "message": describe(STRING, "What is wrong, and what to do."),
                    "type": STRING,
                    "param": describe(nullable(STRING), "The field that the error is about."),
                    "code": nullable(STRING),
                }
            )
        }
    ),
    "Usage": describe(
        obj(
            {
                "prompt_tokens": COUNT,
                "completion_tokens": COUNT,
                "total_tokens": COUNT,
                "prompt_tokens_details": obj({"cached_tokens": COUNT}),
                "enginebay": describe(
                    obj({**_TIMING, **_ENERGY}, (*_TIMING, *_ENERGY)),
                    "With stream_options.include_timing (streams) or include_energy.",
                ),
            },
            ("enginebay",),
        ),
        "Counted by the engine.",
    ),
    "ChatCompletion": obj(
        {
            **_ENVELOPE,
            "object": const("chat.completion"),
            "choices": array(
                obj({"index": COUNT, "message": _MESSAGE, "logprobs": nullable(_LOGPROBS), "finish_reason": _FINISH})
            ),
            "usage": ref("Usage"),
        }
    ),
    "ChatCompletionChunk": obj(
        {
            **_ENVELOPE,
            "object": const("chat.completion.chunk"),
            "choices": array(
                obj(
                    {
                        "index": COUNT,
                        "delta": _DELTA,
                        "logprobs": nullable(_LOGPROBS),
                        "finish_reason": nullable(_FINISH),
                    }
                )
            ),
            "usage": nullable(ref("Usage")),
        },
        ("usage",),
    ),
    "Completion": obj(
        {
            **_ENVELOPE,
            "object": const("text_completion"),
            "choices": array(
                obj(
                    {
                        "index": COUNT,
                        "text": STRING,
                        "logprobs": nullable(_TEXT_LOGPROBS),
                        "finish_reason": nullable(_FINISH),
                    }
                )
            ),
            "usage": nullable(ref("Usage")),
        },
        ("usage",),
    ),
    "EmbeddingList": obj(
        {
            "object": const("list"),
            "data": array(
                obj({"object": const("embedding"), "index": COUNT, "embedding": any_of(array(NUMBER), STRING)})
            ),
            "model": STRING,
            "usage": obj({"prompt_tokens": COUNT, "total_tokens": COUNT}),
        }
    ),
    "Model": obj(_MODEL, ("parent",)),
    "ModelList": obj({"object": const("list"), "data": array(ref("Model"))}),
    "ModelDescription": obj(
        {
            **_MODEL,
            "enginebay": obj(
                {
                    "engine": STRING,
                    "version": STRING,
                    "task": enum("generate", "embed"),
                    "context_length": COUNT,
                    "max_batch": COUNT,
                    "memory_bytes": COUNT,
                    "load_s": NUMBER,
                    "capabilities": describe(
                        {
                            "type": "object",
                            "additionalProperties": obj({"support": STRING, "detail": nullable(STRING)}),
                        },
                        "For each request parameter: native, translated or refused.",
                    ),
                    "settings": describe(
                        {"type": "object", "additionalProperties": obj({"effective": ANY, "asked": ANY})},
                        "Effective settings next to the configured ones.",
                    ),
                    "sampling_defaults": OBJECT,
                    "tool_format": STRING,
                    "adapters": array(STRING),
                    "warnings": array(STRING),
                }
            ),
        },
        ("parent",),
    ),
    "Tokenized": obj(
        {"count": COUNT, "max_model_len": COUNT, "tokens": array(COUNT), "token_strs": array(STRING)}, ("token_strs",)
    ),
    "Detokenized": obj({"prompt": STRING}),
    "Live": obj({"status": const("live")}),
    "Readiness": obj(
        {
            "status": enum("ready", "not ready"),
            "models": array(STRING),
            "reasons": array(STRING),
            "failing": array(STRING),
        },
        ("reasons", "failing"),
    ),
    "ResponseItem": any_of(
        obj(
            {
                "id": STRING,
                "type": const("message"),
                "status": _STATUS,
                "role": const("assistant"),
                "content": array(
                    obj(
                        {
                            "type": const("output_text"),
                            "text": STRING,
                            "annotations": array(OBJECT),
                            "logprobs": array(OBJECT),
                        }
                    )
                ),
            }
        ),
        obj(
            {
                "id": STRING,
                "type": const("function_call"),
                "status": _STATUS,
                "call_id": STRING,
                "name": STRING,
                "arguments": STRING,
            }
        ),
    ),
    "Response": obj(
        {
            "id": STRING,
            "object": const("response"),
            "created_at": COUNT,
            "status": enum("in_progress", "completed", "incomplete", "failed"),
            "model": STRING,
            "output": array(ref("ResponseItem")),
            "error": nullable(obj({"code": STRING, "message": STRING})),
            "incomplete_details": nullable(obj({"reason": STRING})),
            "usage": nullable(
                obj(
                    {
                        "input_tokens": COUNT,
                        "input_tokens_details": obj({"cached_tokens": COUNT}),
                        "output_tokens": COUNT,
                        "output_tokens_details": obj({"reasoning_tokens": COUNT}),
                        "total_tokens": COUNT,
                        "enginebay": describe(obj(_ENERGY, tuple(_ENERGY)), "With include_energy."),
                    },
                    ("enginebay",),
                )
            ),
            "instructions": nullable(STRING),
            "max_output_tokens": nullable(INTEGER),
            "metadata": OBJECT,
            "parallel_tool_calls": BOOLEAN,
            "temperature": nullable(NUMBER),
            "top_p": nullable(NUMBER),
            "text": OBJECT,
            "tool_choice": any_of(STRING, OBJECT),
            "tools": array(OBJECT),
            "store": const(False),
            "truncation": const("disabled"),
        }
    ),
    "ResponseEvent": obj(
        {
            "type": describe(
                STRING,
                "OpenAI's event types: response.created, response.output_text.delta, response.completed and so on",
            ),
            "sequence_number": COUNT,
        }
    ),
    **ADMIN_RESPONSE_COMPONENTS,
}
