#!/usr/bin/env bash
# Measures NextN speculation on one H200 with dummy weights, whose drafts are accepted by chances that a flag sets
# (docs/speculation.md#simulated-acceptance). Static batches compare a step with 1, 2 and 3 drafts with a step without any; the sections
# policy and serving let the engine choose how many drafts a step has. Builds the cuda-release preset unless told where a build is.
#   bench/run_speculation_h200.sh [--build-dir DIR] [--out DIR] [--quick] [SECTION …]
# Sections: lite-bf16 lite-fp8 v3-fp8 policy serving; all of them unless some are named. Results stay in --out (build/speculation), and
# "bench/speculation_report.py build/speculation" prints their tables. --quick: batches 1 and 64, and one draft.
set -euo pipefail

all_sections=(lite-bf16 lite-fp8 v3-fp8 policy serving)
script=bench/run_speculation_h200.sh
has_quick=1
# shellcheck source=bench/h200_sections.sh
. "$(dirname "$0")/h200_sections.sh"
parse_options "$root/build/speculation" "$@"
cd "$root"
build_unless_told --target hadal
hadal=$build/hadal
check_gpu "$build"
mkdir -p "$out"
gpu=${CUDA_VISIBLE_DEVICES:-0}
nvidia-smi -i "${gpu%%,*}" --query-gpu=name,driver_version --format=csv,noheader >"$out/machine.txt" 2>/dev/null || true

nextn=(--json-model-override-args '{"num_nextn_predict_layers": 1}')
lite=(--model-path bench/configs/v2-lite --load-format dummy --device cuda "${nextn[@]}")
v3=(--model-path bench/configs/v3-6-layers --load-format dummy --device cuda "${nextn[@]}")
chances=("" 0.92 0.92,0.72 0.92,0.72,0.36)  # by the number of drafts; TensorRT-LLM's published figures for R1
batches=(1 4 16 64 128)
drafts=(1 2 3)
loads=(1 16 64 128)
concurrencies=(1 64)
if [[ -n $quick ]]; then batches=(1 64); drafts=(1); loads=(1 64); concurrencies=(64); fi

# static NAME FLAGS…: measures the same batches without speculation and with each number of drafts.
static() {
  local name=$1 steps
  shift
  one_batch "$name.0" "$@" --batch-size "${batches[@]}" --input-len 1024 --output-len 33
  for steps in "${drafts[@]}"; do
    one_batch "$name.$steps" "$@" --batch-size "${batches[@]}" --input-len 1024 --output-len 33 \
      --speculative-algorithm NEXTN --speculative-num-steps "$steps" --speculative-simulate-acceptance "${chances[steps]}"
  done
}

# load ACCEPTANCE REQUESTS FLAGS…: measures requests that begin together; with one request at a time, four in sequence.
load() {
  local acceptance=$1 count=$2
  shift 2
  echo "== policy, acceptance $acceptance, $count together"
  "$hadal" bench offline --log-level warning "$@" --dataset-name random-ids --random-input-len 1024 --random-output-len 256 \
    --random-range-ratio 1 --num-prompts "$((count == 1 ? 4 : count))" --max-running-requests "$count" --disable-radix-cache \
    --result-filename "$out/policy.$acceptance.$count.jsonl" || failed+=("policy $acceptance $count")
}

for section in "${sections[@]}"; do
  case $section in
    lite-bf16) static lite-bf16 "${lite[@]}" ;;
    lite-fp8) static lite-fp8 "${lite[@]}" --quantization fp8 ;;
    v3-fp8) static v3-fp8 "${v3[@]}" ;;
    policy)
      rm -f "$out"/policy.*.jsonl
      speculate=(--speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-simulate-acceptance)
      for count in "${loads[@]}"; do
        load without "$count" "${lite[@]}"
        load none "$count" "${lite[@]}" "${speculate[@]}" 0,0,0
        load half "$count" "${lite[@]}" "${speculate[@]}" 0.5,0.5,0.5
        load good "$count" "${lite[@]}" "${speculate[@]}" "${chances[3]}"
      done ;;
    serving)
      for flags in "" "--speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-simulate-acceptance ${chances[3]}"; do
        name=serving-$([[ -n $flags ]] && echo with || echo without)
        mkdir -p "$out/$name"
        python3 bench/h200_serving.py --hadal "$hadal" --out "$out/$name" --concurrency "${concurrencies[@]}" \
          "--serve-flags=--json-model-override-args {\"num_nextn_predict_layers\":1} $flags" || failed+=("$name")
      done ;;
  esac
done
finish
