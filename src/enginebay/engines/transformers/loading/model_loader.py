"""Loads a model directory with transformers, and translates its errors."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer

from enginebay.contract import Load
from enginebay.engines.transformers.distributed.ranks import RankInfo
from enginebay.engines.transformers.loading.load_options import LoadOptions, resolve_context_length
from enginebay.engines.transformers.loading.quantized_weights import get_quantization_method, load_dense_weights
from enginebay.errors import LoadFailed, ModelInvalid, OutOfMemory, UnknownArchitecture

_LAZY_MODULES = (
    "accelerate",
    "safetensors.torch",
    "transformers.core_model_loading",
    "transformers.generation",
    "transformers.integrations.peft",
    "transformers.integrations.sdpa_attention",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
    "transformers.tokenization_utils_tokenizers",
)  # without peft and xgrammar: they take two seconds, and few loads need them


def import_lazy_modules() -> None:
    """Import what most loads need, skipping missing modules: a load that needs one reports it."""
    for name in _LAZY_MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


_OUT_OF_MEMORY = ("can't allocate memory", "cannot allocate memory", "not enough memory", "out of memory")


@dataclass(slots=True)
class LoadedModel:
    """A model on its device, with its tokenizer and metadata."""

    model: Any
    device: Any  # of its inputs
    dtype: str
    tokenizer: Any  # tokenizers.Tokenizer
    hf_tokenizer: Any
    eos_token_ids: frozenset[int]
    pad_token_id: int
    context_length: int
    vocab_size: int
    attention: str
    quantization: str | None = None
    warnings: tuple[str, ...] = ()


def load_model(load: Load, options: LoadOptions, rank_info: RankInfo) -> LoadedModel:
    """Load the weights, tokenizer and special tokens of `load.path`."""
    path = Path(load.path)
    check_weights(path)
    device = choose_device(options, rank_info)
    dtype = options.dtype or ("bfloat16" if device.type == "cuda" else "float32")
    with translate_load_errors(load.path):
        config = transformers.AutoConfig.from_pretrained(path, trust_remote_code=load.trust_remote_code)
        text = config.get_text_config()
        _check_quantization(config, options)
        _apply_rope_scaling(text, options)
        length = resolve_context_length(text.to_dict(), options.context_length, options.rope_scaling)
        arguments = build_load_arguments(load, options, rank_info, device, dtype)
        method = get_quantization_method(config)
        unpack = method in ("gptq", "awq") and importlib.util.find_spec("gptqmodel") is None
        if unpack:
            model = _load_unpacked_model(path, config, arguments)
        else:
            model = _choose_model_class(config, load.task).from_pretrained(path, config=config, **arguments)
        hf_tokenizer = transformers.AutoTokenizer.from_pretrained(path, trust_remote_code=load.trust_remote_code)
    model.eval()
    eos = collect_eos_token_ids(model, hf_tokenizer)
    pad = hf_tokenizer.pad_token_id
    pad = pad if pad is not None else min(eos, default=0)
    _clear_generation_defaults(model, pad)
    return LoadedModel(
        model,
        model.device,
        str(model.dtype).removeprefix("torch."),
        load_fast_tokenizer(path, hf_tokenizer),
        hf_tokenizer,
        eos,
        pad,
        length,
        int(text.vocab_size),
        str(model.config.get_text_config()._attn_implementation),
        method or get_quantization_method(model.config),
        (f"{method} weights are unpacked to {dtype} because gptqmodel is not installed",) if unpack else (),
    )


def load_draft_model(options: LoadOptions, device: Any, load: Load) -> Any:
    """Load the draft model of assisted generation, if one is configured."""
    if options.draft_model is None:
        return None
    check_weights(Path(options.draft_model))
    with translate_load_errors(options.draft_model):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            options.draft_model, dtype="auto", use_safetensors=True, trust_remote_code=load.trust_remote_code
        ).to(device)
    model.eval()
    settings = model.generation_config
    settings.num_assistant_tokens = options.draft_tokens or 5
    settings.num_assistant_tokens_schedule = "constant"
    settings.assistant_confidence_threshold = 0.0  # always draft the configured number
    return model


def check_weights(path: Path) -> None:
    """Raise if the directory has no safetensors weights. Pickled weights can execute code."""
    if not path.is_dir():
        raise ModelInvalid(
            f"{path} is not a model directory", "use a directory with config.json and safetensors weights"
        )
    if not (path / "config.json").is_file():
        raise ModelInvalid(f"{path} has no config.json", "use a directory with config.json and safetensors weights")
    if any(path.glob("*.safetensors")):
        return
    if any(path.glob("*.bin")) or any(path.glob("*.pt")):
        raise ModelInvalid(
            f"{path} has only pickled weights, which can execute code", "convert the model to safetensors"
        )
    raise ModelInvalid(f"{path} has no safetensors weights", "use a directory with *.safetensors files")


def choose_device(options: LoadOptions, rank_info: RankInfo) -> Any:
    if options.device:
        return torch.device(options.device)
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) if rank_info.world_size > 1 else 0)
    return torch.device("cpu")


def build_load_arguments(
    load: Load, options: LoadOptions, rank_info: RankInfo, device: Any, dtype: str
) -> dict[str, Any]:
    """Return the keyword arguments of from_pretrained."""
    arguments: dict[str, Any] = {
        "dtype": dtype if dtype == "auto" else getattr(torch, dtype),
        "use_safetensors": True,
        "trust_remote_code": load.trust_remote_code,
    }
    if options.attention is not None:
        arguments["attn_implementation"] = options.attention
    if options.max_memory is not None:
        arguments["max_memory"] = dict(options.max_memory)
    if options.quantization_bits is not None:
        arguments["quantization_config"] = _build_bitsandbytes_config(options)
    if options.sharding == "tensor_parallel" and options.num_shards > 1:
        arguments |= build_tensor_parallel_arguments(options.num_shards, rank_info)
    elif options.device_map is not None or options.max_memory is not None or options.sharding == "pipeline":
        arguments["device_map"] = options.device_map or "auto"
    else:
        arguments["device_map"] = {"": device}
    return arguments | dict(options.extra)


def build_tensor_parallel_arguments(shards: int, rank_info: RankInfo) -> dict[str, Any]:
    """Return the tensor parallel arguments of this library version."""
    if rank_info.world_size != shards:
        raise LoadFailed(
            f"tensor_parallel with {shards} shards needs {shards} processes, but the world size is {rank_info.world_size}",
            "start the worker with launch mode torchrun",
        )
    try:
        from transformers.distributed import DistributedConfig

        return {"distributed_config": DistributedConfig(tp_size=shards, tp_plan="auto")}
    except (ImportError, TypeError):
        return {"tp_plan": "auto"}


def collect_eos_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the EOS tokens of the generation config, the tokenizer and the model config."""
    sources = [getattr(getattr(model, "generation_config", None), "eos_token_id", None), tokenizer.eos_token_id]
    sources.append(getattr(model.config.get_text_config(), "eos_token_id", None))
    eos_token_ids: set[int] = set()
    for ids in sources:
        if ids is not None:
            eos_token_ids |= {ids} if isinstance(ids, int) else set(ids)
    return frozenset(eos_token_ids)


