#!/usr/bin/env bash
# Measures several H200s of one machine: collectives beside those of NCCL and torch, decode and prefill with
# --tp-size 2, and on one GPU a lone rank of V3 at tp 8, whose collectives are modelled; the section
# speculation measures decode with --tp-size 2 and the lone rank, each with NextN and without. Builds the
# cuda-release preset unless told where a build is.
#   bench/run_multi_gpu_h200.sh [--build-dir DIR] [--out DIR] [SECTION …]
# Sections: comm peers lite-bf16 v3-fp8 v2 v3-22 prefill serving lone speculation; all of them unless some are named. Results stay in --out
# (build/multi-gpu), and "bench/multi_gpu_report.py build/multi-gpu" prints their tables.
set -euo pipefail

all_sections=(comm peers lite-bf16 v3-fp8 v2 v3-22 prefill serving lone speculation)
script=bench/run_multi_gpu_h200.sh
has_quick=
# shellcheck source=bench/h200_sections.sh
. "$(dirname "$0")/h200_sections.sh"
parse_options "$root/build/multi-gpu" "$@"
cd "$root"
build_unless_told
hadal=$build/hadal
check_gpu "$build"
mkdir -p "$out"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader >"$out/machine.txt" 2>/dev/null || true

lite=(--model-path bench/configs/v2-lite --load-format dummy --device cuda)
v3=(--model-path bench/configs/v3-6-layers --load-format dummy --device cuda)
v2=(--model-path bench/configs/v2 --load-format dummy --device cuda --quantization fp8 --kv-cache-dtype fp8_e4m3)
layers() { echo "{\"num_hidden_layers\": $1}"; }
two=(--tp-size 2)
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
    speculation)
      for drafts in 0 3; do
        flags=(--input-len 1024)
        if [[ $drafts -gt 0 ]]; then
          flags+=(--speculative-algorithm NEXTN --speculative-num-steps "$drafts" --speculative-simulate-acceptance 0.92,0.72,0.36)
        fi
        decode "speculation.lite-bf16.$drafts" "${lite[@]}" --json-model-override-args '{"num_nextn_predict_layers": 1}' \
          "${two[@]}" --batch-size 1 16 64 "${flags[@]}"
        decode "speculation.lone.$drafts" "${v3[@]}" \
          --json-model-override-args '{"num_hidden_layers": 61, "num_nextn_predict_layers": 1}' --tp-size 8 --lone-rank 0 \
          --batch-size 1 4 16 64 "${flags[@]}"
      done ;;
  esac
done
finish
