#!/bin/bash
# golden_digests.sh SOURCE BUILD: the digests of six plans from the planner as BUILD has it (g++ -O3 in a release), and
# compiled in two more ways, through ccache where there is one.
set -euo pipefail
source=$1 build=$2/golden_digests
ccache=$(command -v ccache || true)
clang=$(command -v clang++ || command -v clang++-14 || true)
mapfile -t files < <(ls "$source"/src/plan/*.cc | grep -v '_test\.cc$' | xargs grep -L 'base/json.h')
files+=("$source/src/base/check.cc" "$source/src/base/clock.cc" "$source/tests/golden_digests.cc")

check() {  # NAME COMPILER FLAGS…
  local name=$1 folder=$build/$1
  shift
  mkdir -p "$folder"
  local objects=()
  for file in "${files[@]}"; do objects+=("$folder/$(basename "$file").o"); done
  printf '%s\n' "${files[@]}" | xargs -P 2 -I{} bash -c \
    '"$@" -std=c++20 -ffp-contract=off -I"$0/src" -c {} -o "'"$folder"'/$(basename {}).o"' "$source" $ccache "$@" || return 1
  "$1" "${objects[@]}" -o "$folder/golden_digests" || return 1
  echo "== $name: $*"
  "$folder/golden_digests"
}

failed=0
echo "== as built"
"$2/tests/golden_digests" || failed=1
check gcc_O0 g++ -O0 || failed=1
if [ -n "$clang" ]; then
  check clang_O2 "$clang" -O2 || failed=1
else
  echo "no clang++ here: compared with g++ -O0 only"
fi
exit $failed