def load_fast_tokenizer(path: Path, hf_tokenizer: Any) -> Any:
    """Load the bare fast tokenizer, without the padding and truncation that its file may configure."""
    if (path / "tokenizer.json").is_file():
        tokenizer: Any = Tokenizer.from_file(str(path / "tokenizer.json"))
    else:
        tokenizer = getattr(hf_tokenizer, "backend_tokenizer", None)
    if tokenizer is None:
        raise ModelInvalid(f"{path} has no tokenizer.json", "save a fast tokenizer beside the weights")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


@contextmanager
def translate_load_errors(path: str) -> Iterator[None]:
    """Translate the library's load errors to Enginebay errors with a one-line message."""
    try:
        yield
    except (LoadFailed, ModelInvalid):
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise OutOfMemory(
                f"not enough memory to load {path}", "use a smaller dtype, quantization or max_memory"
            ) from None
        name = type(error).__name__
        line = next((line.strip() for line in str(error).splitlines() if line.strip()), name)
        if name in ("SafetensorError", "JSONDecodeError"):
            raise ModelInvalid(f"{path} is corrupt: {line}", "fetch the model again") from None
        if "does not recognize this architecture" in str(error):
            raise UnknownArchitecture(
                f"transformers {transformers.__version__} does not support the model: {line}"
            ) from None
        raise LoadFailed(f"{path} cannot be loaded: {line}", _suggest_fix(line)) from None


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error).lower() for phrase in _OUT_OF_MEMORY)


