#!/usr/bin/env bash
# The gate of everything that needs a GPU (docs/testing.md, "On the GPU"). Two halves, because the machine that builds may have no GPU:
#   scripts/gpu_gate.sh package        builds the preset cuda for sm_90a and puts binaries and their libraries into build/gpu
#   scripts/gpu_gate.sh run [RESULT]   on the machine with the GPU: runs every check and writes RESULT (default: bench/results/h200/gate.json)
# Without an argument both, one after the other. Exit code 1 when a check fails.
set -euo pipefail
cd "$(dirname "$0")/.."
package=build/gpu

build_package() {
  cmake --preset cuda -DTETRAD_CUDA_ARCHITECTURES=90a -DTETRAD_TEST_KINDS=none
  cmake --build build/cuda --target tetrad tetrad_gpu tetrad_gpu_traps
  rm -rf "$package"
  mkdir -p "$package/lib"
  install -s build/cuda/tetrad build/cuda/tests/tetrad_gpu build/cuda/tests/tetrad_gpu_traps "$package/"
  # Libraries of this system that a GPU machine may lack; never the C library and its kin.
  ldd build/cuda/tetrad build/cuda/tests/tetrad_gpu build/cuda/tests/tetrad_gpu_traps | awk '/lib(fmt|hwy|pcre2|utf8proc)/ {print $3}' | sort -u | xargs -I{} cp -L {} "$package/lib/"
  git rev-parse HEAD >"$package/commit"
  [[ -z "$(git status --porcelain -- src tests/gpu cmake)" ]] || printf ' with local changes' >>"$package/commit"
}

failed=0
checks=()

# check NAME COMMAND...: runs it, notes seconds and outcome; its output goes to the log.
check() {
  local name="$1" started=$EPOCHREALTIME code=0 seconds outcome
  shift
  printf '== %s: %s\n' "$name" "$*" | tee -a "$log"
  "$@" >"$log.part" 2>&1 || code=$?
  cat "$log.part" >>"$log"
  seconds="$(awk -v a="$started" -v b="$EPOCHREALTIME" 'BEGIN {printf "%.2f", b - a}')"
  outcome="$(grep -aE 'verified|PASSED|FAILED|ERROR SUMMARY' "$log.part" | tail -n 1 | tr -d '"\\' || true)"
  printf '   %s s, exit code %d: %s\n' "$seconds" "$code" "$outcome"
  if [[ $code -ne 0 ]]; then
    failed=1
    grep -aE 'FAIL|rror' "$log.part" | head -n 20 || true
  fi
  checks+=("$(printf '{"name": "%s", "command": "%s", "seconds": %s, "exit_code": %d, "outcome": "%s"}' "$name" "${*//\"/}" "$seconds" "$code" "$outcome")")
}

# A test binary in eight processes side by side, for tests that are mostly processes starting.
in_shards() {
  local i code=0 pids=()
  for i in {0..7}; do
    GTEST_TOTAL_SHARDS=8 GTEST_SHARD_INDEX=$i "$@" &
    pids+=($!)
  done
  for i in "${pids[@]}"; do wait "$i" || code=1; done
  return $code
}

run_checks() {
  local result="${1:-bench/results/h200/gate.json}"
  export LD_LIBRARY_PATH="$PWD/$package/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  mkdir -p "$(dirname "$result")"
  log="${result%.json}.log"
  : >"$log"
  local binary="$package/tetrad" tests="$package/tetrad_gpu" directory
  check unit "$tests" --gtest_brief=1 '--gtest_filter=-*IndexDeathTest*'
  check index_traps in_shards "$tests" --gtest_brief=1 '--gtest_filter=*IndexDeathTest*'
  [[ $(awk '/PASSED/ {n += $4} END {print n + 0}' "$log.part") -ge 100 ]] || failed=1  # a filter that matched nothing passes
  # Deliberate faults: a line "mutant {...}" each, the table of the result file.
  check mutants "$package/tetrad_gpu_traps" --gtest_brief=1
  local -a mutants
  mapfile -t mutants < <(sed -n 's/: inf,/: "inf",/; s/^mutant //p' "$log.part")
  [[ ${#mutants[@]} -eq 0 ]] || printf '%s\n' "${mutants[@]}"
  [[ ${#mutants[@]} -ge 20 ]] || failed=1  # a table that came out short proves nothing
  for directory in tests/goldens/rand-small tests/goldens/rand-heads tests/goldens/variant-* models/tetrad-tiny; do
    check "verify.$(basename "$directory")" "$binary" verify "$directory" --device cuda:0
  done
  # Some shapes of the linears and one small model per tool: the tools slow a kernel down a hundredfold.
  local some='--gtest_filter=*Linear*:*near_those_of_the_cpu/rand_small:*near_those_of_the_cpu/variant_fp8'
  some+=':-*12808_by*:*384_by*:*6500_by*:*4300_by*:*2200_by*:*1100_by*:*rows_25*:*GroupedLinear*/5:*GroupedLinear*/6:*GroupedLinear*/7'
  for tool in memcheck racecheck synccheck initcheck; do
    check "sanitizer.$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 "$tests" --gtest_brief=1 "$some"
  done
  rm -f "$log.part"
  {
    printf '{\n "commit": "%s",\n' "$(cat "$package/commit")"
    nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1 |
      awk -F', ' '{printf " \"device\": \"%s\",\n \"driver\": \"%s\",\n", $1, $2}'
    printf ' "passed": %s,\n "checks": [\n' "$([[ $failed -eq 0 ]] && echo true || echo false)"
    local i
    for i in "${!checks[@]}"; do printf '  %s%s\n' "${checks[$i]}" "$([[ $i -lt $((${#checks[@]} - 1)) ]] && echo ,)"; done
    printf ' ],\n "mutants": [\n'
    for i in "${!mutants[@]}"; do printf '  %s%s\n' "${mutants[$i]}" "$([[ $i -lt $((${#mutants[@]} - 1)) ]] && echo ,)"; done
    printf ' ]\n}\n'
  } >"$result"
  printf 'gpu_gate: %s, written to %s\n' "$([[ $failed -eq 0 ]] && echo passed || echo FAILED)" "$result"
  return $failed
}

case "${1:-both}" in
  package) build_package ;;
  run) run_checks "${2:-}" ;;
  both)
    build_package
    run_checks
    ;;
  *)
    printf 'usage: scripts/gpu_gate.sh [package | run [RESULT]]\n' >&2
    exit 2
    ;;
esac
