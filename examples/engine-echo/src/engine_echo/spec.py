"""The echo engine's spec. Keep it light: it is imported without the engine's library."""

from enginebay.contract import EngineSpec, Runtime, Setting, honours, parameters, refuses

SUPPORTED = {
    "max_tokens": honours(),
    "stop": honours(),
    "stop_token_ids": honours(),
    "n": honours(),
    "temperature": honours("a higher temperature adds noise"),
    "do_sample": honours(),
    "seed": honours(),
    "ignore_eos": honours("repeats the prompt up to max_tokens"),
}
SPEC = EngineSpec(
    kind="echo",
    summary="repeats the prompt",
    engine="engine_echo.engine:EchoEngine",
    module="engine_echo",
    distributions=("engine-echo",),
    formats=("fake",),  # models without weights, whose tokens are bytes
    runtime=Runtime(),
    request={
        name: SUPPORTED.get(name, refuses("use another engine: this one repeats the prompt")) for name in parameters()
    },
    settings={"step_s": Setting("float", "Pause after each step in seconds", default=0.0, minimum=0)},
)