def _suggest_fix(line: str) -> str:
    if "trust_remote_code" in line:
        return "set trust_remote_code: true if you trust the code in this directory"
    if "unexpected keyword argument" in line:
        return "remove it from `extra`"
    if "install" in line.lower():
        return "install the missing package into the engine's environment"
    return "check that this transformers version supports the architecture"


def _choose_model_class(config: Any, task: str) -> Any:
    if task == "embed":
        return transformers.AutoModel
    return transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM


def _build_bitsandbytes_config(options: LoadOptions) -> Any:
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it logs a cast warning for every layer of every step
    arguments = dict(options.bnb_arguments)
    if "bnb_4bit_compute_dtype" in arguments:
        arguments["bnb_4bit_compute_dtype"] = getattr(torch, arguments["bnb_4bit_compute_dtype"])
    return transformers.BitsAndBytesConfig(
        load_in_4bit=options.quantization_bits == 4, load_in_8bit=options.quantization_bits == 8, **arguments
    )


def _check_quantization(config: Any, options: LoadOptions) -> None:
    """Raise if the checkpoint is not quantized with `quantization_method`, which itself does not quantize."""
    expected, actual = options.quantization_method, get_quantization_method(config)
    if expected is not None and actual != expected:
        raise LoadFailed(
            f"quantization_method is {expected}, but the checkpoint is {actual or 'not quantized'}",
            "use a checkpoint with that quantization, or set quantization.load_in_4bit",
        )


def _load_unpacked_model(path: Path, config: Any, arguments: dict[str, Any]) -> Any:
    """Load a GPTQ or AWQ checkpoint as a dense model."""
    quantization = config.quantization_config
    settings = dict(quantization if isinstance(quantization, dict) else quantization.to_dict())
    architecture = (config.architectures or ["a model"])[0]
    model_class = getattr(transformers, architecture, None)
    if model_class is None:
        raise LoadFailed(f"{architecture} cannot be unpacked", "install gptqmodel into the engine's environment")
    del config.quantization_config
    model = model_class.from_pretrained(
        None, config=config, state_dict=load_dense_weights(path, settings, arguments["dtype"]), **arguments
    )
    if (path / "generation_config.json").is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(path)
    return model


def _apply_rope_scaling(config: Any, options: LoadOptions) -> None:
    if not options.rope_scaling:
        return
    current = dict(getattr(config, "rope_parameters", None) or {})
    scaling = dict(options.rope_scaling)
    kind = scaling.pop("type", None) or scaling.pop("rope_type", None) or current.get("rope_type", "default")
    config.rope_parameters = {**current, **scaling, "rope_type": kind}


def _clear_generation_defaults(model: Any, pad: int) -> None:
    """Keep only the start and padding tokens; drop all defaults that affect sampling or stopping."""
    old = getattr(model, "generation_config", None)
    if old is None:
        return
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=old.bos_token_id,
        pad_token_id=pad,
        decoder_start_token_id=old.decoder_start_token_id,
    )


def read_pooling(path: Path) -> tuple[str, bool]:
    """Return the pooling of a sentence-transformers directory (mean, cls, max or lasttoken), and whether it normalises."""
    modules = path / "modules.json"
    if not modules.is_file():
        return "mean", True
    parts = json.loads(modules.read_text(encoding="utf-8"))
    normalised = any(part["type"].endswith("Normalize") for part in parts)
    folder = next((part["path"] for part in parts if part["type"].endswith("Pooling")), "")
    file = path / folder / "config.json"
    if not folder or not file.is_file():
        return "mean", normalised
    modes = json.loads(file.read_text(encoding="utf-8"))
    for name in ("cls_token", "max_tokens", "lasttoken"):
        if modes.get(f"pooling_mode_{name}"):
            return name.partition("_")[0], normalised
    return "mean", normalised
