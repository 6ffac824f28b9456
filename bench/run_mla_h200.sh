#!/usr/bin/env bash
# MLA attention on one H200, beside its peers: decode beside FlashMLA's stored figures and what each shape is to reach
# (bench/cuda/mla_goals.h), and, where python3 has torch and FlashMLA's own module flash_mla, beside that in the same
# run; prefill beside cuDNN in the same run (which needs torch too; without it, ours alone). Builds the cuda-release preset unless told where a build is. Under two minutes; the reports are
# build/mla/report.md and, for docs/performance.md, short.md there. A run that fails leaves them as they are and what it
# got in build/mla/failed.
#   bench/run_mla_h200.sh [--build-dir DIR] [--out DIR]
# The GPU is CUDA's first; CUDA_VISIBLE_DEVICES chooses another.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
build=
out=$root/build/mla
while [[ $# -gt 0 ]]; do
  case $1 in
    --build-dir | --out)
      [[ -n ${2:-} ]] || { echo "bench/run_mla_h200.sh: $1 needs a directory" >&2; exit 2; }
      if [[ $1 == --out ]]; then out=$(realpath -m -- "$2"); else build=$(realpath -m -- "$2"); fi
      shift 2 ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) echo "bench/run_mla_h200.sh: unknown option '$1', allowed are --build-dir and --out" >&2; exit 2 ;;
  esac
done
cd "$root"
if shown=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null); then
  grep -qx '9\.0' <<<"$shown" || {
    echo "bench/run_mla_h200.sh: a Hopper GPU (compute capability 9.0) is needed; nvidia-smi shows" $shown >&2
    exit 1
  }
elif command -v nvidia-smi >/dev/null || ! compgen -G '/dev/nvidia[0-9]*' >/dev/null; then
  # A container may lack the tool and have the device.
  echo "bench/run_mla_h200.sh: no GPU: nvidia-smi is missing or finds no driver" >&2
  exit 1
fi
if [[ -z $build ]]; then
  build=build/cuda-release
  if [[ ! -f $build/build.ninja ]]; then cmake --preset cuda-release; fi
  cmake --build "$build" --target cuda_mla_bench cuda_mla_prefill_bench
fi
decode=$build/bench/cuda/cuda_mla_bench
prefill=$build/bench/cuda/cuda_mla_prefill_bench
for program in "$decode" "$prefill"; do
  [[ -x $program ]] || { echo "bench/run_mla_h200.sh: $program is missing" >&2; exit 1; }
done
new=$out/failed  # until all went well
rm -rf "$new"
mkdir -p "$new"
gpu=${CUDA_VISIBLE_DEVICES:-0}
nvidia-smi -i "${gpu%%,*}" --query-gpu=name,driver_version --format=csv,noheader >"$new/machine.txt" || true

failed=()
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
python3 bench/mla_report.py "$new" --short >"$new/short.md" || failed+=(report)
if [[ ${#failed[@]} -gt 0 ]]; then
  echo "failed: ${failed[*]}; what there is lies in $new" >&2
  exit 1
fi
mv -f "$new"/* "$out"
rmdir "$new"
echo "$out/report.md"
