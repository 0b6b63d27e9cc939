#!/usr/bin/env bash
# Mixed load on the AddressSanitizer build: half of the time on the scripted server, half on models/tetrad-tiny. Fails if an answer is
# wrong, a sanitizer reports, something is still held at the end, or memory grows.
#   scripts/soak.sh [MINUTES [RESULT.json]]   default 10
set -euo pipefail
cd "$(dirname "$0")/.."
minutes="${1:-10}"
cmake --preset asan >/dev/null
cmake --build --preset asan --target tetrad tetrad_scripted_server
exec python3 tests/clients/soak.py --tetrad build/asan/tetrad --scripted build/asan/tests/tetrad_scripted_server \
  --model models/tetrad-tiny -- "$((minutes * 30))" ${2:+"$2"}
