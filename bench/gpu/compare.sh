#!/usr/bin/env bash
# Compares engines on a host with a CUDA device and no network: lab studies in one command and a few minutes.
#
#   bench/gpu/compare.sh HOME_DIR RESULTS_DIR [GGUF_FILE [MORE_PARTS_OF_IT ...]]
#
# With engines installed in HOME_DIR (for example from a bundle with the lab), PYTHON is HOME_DIR/bay/bin/python. Otherwise one
# Python must have everything: vLLM, transformers, torch with CUDA, gguf, grpcio with health checking and reflection, the
# dependencies of Enginebay and its lab (numpy, scipy, pyarrow), and xllamacpp. Engines that are not installed are skipped.
# Workers ignore PYTHONPATH: name such folders in a .pth file in PYTHON's site-packages.
# RESULTS_DIR gets output.txt, runs.tar.xz.aa and so on (in pieces of PIECE bytes), logs.tar.gz, table.md and, if time is left,
# runs.csv and report.html.
#
#   PYTHON=python3     interpreter
#   LIMIT_S=380        seconds in total; runs that do not fit are skipped
#   CONFIGS=...        studies, most important first
#   TOKENIZER=DIR      tokenizer for the shapes without weights; they are created if this is set
#   SET=...            KEY=VALUE overrides for all studies, separated by spaces
#   PIECE=15000000     maximum bytes of a result file
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
# FlashInfer compiles its sampler on first use, or is not installed.
export VLLM_USE_FLASHINFER_SAMPLER=${VLLM_USE_FLASHINFER_SAMPLER:-0}

# A configuration finds a shape in its own folder.
[ -z "${TOKENIZER:-}" ] || "$python" -m bench.gpu.model_shapes "$home/shapes" "$TOKENIZER" > /dev/null
beside=()
for config in $configs; do
  cp "$config" "$home/" && beside+=("$home/$(basename "$config")")
done

bay() { timeout -k 5 "$(left)" "$python" -c "from enginebay.cli.main import run; run()" "$@"; }

runs=$home/runs
# SIGINT stops its servers; the rest of the time is for the tables.
# shellcheck disable=SC2086
timeout -s INT -k 20 $((limit - 15)) "$python" -m bench.gpu.compare --runs "$runs" --seconds $(($(left) - 30)) "${gguf[@]}" \
  "${beside[@]}" --set ${SET:-} 2>&1 | tee "$results/output.txt"
code=${PIPESTATUS[0]}
echo "--- measured in $((SECONDS - started)) s, exit code $code"

tar cf - -C "$home" runs | xz -1 -T0 | split -b "${PIECE:-15000000}" - "$results/runs.tar.xz."
tar czf "$results/logs.tar.gz" -C "$home" logs 2> /dev/null
# The table takes a second: write it even when time is up.
"$python" -m bench.gpu.compare_table --runs "$runs" > "$results/table.md"
cat "$results/table.md"
studies=$(for study in "$runs"/studies/*.json; do  # only those with runs
  study=$(basename "$study" .json); grep -qs "\"$study\"" "$runs"/*/manifest.json && echo "$study"
done)
# Without time for these, create them elsewhere from runs.tar.xz.
# shellcheck disable=SC2086
[ "$(left)" -lt 8 ] || bay results export $studies --runs "$runs" -f csv -o "$results/runs.csv"
# shellcheck disable=SC2086
[ "$(left)" -lt 8 ] || bay report $studies --runs "$runs" -o "$results/report.html"
ls -l "$results"
echo "=== total $((SECONDS - started)) s"
exit "$code"
