#!/usr/bin/env bash
# Installs the Debian packages of scripts/packages.txt that are missing. Needs no network and no rights when all are there.
#   scripts/setup.sh         what building and testing need
#   scripts/setup.sh build   only what building needs
set -euo pipefail
list="$(dirname "$0")/packages.txt"
groups=" ${1:-build test} "

die() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

case "$groups" in
  ' build ' | ' build test ') ;;
  *) die "unknown group '$1': expected 'build', or nothing for all packages" ;;
esac

wanted=()
group=''
while read -r line; do
  line="${line%%#*}"
  line="${line%"${line##*[![:space:]]}"}"
  case "$line" in
    '') ;;
    '['*']') group="${line:1:-1}" ;;
    *) [[ "$groups" == *" $group "* ]] && wanted+=("$line") ;;
  esac
done <"$list"

command -v dpkg-query >/dev/null ||
  die "this system has no dpkg. Install the equivalents of these Debian 12 packages, then run cmake directly: ${wanted[*]}"

missing=()
for package in "${wanted[@]}"; do
  status="$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)"
  [[ "$status" == installed ]] || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  exit 0
fi

printf 'setup: installing %s\n' "${missing[*]}" >&2
as_root=()
if [[ $EUID -ne 0 ]]; then
  command -v sudo >/dev/null || die "not root and no sudo. As root, run: apt-get install ${missing[*]}"
  as_root=(sudo)
fi
install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}")
# Package lists may be absent or old: refresh them only if the first try fails.
"${install[@]}" </dev/null >&2 || {
  "${as_root[@]}" apt-get update </dev/null >&2 || die "apt-get update failed. Missing packages: ${missing[*]}"
  "${install[@]}" </dev/null >&2 || die "apt-get could not install: ${missing[*]}"
}
