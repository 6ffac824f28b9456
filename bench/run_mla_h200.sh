#!/usr/bin/env bash
# Measures MLA attention on one H200. Decode is compared with FlashMLA's stored figures and with each shape's
# goal (bench/cuda/mla_goals.h). Where python3 has torch and flash_mla (FlashMLA's own module), FlashMLA is
# also measured in the same run. Prefill is compared with cuDNN, measured in the same run; without torch only
# our prefill is measured. Builds the cuda-release preset unless told where a build is. A run with FlashMLA
# and cuDNN took 67 seconds, not counting the build. The report is build/mla/report.md; "bench/mla_report.py
# build/mla --pages" then writes the tables of docs/measurements/mla.md. What a failed run has measured stays
# in a new directory failed-XXXXXX beside the report, named at the end; reports of earlier runs stay as they
# are.
#   bench/run_mla_h200.sh [--build-dir DIR] [--out DIR]
# The GPU is CUDA's first; CUDA_VISIBLE_DEVICES chooses another.
script=bench/run_mla_h200.sh
. "$(dirname "$0")/h200_table.sh"
begin mla cuda_mla_bench cuda_mla_prefill_bench -- "$@"
decode=$build/bench/cuda/cuda_mla_bench
prefill=$build/bench/cuda/cuda_mla_prefill_bench

beside=()
if python3 bench/cuda/mla_flash_mla.py --check; then beside=(python3 bench/cuda/mla_flash_mla.py --beside); fi
"${beside[@]}" "$decode" table --json "$new/decode.jsonl" | tee "$new/decode.txt" || failed+=(decode)
if python3 -c 'import torch' 2>/dev/null; then
  python3 bench/cuda/prefill_cudnn.py --beside "$prefill" --rounds 2 >"$new/prefill.jsonl" || failed+=(prefill)
else
  echo "python3 has no torch: prefill without cuDNN beside it" >&2
  for row in 128,1,4096 128,1,8192 128,8,4096 16,1,1024 16,1,4096; do
    "$prefill" --row "$row,0" || failed+=(prefill)
  done >"$new/prefill.jsonl"
fi
python3 bench/mla_report.py "$new" >"$new/report.md" || failed+=(report)
finish
