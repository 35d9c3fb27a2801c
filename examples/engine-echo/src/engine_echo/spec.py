"""The echo engine's spec. Keep it light: it is imported without the engine's library."""

from enginebay.contract import (
    EngineSpec,
    Isolation,
    Preference,
    Preset,
    Runtime,
    Setting,
    TrimProfile,
    honours,
    parameters,
    refuses,
)

SUPPORTED = {
    "min_tokens": honours("repeats the prompt until then"),
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
    formats=("fake",),  # models without weights
    byte_tokens=True,
    runtime=Runtime(),
    request={
        name: SUPPORTED.get(name, refuses("another engine: this one repeats the prompt")) for name in parameters()
    },
    settings={
        "step_s": Setting(
            "float",
            "Pause after each step in seconds",
            default=0.0,
            minimum=0,
            aliases=("pause",),  # accepted in a configuration: a name that users know from elsewhere
            tune=(0.0, 0.01, 0.1),  # what `sweep: {echo.step_s: auto}` compares
        ),
        "cache_bytes": Setting("int", "Memory to reserve", minimum=1),
    },
    smaller=("cache_bytes",),  # halved for a second try after a load ran out of memory
    tasks=("generate",),
    # conversions={"gguf": "safetensors"}: stored formats that bay converts before a load
    preferences=(Preference("fake", "cpu", 5, "repeats the prompt at no cost"),),  # how `auto` ranks it
    device_bound=False,  # True: a build for CUDA does not run on a CPU, or vice versa
    memory="engine_echo.memory:estimate_memory",
    presets=(Preset("echo-slow", "echo", "a slow engine", "Pauses between tokens.", {"step_s": 0.05}),),
    trims=(  # what `bay bundle create --trim NAME` leaves out, and why
        TrimProfile("tiny", "echo", "engine-echo", files={"engine_echo/py.typed": "only type checkers read it"}),
    ),
    isolation=Isolation.PROCESS,
)
