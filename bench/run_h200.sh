#!/usr/bin/env bash
# The tables of docs/performance.md for one H200: kernels, decode and prefill of static batches, the server, each row
# beside its floor and beside SGLang's figure (bench/peers_h200.json). Builds the cuda-release preset unless told where
# a build is. Weights are dummies; only the section `start` writes
# a checkpoint (29 GB, to $HADAL_BENCH_DIR or /dev/shm) and removes it.
#   bench/run_h200.sh [--build-dir DIR] [--out DIR] [--quick] [SECTION …]
# Sections: kernels lite-bf16 lite-fp8 v3-fp8 prefill serving ablation profile start; all of them unless some are named. Each
# takes a few minutes at most; results of earlier calls stay in --out (build/h200), and the report, report.md there, shows
# all that is there. --quick: batches 1 and 64 at 1k, one prefill, one concurrency.
set -euo pipefail
cd "$(dirname "$0")/.."

build=
out=build/h200
quick=
sections=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --build-dir) build=${2:?--build-dir needs a directory}; shift 2 ;;
    --out) out=${2:?--out needs a directory}; shift 2 ;;
    --quick) quick=1; shift ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    kernels | lite-bf16 | lite-fp8 | v3-fp8 | prefill | serving | ablation | profile | start) sections+=("$1"); shift ;;
    *) echo "bench/run_h200.sh: unknown option or section '$1'; see --help" >&2; exit 2 ;;
  esac
done
[[ ${#sections[@]} -gt 0 ]] || sections=(kernels lite-bf16 lite-fp8 v3-fp8 prefill serving ablation profile start)
if [[ -z $build ]]; then
  build=build/cuda-release
  [[ -f $build/build.ninja ]] || cmake --preset cuda-release >/dev/null
  cmake --build "$build"
fi
hadal=$build/hadal
mkdir -p "$out"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader >"$out/machine.txt" 2>/dev/null || true

lite=(--model-path bench/configs/v2-lite --load-format dummy --device cuda)
v3=(--model-path bench/configs/v3-6-layers --load-format dummy --device cuda)
batches=(1 4 16 64 128)
contexts=(1024 4096)
prefills=(1 8)
concurrencies=(1 16 64 128)
if [[ -n $quick ]]; then batches=(1 64); contexts=(1024); prefills=(1); concurrencies=(16); fi

failed=()
# one_batch NAME ARGS…: rows of $out/NAME.jsonl, which it begins anew.
one_batch() {
  local name=$1
  shift
  echo "== $name"
  rm -f "$out/$name.jsonl"
  "$hadal" bench one-batch --log-level warning --run-name "$name" --result-filename "$out/$name.jsonl" "$@" | tee "$out/$name.txt" ||
    failed+=("$name")
}
decode() { one_batch "$@" --batch-size "${batches[@]}" --input-len "${contexts[@]}" --output-len 33; }
prefill() { one_batch "$@" --batch-size "${prefills[@]}" --input-len 4096 --output-len 1; }

for section in "${sections[@]}"; do
  case $section in
    kernels)
      for bench in "$build"/bench/cuda/cuda_*_bench; do
        echo "== $(basename "$bench")"
        "$bench" | tee "$out/$(basename "$bench").txt" || failed+=("$(basename "$bench")")
      done ;;
    lite-bf16) decode lite-bf16 "${lite[@]}" ;;
    lite-fp8) decode lite-fp8 "${lite[@]}" --quantization fp8 ;;
    v3-fp8) decode v3-fp8 "${v3[@]}" ;;
    prefill)
      prefill prefill.lite-bf16 "${lite[@]}"
      prefill prefill.lite-fp8 "${lite[@]}" --quantization fp8
      prefill prefill.v3-fp8 "${v3[@]}" ;;
    ablation)
      for variant in "" --disable-fusion --disable-cuda-graph "--disable-cuda-graph --disable-fusion"; do
        # shellcheck disable=SC2086  # words of a variant are flags
        one_batch "ablation${variant// --/.}" "${lite[@]}" $variant --batch-size 1 --input-len 1024 --output-len 33
      done ;;
    profile)
      one_batch profile.lite-bf16 "${lite[@]}" --profile --batch-size 1 64 --input-len 1024 --output-len 9
      one_batch profile.v3-fp8 "${v3[@]}" --profile --batch-size 1 64 --input-len 1024 --output-len 9 ;;
    serving) python3 bench/h200_serving.py --hadal "$hadal" --out "$out" --concurrency "${concurrencies[@]}" ||
      failed+=(serving) ;;
    start) python3 bench/h200_serving.py --hadal "$hadal" --out "$out" --start || failed+=(start) ;;
  esac
done
python3 bench/h200_report.py "$out" >"$out/report.md"
cat "$out/report.md"
if [[ ${#failed[@]} -gt 0 ]]; then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
