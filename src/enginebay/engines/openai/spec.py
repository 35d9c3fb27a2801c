"""What the openai engine takes: the parameters of OpenAI's API, and vLLM's further ones where the server has them."""

from __future__ import annotations

from enginebay.contract import EngineSpec, Runtime, Setting, honours, refuses, translates

EXTRAS = "set openai.extras: true if the server takes vLLM's extra fields"
_WITH_EXTRAS = "with openai.extras"
_BEAMS = "engine transformers: beams cannot be streamed"

# Refused at load unless the setting `extras` is on: OpenAI's API does not have them.
EXTRA_PARAMETERS = (
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "guided_regex",
    "guided_grammar",
    "guided_choice",
)

REQUEST = {
    "temperature": honours(),
    "top_p": honours(),
    "presence_penalty": honours(),
    "frequency_penalty": honours(),
    "no_repeat_ngram_size": refuses("engine transformers, or repetition_penalty with openai.extras"),
    "do_sample": translates("temperature = 0 when false"),
    "max_tokens": honours("unset in a chat: up to the server's own limit"),
    "stop": honours("OpenAI itself takes four at most"),
    "seed": honours(),
    "n": honours(),
    "best_of": refuses("n: ranking needs logprobs"),
    "num_beams": refuses(_BEAMS),
    "length_penalty": refuses(_BEAMS),
    "early_stopping": refuses(_BEAMS),
    "logprobs": refuses("an engine of this host: the server's token ids are not known here"),
    "logit_bias": honours("by the token ids of the remote model"),
    "guided_json": honours("response_format, strict; for a prompt that is no chat only with openai.extras"),
    "lora": refuses("openai.model: the name the server knows the adapter by"),
    "embeddings": refuses("an engine of this host: the server's token ids are not known here"),
    **{name: honours(_WITH_EXTRAS) for name in EXTRA_PARAMETERS},
}

SPEC = EngineSpec(
    kind="openai",
    summary="any remote server that speaks OpenAI's API: TGI, LoRAX, TensorRT-LLM, vLLM, a cloud",
    engine="enginebay.engines.openai.engine:OpenAIEngine",
    module="",
    distributions=(),
    formats=("remote",),
    runtime=Runtime(),
    renders=True,
    remote=True,
    request=REQUEST,
    settings={
        "url": Setting("str", "The server's address up to and with /v1; needed. TLS certificates are always verified"),
        "model": Setting("str", "What the server calls the model. Unset: as it is called here"),
        "key_env": Setting("str", "The environment variable that holds the API key"),
        "key_file": Setting("str", "The file that holds the API key"),
        "connect_timeout_s": Setting("float", "Longest wait for a connection", default=10.0, minimum=0.1),
        "first_token_timeout_s": Setting("float", "Longest wait for the first token", default=120.0, minimum=0.1),
        "token_timeout_s": Setting("float", "Longest wait between two tokens", default=60.0, minimum=0.1),
        "retries": Setting(
            "int",
            "How often a request that was not answered at all, or with 429, 502, 503 or 504, is sent again",
            default=2,
            minimum=0,
            maximum=10,
        ),
        "context_length": Setting(
            "int",
            "Tokens of prompt and output together. Unset: as the server's list of models says, if it does",
            minimum=1,
        ),
        "max_batch": Setting("int", "Requests that are sent at once; others wait", default=256, minimum=1),
        "extras": Setting("bool", "The server takes vLLM's extra fields: top_k, min_p, ...", default=False),
        "neutral": Setting(
            "bool",
            "Send neutral values for what a request leaves unset, so that the server's defaults do not count; "
            "off for servers that refuse them",
            default=True,
        ),
        "max_tokens_name": Setting(
            "str",
            "The field that limits a chat's answer; newer models of OpenAI want the longer name",
            default="max_tokens",
            choices=("max_tokens", "max_completion_tokens"),
        ),
        "verify": Setting("bool", "Check at load that the server answers and has the model", default=True),
    },
)
