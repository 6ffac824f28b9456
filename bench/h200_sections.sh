# Holds what the scripts of bench/ that measure sections of models share: options, and the run of one table of static
# batches. A script sets $script to its path in the repository and $all_sections, sources this file, and calls
# parse_options "$@", which sets $root, $build (empty unless given), $out, $quick and $sections. --help prints the
# comment at the beginning of the script.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=
quick=
sections=()
failed=()

usage_error() {
  echo "$script: $1; see --help" >&2
  exit 2
}

fail() {
  echo "$script: $1" >&2
  exit 1
}

# parse_options OUT WORDS…: OUT is the directory of results unless --out names another.
parse_options() {
  out=$1
  shift
  while [[ $# -gt 0 ]]; do
    case $1 in
      --build-dir | --out)
        [[ -n ${2:-} ]] || usage_error "$1 needs a directory"
        if [[ $1 == --out ]]; then out=$(realpath -m -- "$2"); else build=$(realpath -m -- "$2"); fi
        shift 2 ;;
      --quick)
        [[ -n $has_quick ]] || usage_error "unknown option '--quick' (sections: ${all_sections[*]})"
        quick=1
        shift ;;
      -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$root/$script"; exit 0 ;;
      *)
        [[ " ${all_sections[*]} " == *" $1 "* ]] ||
          usage_error "unknown option or section '$1' (sections: ${all_sections[*]})"
        sections+=("$1")
        shift ;;
    esac
  done
  [[ ${#sections[@]} -gt 0 ]] || sections=("${all_sections[@]}")
  if [[ -n $build && ! -x $build/hadal ]]; then fail "--build-dir $build holds no hadal"; fi
}

check_gpu() { "$1/hadal" info --device cuda --model-path models/hadal-tiny >/dev/null || exit 1; }

# Builds the cuda-release preset unless --build-dir named a build.
build_unless_told() {
  [[ -z $build ]] || return 0
  build=$root/build/cuda-release
  if [[ ! -f $build/build.ninja ]]; then cmake --preset cuda-release >/dev/null; fi
  cmake --build "$build" "$@"
}

# one_batch NAME ARGS…: measures the rows of $out/NAME.jsonl, and replaces an earlier file.
one_batch() {
  local name=$1
  shift
  echo "== $name"
  rm -f "$out/$name.jsonl"
  "$build/hadal" bench one-batch --log-level warning --run-name "$name" --result-filename "$out/$name.jsonl" "$@" |
    tee "$out/$name.txt" || failed+=("$name")
}

# Ends the script. If measurements have failed, it prints their names.
finish() {
  [[ ${#failed[@]} -gt 0 ]] || return 0
  echo "failed: ${failed[*]}" >&2
  exit 1
}
