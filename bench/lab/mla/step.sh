#!/usr/bin/env bash
# Builds MLA decode as it was at a commit, with today's bench or with the commit's own bench, and measures some rows.
#   bench/lab/mla/step.sh COMMIT [--own-bench] [ARGUMENTS of cuda_mla_bench …]
#   bench/lab/mla/step.sh HEAD bf16 --row 1,1,4096,16 --row 128,1,4096,16
# Sources and build stay in build/lab/<commit>. To compare two steps, run them within a few minutes of each other.
set -euo pipefail
cd "$(dirname "$0")/../../.."
[[ $# -gt 0 && $1 != -* ]] || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2; }
commit=$(git rev-parse --short "$1^{commit}")
shift
own=
if [[ ${1:-} == --own-bench ]]; then own=1; shift; fi

tree=build/lab/$commit
if [[ ! -d $tree ]]; then
  mkdir -p "$tree"
  git archive "$commit" | tar -x -C "$tree"
fi
if [[ -z $own ]]; then
  cp bench/cuda/{mla_bench.cpp,mla_goals.h,mla_measure.h,graph_timer.h,cool_timer.h,sm_clock.h,sm_clock.cu,arguments.h} \
    "$tree/bench/cuda/"
  lists=$tree/bench/cuda/CMakeLists.txt
  grep -q sm_clock "$lists" || echo 'target_sources(cuda_mla_bench PRIVATE sm_clock.cu)' >>"$lists"
fi
if [[ ! -f $tree/build/build.ninja ]]; then
  cmake -S "$tree" --preset cuda-release -B "$tree/build" -DHADAL_TESTS=OFF >/dev/null
fi
cmake --build "$tree/build" --target cuda_mla_bench -- --quiet
echo "$commit $(git log -1 --format=%s "$commit")"
exec "$tree/build/bench/cuda/cuda_mla_bench" "$@"
