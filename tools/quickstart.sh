#!/usr/bin/env bash
# From a bare Debian 12 to an answer: installs what the build needs, builds the binary and its plugins, asks the small model.
# A first argument is asked instead of the sum.
set -euo pipefail
cd "$(dirname "$0")/.."
question="${1:-What is 12 + 345?}"
tools/setup.sh
cmake --preset release
cmake --build --preset release --target runtime -j "${RT_JOBS:-$(nproc)}"
echo
echo "> $question"
build/release/bin/runtime generate --config configs/tiny-gdn.yaml --greedy --chat "$question"
