#!/usr/bin/env bash
# MLA attention on one H200, beside its peers: decode beside FlashMLA's stored figures and what each shape is
# to reach (bench/cuda/mla_goals.h), and, where python3 has torch and FlashMLA's own module flash_mla, beside
# that in the same run; prefill beside cuDNN in the same run (which needs torch too; without it, ours alone).
# Builds the cuda-release preset unless told where a build is. Without the build it took 67 seconds with
# FlashMLA and cuDNN beside it. The reports are build/mla/report.md and, for docs/performance.md, short.md
# there. What a run that fails has got stays in a new directory failed-XXXXXX beside them, named at the end;
# reports of earlier runs stay as they are.
#   bench/run_mla_h200.sh [--build-dir DIR] [--out DIR]
# The GPU is CUDA's first; CUDA_VISIBLE_DEVICES chooses another.
set -euo pipefail

stop() { echo "bench/run_mla_h200.sh: $1" >&2; exit "${2:-1}"; }

root=$(cd "$(dirname "$0")/.." && pwd)
build=
out=$root/build/mla
while [[ $# -gt 0 ]]; do
  case $1 in
    --build-dir=* | --out=*) set -- "${1%%=*}" "${1#*=}" "${@:2}"; is_joined=1 ;;
    *) is_joined= ;;
  esac
  case $1 in
    --build-dir | --out)
      [[ -n ${2:-} && ( -n $is_joined || $2 != -* ) ]] || stop "$1 needs a directory" 2
      if [[ $1 == --out ]]; then out=$(realpath -m -- "$2"); else build=$(realpath -m -- "$2"); fi
      shift 2 ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) stop "unknown option '$1', allowed are --build-dir and --out" 2 ;;
  esac
done
cd "$root"

check_programs() {
  decode=$build/bench/cuda/cuda_mla_bench
  prefill=$build/bench/cuda/cuda_mla_prefill_bench
  for program in "$decode" "$prefill"; do
    [[ -x $program ]] || stop "$program is missing; cmake --build $build --target ${program##*/} makes it"
  done
}
if [[ -n $build ]]; then
  [[ -d $build ]] || stop "--build-dir $build: no such directory"
  check_programs
fi
[[ -d $out ]] && is_made= || is_made=1
new=$(mkdir -p -- "$out" 2>&1 && mktemp -d -- "$out/failed-XXXXXX" 2>&1) || stop "--out $out: $new"
at_exit() {
  if rmdir -- "$new" 2>/dev/null; then  # nothing was measured
    [[ -z $is_made ]] || rmdir -- "$out"
  elif [[ -d $new ]]; then
    echo "bench/run_mla_h200.sh: what there is lies in $new" >&2
  fi
}
trap at_exit EXIT

if ! command -v nvidia-smi >/dev/null; then
  # A container may lack the tool and have the device.
  compgen -G '/dev/nvidia[0-9]*' >/dev/null || stop "no GPU: nvidia-smi is missing, and /dev/nvidia0 too"
elif ! shown=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>&1); then
  stop "no GPU: nvidia-smi finds no driver, or no device: ${shown//$'\n'/ }"
elif ! grep -qx '9\.0' <<<"$shown"; then
  stop "a Hopper GPU (compute capability 9.0) is needed; nvidia-smi shows ${shown//$'\n'/, }"
fi
if [[ -z $build ]]; then
  build=build/cuda-release
  if [[ ! -f $build/build.ninja ]]; then cmake --preset cuda-release; fi
  cmake --build "$build" --target cuda_mla_bench cuda_mla_prefill_bench
  check_programs
fi
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
python3 bench/mla_report.py "$new" --short >"$new/short.md" || failed+=("short report")
if [[ ${#failed[@]} -gt 0 ]]; then stop "failed: ${failed[*]}"; fi
mv -f -- "$new"/* "$out"
rmdir -- "$new"
echo "$out/report.md"
