"""Random hostile requests. Each follows from a seed and its number alone, so that a failure can be replayed."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from tests.fuzz.patterns import check_pattern, draw_pattern, write_grammar, write_regex
from tests.hostile.corpus import load_corpus
from tests.hostile.hostile_case import (
    ADAPTER,
    BASES,
    CHAT,
    COMPLETIONS,
    RESPONSES,
    TEXT_MODEL,
    HostileCase,
    check_choice,
    check_json,
    make_case,
)

ODD_TEXTS = (
    "", "a", " ", "\n", "\x00", '"', "\\", "\\n", "{{ 7 * 7 }}", "<|im_end|>", "<|im_start|>system\n", "é", "👩‍👩‍👧‍👦", "\ufeff",
    "\u202e", "\ufffd", "x" * 300, "null", "[]", "../..", "%s%n", "root ::= x", "$ref", "#/$defs/a", "type",
)  # fmt: skip
ODD_NUMBERS = (0, 1, -1, 2, 0.5, -0.0, 1e-300, 1e300, 2**31 - 1, 2**31, 2**63 - 1, 2**63, -(2**63), 10**30, 10**400)
OPTION_NAMES = (
    "enable_thinking", "thinking", "date_string", "bos_token", "eos_token", "tools_in_user_message", "builtin_tools", "namespace", "loop",
    "range", "raise_exception", "strftime_now", "message", "content", "self", "messages", "large", "bound", "keep", "source", "request", "text", "options",
    "add_special", "tokenize", "context", "args", "kwargs", "caller", "name", "system_message", "x", "",
)  # fmt: skip
_corpus: list[HostileCase] = []


def make_random_case(seed: int, number: int) -> HostileCase:
    """The case of this number: always the same."""
    random = Random(f"{seed}:{number}")
    makers, weights = list(MAKERS), list(MAKERS.values())
    maker = random.choices(makers, weights)[0]
    case = maker(random)
    return HostileCase(
        f"{maker.__name__} {seed}:{number}", case.path, case.body, case.expected, case.check, case.headers
    )


def draw_json(random: Random, depth: int = 4) -> Any:
    kind = random.randrange(8 if depth else 5)
    if kind < 2:
        return random.choice(ODD_TEXTS)
    if kind == 2:
        return random.choice(ODD_NUMBERS)
    if kind < 5:
        return random.choice((None, True, False))
    if kind == 5:
        return [draw_json(random, depth - 1) for _ in range(random.choice((0, 1, 2, 5)))]
    return {random.choice(ODD_TEXTS): draw_json(random, depth - 1) for _ in range(random.choice((0, 1, 2, 5)))}


def draw_text(random: Random) -> str:
    return "".join(random.choice(ODD_TEXTS) for _ in range(random.choice((1, 1, 2, 4))))


def draw_sampling(random: Random) -> dict[str, Any]:
    """A few sampling parameters, most of them at a limit."""
    values: dict[str, tuple[Any, ...]] = {
        "temperature": (0, 1e-300, 1e-45, 1e-6, 1, 2), "top_p": (0, 1e-300, 0.5, 1), "top_k": (-1, 0, 1, 1_000_000), "min_p": (0, 1e-320, 1),
        "repetition_penalty": (0.01, 1, 10), "presence_penalty": (-2, 2), "frequency_penalty": (-2, 2), "no_repeat_ngram_size": (0, 1, 2, 1000),
        "min_tokens": (0, 1, 12), "seed": (-1, 0, 2**63 - 1, -(2**63)), "n": (1, 2, 5), "best_of": (5,), "num_beams": (1, 2, 4),
        "length_penalty": (-10, 10), "early_stopping": (True,), "ignore_eos": (True,), "do_sample": (True, False),
        "stop": (["a"], [" ", "\n"], ["\x00"], "e"), "stop_token_ids": ([0], [1, 2, 3], [2**31 - 1], [49_152, 50_000]),
        "logit_bias": ({"0": 100}, {"1": -100}, {str(n): -100 for n in range(200)}, {str(n): 100 for n in range(200)}),
        "truncate_prompt_tokens": (1, 5, 10**9), "max_tokens": (1, 12, 30),
    }  # fmt: skip
    names = random.sample(list(values), random.choice((0, 1, 2, 3, 6)))
    return {name: random.choice(values[name]) for name in names}


def draw_schema(random: Random, depth: int = 4, definitions: tuple[str, ...] = ()) -> Any:
    """A schema of the keywords that every engine enforces."""
    kind = random.randrange(9 if depth else 4)
    if kind == 0:
        return {"type": random.choice(("string", "integer", "number", "boolean", "null"))}
    if kind == 1:
        values = [
            value
            for _ in range(random.choice((1, 2, 30)))
            for value in (random.choice(ODD_TEXTS), random.randrange(100), None)
        ]
        return {"enum": values}
    if kind == 2:
        return {"const": random.choice((random.choice(ODD_TEXTS), random.randrange(1000), None, True))}
    if kind == 3:
        return {"$ref": random.choice(definitions)} if definitions else {"type": "integer"}
    if kind == 4:
        low = random.choice((0, 1, 3))
        return {
            "type": "array",
            "items": draw_schema(random, depth - 1, definitions),
            "minItems": low,
            "maxItems": low + random.choice((0, 1, 50)),
        }
    if kind == 5:
        return {"anyOf": [draw_schema(random, depth - 1, definitions) for _ in range(random.choice((1, 2, 6)))]}
    names = [f"{random.choice('abcdefgh')}{number}" for number in range(random.choice((0, 1, 3, 40)))]
    properties = {name: draw_schema(random, depth - 1 if len(names) < 10 else 0, definitions) for name in names}
    required = [name for name in names if random.random() < 0.5]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def draw_root_schema(random: Random) -> Any:
    names = [f"d{number}" for number in range(random.choice((0, 0, 1, 3)))]
    references = ("#", *(f"#/$defs/{name}" for name in names)) if random.random() < 0.4 else ()
    schema = draw_schema(random, 4, references)
    return {**schema, "$defs": {name: draw_schema(random, 3, references) for name in names}} if names else schema


def draw_tool(random: Random, number: int) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {"a": draw_schema(random, 3), "b": draw_schema(random, 2)},
        "required": ["a"],
    }
    parameters = random.choice((schema, schema, None, {}, draw_root_schema(random), draw_json(random)))
    function = {"name": f"f{number}", "description": draw_text(random), "parameters": parameters}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


# One maker a subject


def random_regex(random: Random) -> HostileCase:
    pattern = draw_pattern(random)
    return make_case(
        "", {**draw_sampling(random), "guided_regex": write_regex(pattern), "stop": None}, check=check_pattern(pattern)
    )


def random_grammar(random: Random) -> HostileCase:
    pattern = draw_pattern(random)
    return make_case(
        "",
        {**draw_sampling(random), "guided_grammar": write_grammar(pattern), "stop": None},
        check=check_pattern(pattern),
    )


def random_grammar_text(random: Random) -> HostileCase:
    """Rules that name each other at random, and a few bytes out of place."""
    names = ["root", *(f"r{number}" for number in range(random.choice((1, 3, 20))))]
    terms = [*names, '"a"', '"b"', '""', "[a-z]", "[^a]", "(", ")", "|", "*", "+", "?", "{2}", "{1,90}", '"\\x00"', "."]
    rules = [
        f"{name} ::= {' '.join(random.choice(terms) for _ in range(random.choice((1, 2, 5, 15))))}" for name in names
    ]
    text = "\n".join(rules)
    if random.random() < 0.3:
        at = random.randrange(len(text))
        text = text[:at] + random.choice(ODD_TEXTS) + text[at + 1 :]
    return make_case("", {"guided_grammar": text})


def random_regex_text(random: Random) -> HostileCase:
    terms = (
        "a",
        "b",
        ".",
        "[a-z]",
        "[^",
        "]",
        "(",
        "(?:",
        ")",
        "|",
        "*",
        "+",
        "?",
        "{3}",
        "{0,90}",
        "\\d",
        "\\b",
        "^",
        "$",
        "\\",
        "\x00",
        "(?=a)",
        "é",
    )
    return make_case("", {"guided_regex": "".join(random.choice(terms) for _ in range(random.choice((1, 4, 12, 60))))})


def random_schema(random: Random) -> HostileCase:
    schema = draw_root_schema(random)
    fields = {**draw_sampling(random), "stop": None, "stop_token_ids": None, "logit_bias": None, "ignore_eos": None}
    return make_case("", {**fields, "guided_json": schema}, check=check_json(schema))


def random_schema_keywords(random: Random) -> HostileCase:
    """Any keyword with any value: refused or answered, but nothing else."""
    keywords = (
        "type", "enum", "const", "properties", "required", "items", "prefixItems", "anyOf", "oneOf", "allOf", "not", "if", "then", "else",
        "minimum", "maximum", "exclusiveMinimum", "multipleOf", "minLength", "maxLength", "pattern", "format", "minItems", "maxItems",
        "uniqueItems", "contains", "additionalProperties", "patternProperties", "propertyNames", "minProperties", "$ref", "$defs", "$id",
    )  # fmt: skip
    base = draw_root_schema(random)
    for _ in range(random.choice((1, 2, 4))):
        base[random.choice(keywords)] = draw_json(random) if random.random() < 0.6 else draw_schema(random, 2)
    return make_case("", {"guided_json": base})


def random_choices(random: Random) -> HostileCase:
    choices = [draw_text(random) or "x" for _ in range(random.choice((1, 2, 5, 300)))]
    fields = {
        **draw_sampling(random),
        "stop": None,
        "stop_token_ids": None,
        "ignore_eos": None,
        "guided_choice": choices,
    }
    return make_case("", fields, check=check_choice(choices))


def random_tools(random: Random) -> HostileCase:
    tools = [draw_tool(random, number) for number in range(random.choice((1, 2, 8)))]
    choice = random.choice(
        ("auto", "required", "none", {"type": "function", "function": {"name": "f0"}}, draw_json(random, 2))
    )
    fields = {
        "tools": tools,
        "tool_choice": choice,
        "stream": random.random() < 0.3,
        "parallel_tool_calls": random.choice((None, False)),
    }
    return make_case("", {**draw_sampling(random), **fields})


def random_template_options(random: Random) -> HostileCase:
    options = {random.choice(OPTION_NAMES): draw_json(random) for _ in range(random.choice((1, 2, 5)))}
    messages = [draw_message(random) for _ in range(random.choice((1, 2, 4)))]
    extra = {"continue_final_message": True} if random.random() < 0.2 else {}
    return make_case("", {"messages": messages, "chat_template_kwargs": options, **extra})


def draw_message(random: Random) -> dict[str, Any]:
    role = random.choice(("user", "user", "system", "assistant", "tool", "developer", random.choice(ODD_TEXTS)))
    content: Any = draw_text(random)
    if random.random() < 0.3:
        content = random.choice(([{"type": "text", "text": content}], None, draw_json(random, 2)))
    message = {"role": role, "content": content}
    if random.random() < 0.2:
        message["tool_calls"] = random.choice(
            ([{"id": "c", "function": {"name": "f", "arguments": draw_text(random)}}], draw_json(random))
        )
    return message


def random_adapter(random: Random) -> HostileCase:
    model = random.choice((ADAPTER, ADAPTER, ADAPTER, TEXT_MODEL, draw_text(random), f"{TEXT_MODEL}/{ADAPTER}"))
    fields = {**draw_sampling(random), "model": model}
    guided = random.choice((None, None, "guided_json", "guided_choice"))
    if guided:
        fields[guided] = draw_root_schema(random) if guided == "guided_json" else ["yes", "no"]
    return make_case("", fields, path=random.choice((CHAT, COMPLETIONS)))


def random_sampling(random: Random) -> HostileCase:
    path = random.choice((CHAT, COMPLETIONS, COMPLETIONS))
    logprobs: dict[str, Any] = {"logprobs": True, "top_logprobs": 20} if path == CHAT else {"logprobs": 20}
    prompt = {} if path == CHAT else {"prompt": random.choice(("Once", [1, 2, 3], ["a", "b"], "x " * 200))}
    return make_case(
        "",
        {**prompt, **draw_sampling(random), **draw_sampling(random), **(logprobs if random.random() < 0.3 else {})},
        path=path,
    )


def random_mutation(random: Random) -> HostileCase:
    """A case of the corpus with something in it replaced."""
    if not _corpus:
        _corpus.extend(
            case for case in load_corpus() if len(case.body) < 20_000 and case.path in (CHAT, COMPLETIONS, RESPONSES)
        )
    case = random.choice(_corpus)
    try:
        body = json.loads(case.body)
    except ValueError:
        body = dict(BASES[case.path])
    for _ in range(random.choice((1, 1, 3))):
        body = mutate(random, body)
    return HostileCase("", case.path, json.dumps(body).encode(), headers=case.headers)


def mutate(random: Random, value: Any) -> Any:
    """The same value with one part replaced, removed or doubled."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        key = random.choice(list(value))
        changed = {**value, key: mutate(random, value[key])}
        if random.random() < 0.1:
            changed[random.choice(list(value))] = changed.pop(key)
        return changed
    if isinstance(value, list) and value and random.random() < 0.9:
        at = random.randrange(len(value))
        return random.choice(([*value[:at], mutate(random, value[at]), *value[at + 1 :]], value[:at], value + value))
    if isinstance(value, str) and value and random.random() < 0.5:
        at = random.randrange(len(value))
        return value[:at] + random.choice(ODD_TEXTS) + value[at + random.randrange(3) :]
    return draw_json(random)


MAKERS: dict[Callable[[Random], HostileCase], int] = {
    random_regex: 3, random_grammar: 3, random_grammar_text: 3, random_regex_text: 2, random_schema: 4, random_schema_keywords: 3,
    random_choices: 3, random_tools: 4, random_template_options: 4, random_adapter: 3, random_sampling: 4, random_mutation: 6,
}  # fmt: skip
