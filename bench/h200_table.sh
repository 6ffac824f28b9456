# Holds functions that the scripts which make one table on one H200 share: they parse options, find a build,
# check the GPU and make a directory for results that are not complete yet. bench/run_mla_h200.sh and
# bench/run_gemm_h200.sh set $script to their path in the repository, source this file, and then call begin,
# measure, and finish.
set -euo pipefail

stop() { echo "$script: $1" >&2; exit "${2:-1}"; }

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=
new=     # the directory to which results are written until they are complete
failed=()

check_programs() {
  local program
  if grep -qs '^HADAL_CUDA:BOOL=OFF' "$build/CMakeCache.txt"; then
    stop "$build is a build without CUDA; build the cuda-release preset"
  fi
  for program in "${programs[@]}"; do
    program=$build/bench/cuda/$program
    [[ -x $program ]] || stop "$program is missing; cmake --build $build --target ${program##*/} makes it"
  done
}

at_exit() {
  if rmdir -- "$new" 2>/dev/null; then  # nothing was measured
    [[ -z $is_made ]] || rmdir -- "$out"
  elif [[ -d $new ]]; then
    echo "$script: the results so far are in $new" >&2
  fi
}

check_gpu() {
  local shown
  if ! command -v nvidia-smi >/dev/null; then
    # A container may lack the tool and have the device.
    compgen -G '/dev/nvidia[0-9]*' >/dev/null || stop "no GPU: nvidia-smi is missing, and /dev/nvidia0 too"
  elif ! shown=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>&1); then
    stop "no GPU: nvidia-smi finds no driver, or no device: ${shown//$'\n'/ }"
  elif ! grep -qx '9\.0' <<<"$shown"; then
    stop "a Hopper GPU (compute capability 9.0) is needed; nvidia-smi shows ${shown//$'\n'/, }"
  fi
}

# begin NAME PROGRAM … -- OPTION …: afterwards the working directory is the repository, $build has the programs, and
# the directories $out (build/NAME unless --out names another) and $new exist.
begin() {
  out=$root/build/$1
  programs=()
  shift
  while [[ $1 != -- ]]; do programs+=("$1"); shift; done
  shift
  local is_joined
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
      -h | --help) sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$root/$script"; exit 0 ;;
      *) stop "unknown option '$1'; allowed are --build-dir and --out" 2 ;;
    esac
  done
  cd "$root"
  if [[ -n $build ]]; then
    [[ -d $build ]] || stop "--build-dir $build: no such directory"
    check_programs
  fi
  [[ -d $out ]] && is_made= || is_made=1
  new=$(mkdir -p -- "$out" 2>&1 && mktemp -d -- "$out/failed-XXXXXX" 2>&1) || stop "--out $out: $new"
  trap at_exit EXIT
  check_gpu
  if [[ -z $build ]]; then
    build=build/cuda-release
    if [[ ! -f $build/build.ninja ]]; then cmake --preset cuda-release; fi
    cmake --build "$build" --target "${programs[@]}"
    check_programs
  fi
  local gpu=${CUDA_VISIBLE_DEVICES:-0}
  nvidia-smi -i "${gpu%%,*}" --query-gpu=name,driver_version --format=csv,noheader >"$new/machine.txt" || true
}

# finish: the results replace earlier ones if nothing is in `failed`.
finish() {
  if [[ ${#failed[@]} -gt 0 ]]; then stop "failed: ${failed[*]}"; fi
  mv -f -- "$new"/* "$out"
  rmdir -- "$new"
  echo "$out/report.md"
}
