#!/usr/bin/env bash
# Runs the contract suite and tests/gpu on a CUDA host without network, in a few minutes.
#
#   tests/gpu/run.sh HOME_DIR GGUF_FILE [MORE_PARTS_OF_IT ...]
#
# One Python needs all packages: vLLM, transformers, torch with CUDA, gguf, peft, accelerate, grpcio with health checking
# and reflection, pytest with its asyncio, timeout and xdist plugins, nvidia-ml-py, and Enginebay's own dependencies.
# Writes to HOME_DIR/results: the output of each part, and logs.tar.gz with the logs of all workers.
#
#   PYTHON=python3   which Python
#   LIMIT_S=240      time limit per part; parallel parts share it
#   LOAD_S=200       time limit for the load of one worker of tests/gpu
#   ALONE_S=240      time limit for the part that needs the whole GPU; 0 skips it
#   JOBS=8           parallel loads of the contract's feature tests
#   PARTS=...        parts to run besides the last one; unset: all (contract-vllm contract-transformers features gpu-vllm gpu-transformers)
set -uo pipefail
home=${1:?HOME_DIR}; shift
: "${1:?GGUF_FILE}"
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
limit=${LIMIT_S:-240}
alone=${ALONE_S:-240}
parts=${PARTS-contract-vllm contract-transformers features gpu-vllm gpu-transformers}

mkdir -p "$home/results"
home=$(cd "$home" && pwd)
results=$home/results
[ -s "$home/smollm2.gguf" ] || cat "$@" > "$home/smollm2.gguf"
cd "$root"

export ENGINEBAY_HOME=$home ENGINEBAY_TEST_LOAD_S=${LOAD_S:-200} PYTHONPATH=$root/src PYTHONUNBUFFERED=1
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false VLLM_CACHE_ROOT=${VLLM_CACHE_ROOT:-$home/vllm-cache}
# FlashInfer compiles its sampler on first use, or is not installed.
export VLLM_USE_FLASHINFER_SAMPLER=${VLLM_USE_FLASHINFER_SAMPLER:-0}

started=$SECONDS
"$python" -m tests.gpu.prepare_home "$home/smollm2.gguf" 2>&1 | tee "$results/prepare.txt"
echo "--- prepared in $((SECONDS - started)) s"

"$python" -c 'import sys; from tests.contract.engine_profiles import is_on_cuda; sys.exit(not is_on_cuda())' ||
  { echo "no CUDA device: every test would be skipped" >&2; exit 2; }

# On timeout a part is interrupted, so that it still reports its results so far.
part() {  # NAME SECONDS ARGUMENTS...
  local name=$1 seconds=$2 began=$SECONDS; shift 2
  timeout -s INT -k 15 "$seconds" "$python" -m pytest "$@" -q -rfEs --tb=short --durations=15 --durations-min=1 -p no:cacheprovider \
    -W default --timeout "$seconds" --junitxml "$results/$name.xml" > "$results/$name.txt" 2>&1
  echo "$? $((SECONDS - began))" > "$results/$name.code"
}

arguments() {
  case $1 in
    contract-vllm) echo "tests/contract/test_contract.py tests/contract/test_rendering.py -k vllm" ;;
    contract-transformers) echo "tests/contract/test_contract.py tests/contract/test_rendering.py -k transformers" ;;
    features) echo "tests/contract/test_features.py tests/contract/test_parity.py -n ${JOBS:-8} --dist worksteal" \
      "--deselect tests/contract/test_features.py::test_transformers_inside_its_own_environment" ;;
    gpu-vllm) echo tests/gpu/test_vllm_cuda.py ;;
    gpu-transformers) echo tests/gpu/test_transformers_cuda.py ;;
    alone) echo tests/gpu/test_memory_cuda.py tests/gpu/test_placement_cuda.py ;;
    *) echo "unknown part $1" >&2; exit 2 ;;
  esac
}

for name in $parts; do
  # shellcheck disable=SC2046
  part "$name" "$limit" $(arguments "$name") &
done
wait
if [ "$alone" -gt 0 ]; then
  # shellcheck disable=SC2046
  part alone "$alone" $(arguments alone)
  parts="$parts alone"
fi

failed=0
for name in $parts; do
  read -r code seconds < "$results/$name.code"
  [ "$code" = 0 ] || failed=1
  echo "=== $name: exit code $code after $seconds s"
  if [ "$code" = 0 ]; then grep -E "^(SKIPPED|[0-9.]+s |[0-9]+ passed)" "$results/$name.txt" | tail -25; else tail -c 3500 "$results/$name.txt"; fi
done
cut -c 1-300 "$home/logs/gpu-workers.jsonl" 2> /dev/null
tar czf "$results/logs.tar.gz" -C "$home" logs
echo "=== all in $((SECONDS - started)) s, details in $results"
exit $failed
