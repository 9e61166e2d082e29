#!/usr/bin/env bash
# Installs what building and testing Fovea needs, on Debian 12 or a current Ubuntu; says nothing
# when everything is there. With --lint, also what `make lint` and `make format` need; with --python,
# what building the Python package does.
# docs/dependencies.md says what each package is for.
set -euo pipefail

packages=(
  build-essential cmake ninja-build ccache pkg-config git python3
  libfmt-dev libcli11-dev nlohmann-json3-dev libdnnl-dev
  ocl-icd-opencl-dev libopenblas-dev libgtest-dev libbenchmark-dev
)
for option in "$@"; do
  case $option in
    --lint) packages+=(clang-format-14 clang-tidy-14) ;;
    --python) packages+=(python3-dev python3-venv) ;;
    *) echo "fovea: unknown option $option" >&2 && exit 2 ;;
  esac
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "fovea: not a Debian or Ubuntu system; this build needs the equivalents of: ${packages[*]}" >&2
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ "$status" == installed ]] || missing+=("$package")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

sudo=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "fovea: not root and no sudo; please install: ${missing[*]}" >&2
    exit 1
  fi
  sudo=(sudo)
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
  if ! "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q "$@" </dev/null >"$log" 2>&1; then
    cat "$log" >&2
    echo "fovea: 'apt-get $*' failed" >&2
    return 1
  fi
}
echo "fovea: installing ${missing[*]}"
apt update
apt install -y --no-install-recommends "${missing[@]}"
echo "fovea: installed ${#missing[@]} packages"
