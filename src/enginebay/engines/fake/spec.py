"""The fake engine: no library, no weights, and every failure on demand. Tokens are bytes; 256 ends a sequence."""

from __future__ import annotations

from enginebay.contract import EngineSpec, Runtime, Setting, honours, refuses, translates

_REAL = "use a real engine, or give the wanted output as `script`"

SPEC = EngineSpec(
    kind="fake",
    summary="scripted tokens, delays and failures, for tests",
    engine="enginebay.engines.fake.engine:FakeEngine",
    module="",
    distributions=(),
    formats=("fake",),
    byte_tokens=True,
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
        "guided_json": honours("the same small instance of the schema every time, whatever its patterns and formats"),
        "guided_regex": refuses(_REAL),
        "guided_grammar": refuses(_REAL),
        "guided_choice": honours(),
        "lora": honours("another babble for each adapter name"),
        "embeddings": honours(),
    },
    settings={
        "script": Setting(
            "str", "What every request answers; sampling then has no effect. Unset: babble that obeys sampling"
        ),
        "script_by_prompt": Setting("map", "Answers by a piece of the prompt: the first key found in it decides"),
        "context_length": Setting("int", "Tokens of prompt and output together", default=4096, minimum=1),
        "max_batch": Setting("int", "Requests computed in one step", default=256, minimum=1),
        "load_s": Setting("float", "How long loading takes", default=0.0, minimum=0),
        "step_s": Setting("float", "How long one step takes; 0 is as fast as it goes", default=0.0, minimum=0),
        "prefill_s": Setting("float", "How long each prompt takes before its first token", default=0.0, minimum=0),
        "fail_load": Setting("str", "Fail while loading", choices=("error", "crash", "out_of_memory", "hang")),
        "crash_after_tokens": Setting("int", "Kill the worker after that many tokens in all", minimum=1),
        "hang_after_tokens": Setting("int", "Stop stepping after that many tokens in all", minimum=1),
        "fail_after_tokens": Setting("int", "Fail each request after that many of its tokens", minimum=1),
        "memory_bytes": Setting("int", "The memory it says it takes", default=0, minimum=0),
        "oom_above": Setting("int", "Loading runs out of memory when context_length is above this", minimum=1),
        "sleep_s": Setting("float", "How long falling asleep takes", default=0.0, minimum=0),
        "wake_s": Setting("float", "How long waking takes", default=0.0, minimum=0),
        "wake_fails": Setting("bool", "Fail when woken", default=False),
        "token_s": Setting(
            "float", "How much longer a step takes for each of its tokens, those of prompts too", default=0.0, minimum=0
        ),
        "idle_w": Setting("float", "It has an energy counter, and draws so much with nothing to do", minimum=0),
        "busy_w": Setting("float", "And so much while it computes", default=0.0, minimum=0),
    },
    smaller=("context_length",),
)
