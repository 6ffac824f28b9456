#!/usr/bin/env bash
# Measures matrix products and experts on one H200, beside the goals of each shape (bench/cuda/gemm_goals.h), its floor
# by bytes and operations, DeepGEMM's stored figures and, where python3 has torch, peers measured in the same run:
# torch's products (cuBLASLt) and DeepGEMM, which is the module deep_gemm or the library that $HADAL_DEEPGEMM_LIBRARY
# names (bench/cuda/gemm_peers.py). torch has no fused experts, so none are measured. Kernels are chosen as in an
# engine, with the measured choices of share/kernel-configs/ where there are any. Builds the cuda-release preset unless
# told where a build is. The report is build/gemm/report.md; "bench/gemm_report.py build/gemm --pages" then writes the
# tables of docs/measurements/gemm.md and experts.md. What a failed run has measured stays in a new directory
# failed-XXXXXX beside the report, named at the end; reports of earlier runs stay as they are.
#   bench/run_gemm_h200.sh [--build-dir DIR] [--out DIR]
# The GPU is CUDA's first; CUDA_VISIBLE_DEVICES chooses another.
script=bench/run_gemm_h200.sh
. "$(dirname "$0")/h200_table.sh"
begin gemm cuda_gemm_table_bench cuda_experts_table_bench -- "$@"

beside=()
if python3 bench/cuda/gemm_peers.py --check; then beside=(python3 bench/cuda/gemm_peers.py --beside); fi
choices=()
if [[ -d share/kernel-configs ]]; then choices=(--kernel-config-dir share/kernel-configs); fi
"${beside[@]}" "$build/bench/cuda/cuda_gemm_table_bench" --json "$new/gemm.jsonl" "${choices[@]}" |
  tee "$new/gemm.txt" || failed+=(products)
"$build/bench/cuda/cuda_experts_table_bench" --json "$new/moe.jsonl" "${choices[@]}" | tee "$new/moe.txt" ||
  failed+=(experts)
python3 bench/gemm_report.py "$new" >"$new/report.md" || failed+=(report)
if [[ ${#failed[@]} -eq 0 ]]; then tail -n 1 "$new/report.md"; fi
finish
