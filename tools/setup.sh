#!/usr/bin/env bash
# Installs what a build needs on Debian 12 (root or sudo). Idempotent; prints what it installs.
set -euo pipefail
SUDO=""
[ "$(id -u)" = 0 ] || SUDO="sudo"
packages=(
  build-essential cmake ninja-build git ccache pkg-config xz-utils ca-certificates
  libboost1.81-dev libyaml-cpp-dev libspdlog-dev libfmt-dev libcli11-dev nlohmann-json3-dev
  prometheus-cpp-dev libdnnl-dev libpcre2-dev libutf8proc-dev libssl-dev
  libgtest-dev libgmock-dev libbenchmark-dev
  python3 python3-jinja2
)
missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing+=("$p")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "installing: ${missing[*]}"
  $SUDO apt-get update -q
  $SUDO env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
fi
