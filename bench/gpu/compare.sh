#!/usr/bin/env bash
# The comparison of engines on a host with a CUDA device and no network: the lab's studies, in one command and a few minutes.
#
#   bench/gpu/compare.sh HOME_DIR RESULTS_DIR [GGUF_FILE [MORE_PARTS_OF_IT ...]]
#
# Where the engines are installed in HOME_DIR, as from a bundle with the lab, PYTHON is that of bay (HOME_DIR/bay/bin/python). Otherwise one
# Python must have it all: vLLM, transformers, torch with CUDA, gguf, grpcio with health checking and reflection, the needs of
# Enginebay itself and of its lab (numpy, scipy, pyarrow), and xllamacpp; an engine that is not there is left out. What is only on
# PYTHONPATH is not there: workers do not see it. A .pth file in PYTHON's site-packages can name such folders.
# RESULTS_DIR gets output.txt, runs.tar.xz.aa and so on (in pieces of PIECE bytes), logs.tar.gz, table.md, and as far as there is
# time runs.csv and report.html.
#
#   PYTHON=python3     which Python
#   LIMIT_S=380        seconds for everything; what does not fit is left out
#   CONFIGS=...        the studies, in the order of their importance
#   TOKENIZER=DIR      a tokenizer for the shapes without weights, which are made where this is set
#   SET=...            KEY=VALUE over all studies, separated by spaces
#   PIECE=15000000     bytes of the largest file of results
set -uo pipefail
home=${1:?HOME_DIR}; results=${2:?RESULTS_DIR}; shift 2
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
limit=${LIMIT_S:-380}
configs=${CONFIGS:-examples/compare-gpu-8b.yaml examples/compare-gpu-8b-one.yaml examples/compare-gpu.yaml}
started=$SECONDS
left() { echo $((limit - SECONDS + started)); }

mkdir -p "$home" "$results"
home=$(cd "$home" && pwd); results=$(cd "$results" && pwd)
gguf=()
if [ $# -gt 0 ]; then
  [ -s "$home/smollm2.gguf" ] || cat "$@" > "$home/smollm2.gguf"
  gguf=(--gguf "$home/smollm2.gguf")
fi
cd "$root" || exit 2

export ENGINEBAY_HOME=$home PYTHONPATH=$root/src:$root${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false VLLM_CACHE_ROOT=${VLLM_CACHE_ROOT:-$home/vllm-cache}
# FlashInfer compiles its sampler when it is first used, or is not there at all.
export VLLM_USE_FLASHINFER_SAMPLER=${VLLM_USE_FLASHINFER_SAMPLER:-0}

# A shape is looked for beside the configuration that names it.
[ -z "${TOKENIZER:-}" ] || "$python" -m bench.gpu.model_shapes "$home/shapes" "$TOKENIZER" > /dev/null
beside=()
for config in $configs; do
  cp "$config" "$home/" && beside+=("$home/$(basename "$config")")
done

bay() { timeout -k 5 "$(left)" "$python" -c "from enginebay.cli.main import run; run()" "$@"; }

runs=$home/runs
# Interrupted, it ends its servers; what is left over is for the tables.
# shellcheck disable=SC2086
timeout -s INT -k 20 $((limit - 15)) "$python" -m bench.gpu.compare --runs "$runs" --seconds $(($(left) - 30)) "${gguf[@]}" \
  "${beside[@]}" --set ${SET:-} 2>&1 | tee "$results/output.txt"
code=${PIPESTATUS[0]}
echo "--- measured in $((SECONDS - started)) s, exit code $code"

tar cf - -C "$home" runs | xz -1 -T0 | split -b "${PIECE:-15000000}" - "$results/runs.tar.xz."
tar czf "$results/logs.tar.gz" -C "$home" logs 2> /dev/null
# A table takes a second, and is wanted even when the time is up.
"$python" -m bench.gpu.compare_table --runs "$runs" > "$results/table.md"
cat "$results/table.md"
studies=$(for study in "$runs"/studies/*.json; do  # those for which there was time
  study=$(basename "$study" .json); grep -qs "\"$study\"" "$runs"/*/manifest.json && echo "$study"
done)
# What there is no time for can be made anywhere else: runs.tar.xz has it all.
# shellcheck disable=SC2086
[ "$(left)" -lt 8 ] || bay results export $studies --runs "$runs" -f csv -o "$results/runs.csv"
# shellcheck disable=SC2086
[ "$(left)" -lt 8 ] || bay report $studies --runs "$runs" -o "$results/report.html"
ls -l "$results"
echo "=== all in $((SECONDS - started)) s"
exit "$code"
