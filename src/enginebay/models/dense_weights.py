"""Converts a GGUF model to dense safetensors once, for engines that do not read GGUF, and caches them with the model.

    path = ensure_dense_weights(model, python, say=…)

`python` is the interpreter of an engine environment with torch, transformers and gguf. The weights are float32, since
nothing narrower holds them exactly. Tokenizer and chat template come from Enginebay's own conversion, so that every
engine sees the same token ids: Transformers drops the pre-tokenizer of several models.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from enginebay.errors import EnginebayError, LoadFailed, Unsupported
from enginebay.models.fetch_result import build_disk_full_error, check_disk_space, translate_disk_errors
from enginebay.models.model_manifest import StoredModel
from enginebay.text.gguf.gguf_reader import read_gguf
from enginebay.text.tokenization.tokenizer import STAMP_FILE, write_tokenizer
from enginebay.util.atomic_file import read_json_or_none
from enginebay.util.child_processes import interruptible, run_logged, select_worker_variables
from enginebay.util.file_lock import exclusive_lock
from enginebay.util.number_format import format_bytes
from enginebay.util.paths import logs_dir
from enginebay.util.progress import Say, say_nothing, track_progress

SCRIPT = Path(__file__).with_name("dequantize_gguf.py")
CONVERSION_VERSION = 1  # increment when the conversion changes, to invalidate cached weights
DENSE_FOLDER = "dense"
GENERATION_IDS = {
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
}


@interruptible()
def ensure_dense_weights(model: StoredModel, python: Path, *, say: Say | None = None) -> Path:
    """Return the directory with the model's dense weights, tokenizer and chat template. Converts them if needed."""
    with translate_disk_errors(f"the dense weights of {model.name}", model.folder):
        return _convert_once(model, python, say)


def _convert_once(model: StoredModel, python: Path, say: Say | None) -> Path:
    target = model.folder / DENSE_FOLDER
    stamp = _compute_stamp(model.path)
    if read_json_or_none(target / STAMP_FILE) == stamp:
        return target
    notify = say or say_nothing
    waiting = f"another process is converting {model.name}; waiting for it"
    with exclusive_lock(model.folder / ".dense.lock", lambda: notify(waiting)):
        if read_json_or_none(target / STAMP_FILE) == stamp:
            return target
        fresh = model.folder / f".{DENSE_FOLDER}"
        try:
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir(parents=True)
            _convert(model, python, fresh, say)
            (fresh / STAMP_FILE).write_text(json.dumps(stamp))
            shutil.rmtree(target, ignore_errors=True)
            fresh.rename(target)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return target


def _compute_stamp(gguf: Path) -> dict[str, Any]:
    status = gguf.stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "version": CONVERSION_VERSION}


def _convert(model: StoredModel, python: Path, folder: Path, say: Say | None) -> None:
    needed = model.parameters * 4
    check_disk_space(f"dequantizing {model.name}", folder, needed)
    converted = _try_write_tokenizer(model.path, folder)
    log = logs_dir() / f"dense-{model.name}.log"
    command = [str(python), str(SCRIPT), str(model.path), str(folder), *([] if converted else ["--tokenizer"])]
    (say or say_nothing)(f"dequantizing {model.name} ({format_bytes(needed)}, once)")
    code = _run_converter(command, folder, log, needed, say)
    if code:
        raise _build_failure(model, log, code, folder)
    if converted:
        _try_write_tokenizer(model.path, folder)  # again: the library may have overwritten it
        _write_generation_config(model.path, folder)


def _try_write_tokenizer(gguf: Path, folder: Path) -> bool:
    """Convert the tokenizer. Return False if it is unsupported; the library converts it then."""
    try:
        write_tokenizer(gguf, folder)
    except Unsupported:
        return False
    return True


def _write_generation_config(gguf: Path, folder: Path) -> None:
    """Write the bos, eos and pad ids of the GGUF file, without sampling defaults."""
    file = read_gguf(gguf)
    path = folder / "generation_config.json"
    ends = json.loads(path.read_text())["eos_token_id"]
    content: dict[str, Any] = {name: file.get(key, int, None) for name, key in GENERATION_IDS.items()}
    content["eos_token_id"] = ends[0] if len(ends) == 1 else ends or None
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}, indent=2))


def _run_converter(command: list[str], folder: Path, log: Path, total: int, say: Say | None) -> int:
    # No network, no device, no progress bars in the log.
    environment = {**select_worker_variables(), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "TQDM_DISABLE": "1"}
    with track_progress("dequantizing", total, say) as advance:
        seen = 0

        def report_growth() -> None:
            nonlocal seen
            size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
            advance(size - seen)
            seen = size

        return run_logged(command, environment, log, report_growth)


def _build_failure(model: StoredModel, log: Path, code: int, folder: Path) -> EnginebayError:
    text = log.read_text(errors="replace")
    if "No space left on device" in text:
        return build_disk_full_error(f"the dense weights of {model.name}", folder.parent)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1] if lines else f"exit code {code}"
    return LoadFailed(f"failed to dequantize {model.name}: {last}", f"see the log: {log}")
