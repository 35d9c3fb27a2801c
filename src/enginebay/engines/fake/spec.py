"""The fake engine's spec: no library, no weights, failures on demand. Tokens are bytes; 256 is the EOS token."""

from __future__ import annotations

from enginebay.contract import EngineSpec, GpuSettings, Runtime, Setting, honours, refuses, translates

_REAL = "use a real engine, or set the output as `script`"

SPEC = EngineSpec(
    kind="fake",
    summary="scripted tokens, delays and failures, for tests",
    engine="enginebay.engines.fake.engine:FakeEngine",
    module="",
    distributions=(),
    formats=("fake",),
    byte_tokens=True,
    continues=True,
    runtime=Runtime(),
    request={
        "temperature": honours(),
        "top_p": honours(),
        "top_k": honours("0 and -1 are off"),
        "min_p": honours(),
        "repetition_penalty": honours(),
        "presence_penalty": honours(),
        "frequency_penalty": honours(),
        "no_repeat_ngram_size": honours(),
        "do_sample": honours(),
        "min_tokens": honours(),
        "max_tokens": honours(),
        "stop": honours(),
        "stop_token_ids": honours(),
        "ignore_eos": honours(),
        "seed": honours(),
        "n": honours(),
        "best_of": translates("n = best_of, the best n by mean logprob"),
        "num_beams": refuses("best_of, or engine transformers"),
        "length_penalty": refuses("engine transformers: it only matters in beam search"),
        "early_stopping": refuses("engine transformers: it only matters in beam search"),
        "logprobs": honours(),
        "logit_bias": honours(),
        "guided_json": honours("always the same small instance of the schema; ignores patterns and formats"),
        "guided_regex": refuses(_REAL),
        "guided_grammar": refuses(_REAL),
        "guided_choice": honours(),
        "lora": honours("each adapter name generates different text"),
        "embeddings": honours(),
    },
    settings={
        "script": Setting(
            "str",
            "The output of every request; sampling has no effect. Unset: random text that follows the sampling parameters",
        ),
        "script_by_prompt": Setting(
            "map", "Outputs by prompt: the first key that occurs in the prompt selects the output"
        ),
        "script_rules": Setting(
            "list",
            "Outputs by turn and tool, tried before the other scripts. The first rule whose conditions hold (turn, after_tool, tool_offered, prompt_contains) gives the output: text, or call with a name and arguments",
        ),
        "context_length": Setting("int", "Tokens of prompt and output together", default=4096, minimum=1),
        "max_batch": Setting("int", "Maximum requests per step", default=256, minimum=1),
        "load_s": Setting("float", "Duration of a load in seconds", default=0.0, minimum=0),
        "step_s": Setting("float", "Duration of a step in seconds; 0: no delay", default=0.0, minimum=0),
        "prefill_s": Setting(
            "float", "Delay before the first token of each request, in seconds", default=0.0, minimum=0
        ),
        "fail_load": Setting("str", "Fail while loading", choices=("error", "crash", "out_of_memory", "hang")),
        "crash_after_tokens": Setting("int", "Crash the worker after this many tokens in total", minimum=1),
        "hang_after_tokens": Setting("int", "Hang after this many tokens in total", minimum=1),
        "crash_on_prompt": Setting("str", "Crash the worker when a prompt contains this text"),
        "hang_on_prompt": Setting("str", "Hang when a prompt contains this text"),
        "fail_after_tokens": Setting("int", "Fail each request after this many tokens", minimum=1),
        "memory_bytes": Setting("int", "Memory use that the engine reports", default=0, minimum=0),
        "gpu_memory_bytes": Setting("int", "Memory that it claims on each of its GPUs; unset: it uses none", minimum=0),
        "gpu_memory_fraction": Setting("float", "Fraction of a GPU's memory that it claims", minimum=0.01, maximum=1),
        "tensor_parallel_size": Setting("int", "GPUs of one copy, times pipeline_parallel_size", minimum=1),
        "pipeline_parallel_size": Setting("int", "GPUs of one copy, times tensor_parallel_size", minimum=1),
        "oom_above": Setting("int", "Run out of memory while loading if context_length is above this", minimum=1),
        "sleep_s": Setting("float", "Duration of going to sleep in seconds", default=0.0, minimum=0),
        "wake_s": Setting("float", "Duration of waking up in seconds", default=0.0, minimum=0),
        "wake_fails": Setting("bool", "Fail on wake-up", default=False),
        "token_s": Setting(
            "float", "Extra step duration per token in seconds, prompt tokens included", default=0.0, minimum=0
        ),
        "idle_w": Setting("float", "Idle power in watts; enables the simulated energy meter", minimum=0),
        "busy_w": Setting("float", "Busy power in watts", default=0.0, minimum=0),
    },
    smaller=("context_length",),
    tasks=("generate", "embed"),
    memory="enginebay.engines.fake.memory:estimate_memory",
    gpu_settings=GpuSettings(
        count=("tensor_parallel_size", "pipeline_parallel_size"),
        memory_fraction="gpu_memory_fraction",
        default_fraction=0.92,
    ),
)
