#!/usr/bin/env bash
# Measures one H200: kernels, weights, decode and prefill of static batches, the server, each row beside its floor and
# beside SGLang's figure (bench/peers_h200.json). Builds the cuda-release preset unless told where a build is. Weights
# are dummies; only the section `start` writes a checkpoint (29.3 GiB, to $HADAL_BENCH_DIR or /dev/shm) and removes it.
#   bench/run_h200.sh [--build-dir DIR] [--out DIR] [--quick] [SECTION …]
# Sections: kernels lite-bf16 lite-fp8 v3-fp8 v32 large prefill serving serving-large ablation profile start; all of them
# unless some are named. Each takes a few minutes at most. Results of earlier calls stay in --out (build/h200), and
# report.md there shows all of them; "bench/h200_report.py build/h200 --pages" then writes the tables of
# docs/measurements.
# --quick: batches 1 and 64 at 1k, one prefill and one concurrency.
# The GPU is CUDA's first; CUDA_VISIBLE_DEVICES chooses another.
set -euo pipefail

all_sections=(kernels lite-bf16 lite-fp8 v3-fp8 v32 large prefill serving serving-large ablation profile start)
script=bench/run_h200.sh
has_quick=1
# shellcheck source=bench/h200_sections.sh
. "$(dirname "$0")/h200_sections.sh"
parse_options "$root/build/h200" "$@"
cd "$root"

# Checks that there is a GPU to measure before anything is built or written. The built program gives the best answer; before
# it exists, the driver's own tool is used.
if [[ -n $build ]]; then
  check_gpu "$build"
else
  capabilities=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null) ||
    fail "no GPU: nvidia-smi is missing or finds no driver"
  [[ $capabilities == *9.0* ]] ||
    fail "a Hopper GPU (compute capability 9.0) is needed; nvidia-smi shows ${capabilities//$'\n'/, }"
  build=build/cuda-release
  if [[ ! -f $build/build.ninja ]]; then
    # Only one message of cmake matters here: that scripts/setup was not run.
    cmake --preset cuda-release | { grep 'without grammars' || true; }
  fi
  cmake --build "$build"
  check_gpu "$build"
fi
hadal=$build/hadal
mkdir -p "$out"
gpu=${CUDA_VISIBLE_DEVICES:-0}
nvidia-smi -i "${gpu%%,*}" --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null >"$out/machine.txt" || true

lite=(--model-path bench/configs/v2-lite --load-format dummy --device cuda)
v3=(--model-path bench/configs/v3-6-layers --load-format dummy --device cuda)
v32=(--model-path bench/configs/v32-6-layers --load-format dummy --device cuda)
batches=(1 4 16 64 128)
contexts=(1024 4096)
large_batches=(256 512 1024)
prefills=(1 8)
v3_prefills=(1 4)  # the batches of the peers' figures
concurrencies=(1 16 64 128)
large_concurrencies=(256 512 1024)
if [[ -n $quick ]]; then batches=(1 64); contexts=(1024); prefills=(1); v3_prefills=(1); concurrencies=(16); large_batches=(256); large_concurrencies=(256); fi

decode() { one_batch "$@" --batch-size "${batches[@]}" --input-len "${contexts[@]}" --output-len 33; }
prefill() { one_batch "$@" --input-len 4096 --output-len 1; }

for section in "${sections[@]}"; do
  case $section in
    kernels)
      for bench in "$build"/bench/cuda/cuda_*_bench; do
        [[ -x $bench ]] || { echo "no benchmarks in $build/bench/cuda" >&2; failed+=(kernels); continue; }
        echo "== $(basename "$bench")"
        arguments=()
        if [[ $bench == */cuda_weights_bench ]]; then arguments=(dummy:v2-lite); fi
        "$bench" "${arguments[@]}" | tee "$out/$(basename "$bench").txt" || failed+=("$(basename "$bench")")
      done ;;
    lite-bf16) decode lite-bf16 "${lite[@]}" ;;
    lite-fp8) decode lite-fp8 "${lite[@]}" --quantization fp8 ;;
    v3-fp8) decode v3-fp8 "${v3[@]}" ;;
    v32)
      for name in v3 v32; do
        model=("${v3[@]}")
        if [[ $name == v32 ]]; then model=("${v32[@]}"); fi
        one_batch "v32.$name" "${model[@]}" --batch-size 1 16 64 --input-len 1024 --output-len 33
        one_batch "v32.$name-mixed" "${model[@]}" --batch-size 64 --input-len 1024 --long-rows 1 --long-input-len 32768 \
          --output-len 33
        one_batch "v32.$name-16" "${model[@]}" --fill-cache --batch-size 16 --input-len 32000 --output-len 17
        one_batch "v32.$name-1" "${model[@]}" --fill-cache --batch-size 1 --input-len 65000 --output-len 17
        one_batch "v32.$name-short" "${model[@]}" --batch-size 1 --input-len 512 1024 --output-len 1
        one_batch "v32.$name-prompts" "${model[@]}" --batch-size 8 --input-len 2000 --output-len 1
      done ;;
    large)
      for name in lite-bf16 lite-fp8; do
        flags=()
        if [[ $name == lite-fp8 ]]; then flags=(--quantization fp8); fi
        one_batch "large.$name" "${lite[@]}" "${flags[@]}" --batch-size "${large_batches[@]}" --input-len 1024 \
          --output-len 17
      done
      one_batch large.v3-fp8 "${v3[@]}" --batch-size "${large_batches[@]}" --input-len 1024 --output-len 17 ;;
    prefill)
      prefill prefill.lite-bf16 "${lite[@]}" --batch-size "${prefills[@]}"
      prefill prefill.lite-fp8 "${lite[@]}" --quantization fp8 --batch-size "${prefills[@]}"
      prefill prefill.v3-fp8 "${v3[@]}" --batch-size "${v3_prefills[@]}" ;;
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
    serving-large) python3 bench/h200_serving.py --hadal "$hadal" --out "$out" --load large \
      --concurrency "${large_concurrencies[@]}" || failed+=(serving-large) ;;
    start) python3 bench/h200_serving.py --hadal "$hadal" --out "$out" --start || failed+=(start) ;;
  esac
done
python3 bench/h200_report.py "$out" >"$out/report.md"
cat "$out/report.md"
finish
