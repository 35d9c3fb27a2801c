"""Capabilities and settings of the openai engine: OpenAI's parameters, and vLLM's extra fields if the server has them."""

from __future__ import annotations

from enginebay.contract import EngineSpec, Runtime, Setting, honours, refuses, translates

EXTRAS = "set openai.extras: true if the server accepts vLLM's extra fields"
_WITH_EXTRAS = "with openai.extras"
_BEAMS = "engine transformers: beams cannot be streamed"

# Refused unless the setting `extras` is on: OpenAI's API does not have them.
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
    "max_tokens": honours("unset in a chat: the server's limit"),
    "stop": honours("OpenAI itself allows at most four"),
    "seed": honours(),
    "n": honours(),
    "best_of": refuses("n: ranking needs logprobs"),
    "num_beams": refuses(_BEAMS),
    "length_penalty": refuses(_BEAMS),
    "early_stopping": refuses(_BEAMS),
    "logprobs": refuses("a local engine: the remote server's token ids are unknown"),
    "logit_bias": honours("by the token ids of the remote model"),
    "guided_json": honours("response_format, strict; for plain prompts only with openai.extras"),
    "lora": refuses("openai.model: the server's name of the adapter"),
    "embeddings": refuses("a local engine: the remote server's token ids are unknown"),
    **{name: honours(_WITH_EXTRAS) for name in EXTRA_PARAMETERS},
}

SPEC = EngineSpec(
    kind="openai",
    summary="any remote server with OpenAI's API: TGI, LoRAX, TensorRT-LLM, vLLM, a cloud provider",
    engine="enginebay.engines.openai.engine:OpenAIEngine",
    module="",
    distributions=(),
    formats=("remote",),
    runtime=Runtime(),
    renders=True,
    remote=True,
    env_prefixes=("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "SSL_CERT_"),
    request=REQUEST,
    settings={
        "url": Setting(
            "str",
            "The server's base URL including /v1; required. TLS certificates are always verified",
            sensitive="sends prompts to a URL",
        ),
        "model": Setting("str", "The server's name of the model. Unset: the model's name here"),
        "key_env": Setting(
            "str", "Environment variable with the API key", sensitive="names a secret", names_variable=True
        ),
        "key_file": Setting("str", "File with the API key", sensitive="names a secret"),
        "connect_timeout_s": Setting("float", "Connect timeout, in seconds", default=10.0, minimum=0.1),
        "first_token_timeout_s": Setting(
            "float", "Timeout for the first token, in seconds", default=120.0, minimum=0.1
        ),
        "token_timeout_s": Setting("float", "Timeout between two tokens, in seconds", default=60.0, minimum=0.1),
        "retries": Setting(
            "int",
            "Retries of a request that got no response, or status 429, 502, 503 or 504",
            default=2,
            minimum=0,
            maximum=10,
        ),
        "context_length": Setting(
            "int",
            "Tokens of prompt and output together. Unset: from the server's model list, if reported",
            minimum=1,
        ),
        "max_batch": Setting("int", "Maximum concurrent requests; others wait", default=256, minimum=1),
        "extras": Setting("bool", "The server accepts vLLM's extra fields: top_k, min_p, ...", default=False),
        "neutral": Setting(
            "bool",
            "Send neutral values for unset parameters, so that the server's defaults do not apply; "
            "turn it off for servers that reject them",
            default=True,
        ),
        "max_tokens_name": Setting(
            "str",
            "Field that limits a chat's output; newer OpenAI models need the longer name",
            default="max_tokens",
            choices=("max_tokens", "max_completion_tokens"),
        ),
        "verify": Setting("bool", "Check at load that the server responds and has the model", default=True),
    },
)
