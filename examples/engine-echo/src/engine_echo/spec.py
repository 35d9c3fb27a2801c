"""What the echo engine declares. Light: imported where the engine's library is not."""

from enginebay.contract import EngineSpec, Runtime, Setting, honours, parameters, refuses

DOES = {
    "max_tokens": honours(),
    "stop": honours(),
    "stop_token_ids": honours(),
    "n": honours(),
    "temperature": honours("the hotter, the less faithful the echo"),
    "do_sample": honours(),
    "seed": honours(),
    "ignore_eos": honours("repeats the prompt again and again, up to max_tokens"),
}
SPEC = EngineSpec(
    kind="echo",
    summary="repeats the prompt",
    engine="engine_echo.engine:EchoEngine",
    module="engine_echo",
    distributions=("engine-echo",),
    formats=("fake",),  # models without weights, whose tokens are bytes
    runtime=Runtime(),
    request={name: DOES.get(name, refuses("another engine: this one repeats the prompt")) for name in parameters()},
    settings={"step_s": Setting("float", "How long one step takes", default=0.0, minimum=0)},
)
