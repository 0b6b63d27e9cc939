#!/usr/bin/env bash
# Installs clients that tests/clients runs against the server: a virtual environment with exactly the files that a list names.
#   scripts/setup_clients.sh [PYTHON [NAME]]   build/clients from tests/clients/requirements.txt; with a NAME build/clients-NAME from
#                                              tests/clients/NAME/requirements.txt
# Does nothing where that was done with the same list.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${1:-python3}"
list="tests/clients/${2:+$2/}requirements.txt"
environment="build/clients${2:+-$2}"

die() {
  printf 'setup_clients: %s\n' "$*" >&2
  exit 1
}

[[ -f "$list" ]] || die "there is no $list"
stamp="$environment/installed.txt"
wanted="$("$python" -c 'import platform, sys; print(platform.python_version(), sys.executable)') $(sha256sum <"$list")"
[[ -f "$stamp" && "$(<"$stamp")" == "$wanted" ]] && exit 0

rm -rf "$environment"
"$python" -m venv --without-pip "$environment" || die "cannot make a virtual environment"
install=("$python" -m pip --python "$environment/bin/python" install --quiet --disable-pip-version-check --no-input --no-deps --no-compile
         --only-binary :all: --require-hashes --retries 1 --timeout 30 -r "$list")
"${install[@]}" </dev/null || {
  rm -rf "$environment"
  die "the clients of $list could not be installed. They come from the package registry that pip is set up for: it must be reachable, and
its files must be those that the list names, for this Python ($("$python" -V)) on this machine ($(uname -m))"
}
printf '%s\n' "$wanted" >"$stamp"
