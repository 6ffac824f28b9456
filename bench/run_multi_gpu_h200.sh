#!/usr/bin/env bash
# Measures several H200s of one machine: collectives beside those of NCCL and torch, decode and prefill with --tp-size 2, and on
# one GPU a lone rank of V3 at tp 8, whose collectives are modelled. Builds the cuda-release preset unless told where a build is.
#   bench/run_multi_gpu_h200.sh [--build-dir DIR] [--out DIR] [SECTION …]
# Sections: comm peers lite-bf16 v3-fp8 v2 v3-22 prefill serving lone; all of them unless some are named. Results stay in --out
# (build/multi-gpu), and "bench/multi_gpu_report.py build/multi-gpu" prints their tables.
set -euo pipefail

all_sections=(comm peers lite-bf16 v3-fp8 v2 v3-22 prefill serving lone)
usage_error() {
  echo "bench/run_multi_gpu_h200.sh: $1; see --help" >&2
  exit 2
}
root=$(cd "$(dirname "$0")/.." && pwd)
build=
out=$root/build/multi-gpu
sections=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --build-dir | --out)
      [[ -n ${2:-} ]] || usage_error "$1 needs a directory"
      if [[ $1 == --out ]]; then out=$(realpath -m -- "$2"); else build=$(realpath -m -- "$2"); fi
      shift 2 ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *)
      [[ " ${all_sections[*]} " == *" $1 "* ]] ||
        usage_error "unknown option or section '$1' (sections: ${all_sections[*]})"
      sections+=("$1")
      shift ;;
  esac
done
cd "$root"
[[ ${#sections[@]} -gt 0 ]] || sections=("${all_sections[@]}")
if [[ -z $build ]]; then
  build=$root/build/cuda-release
  if [[ ! -f $build/build.ninja ]]; then cmake --preset cuda-release >/dev/null; fi
  cmake --build "$build"
fi
hadal=$build/hadal
"$hadal" info --device cuda --model-path models/hadal-tiny >/dev/null || exit 1
mkdir -p "$out"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader >"$out/machine.txt" 2>/dev/null || true

lite=(--model-path bench/configs/v2-lite --load-format dummy --device cuda)
v3=(--model-path bench/configs/v3-6-layers --load-format dummy --device cuda)
v2=(--model-path bench/configs/v2 --load-format dummy --device cuda --quantization fp8 --kv-cache-dtype fp8_e4m3)
layers() { echo "{\"num_hidden_layers\": $1}"; }
two=(--tp-size 2)
failed=()

# one_batch NAME ARGS…: rows of $out/NAME.jsonl, which it begins anew.
one_batch() {
  local name=$1
  shift
  echo "== $name"
  rm -f "$out/$name.jsonl"
  "$hadal" bench one-batch --log-level warning --run-name "$name" --result-filename "$out/$name.jsonl" "$@" |
    tee "$out/$name.txt" || failed+=("$name")
}
decode() { one_batch "$@" --output-len 33; }

for section in "${sections[@]}"; do
  case $section in
    comm) "$build/bench/cuda/cuda_comm_bench" 2 | tee "$out/comm.txt" || failed+=(comm) ;;
    peers) python3 bench/peers_comm.py --ranks 2 | tee "$out/peers.txt" || failed+=(peers) ;;
    lite-bf16)
      decode lite-bf16 "${lite[@]}" "${two[@]}" --batch-size 1 16 64 --input-len 1024
      decode lite-bf16.4k "${lite[@]}" "${two[@]}" --batch-size 128 --input-len 4096 ;;
    v3-fp8) decode v3-fp8 "${v3[@]}" "${two[@]}" --batch-size 1 64 --input-len 1024 ;;
    v2) decode v2 "${v2[@]}" "${two[@]}" --batch-size 1 16 64 --input-len 1024 ;;
    v3-22)
      decode v3-22 "${v3[@]}" --json-model-override-args "$(layers 22)" "${two[@]}" --batch-size 1 64 \
        --input-len 1024 ;;
    prefill)
      one_batch prefill.lite-bf16 "${lite[@]}" "${two[@]}" --batch-size 8 --input-len 4096 --output-len 1
      one_batch prefill.v3-fp8 "${v3[@]}" "${two[@]}" --batch-size 4 --input-len 4096 --output-len 1 ;;
    serving) python3 bench/h200_serving.py --hadal "$hadal" --out "$out" --concurrency 1 64 "--serve-flags=--tp-size 2" ||
      failed+=(serving) ;;
    lone)
      decode lone "${v3[@]}" --json-model-override-args "$(layers 61)" --tp-size 8 --lone-rank 0 --batch-size 1 4 16 64 \
        --input-len 1024 ;;
  esac
done
if [[ ${#failed[@]} -gt 0 ]]; then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
