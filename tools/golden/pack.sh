#!/usr/bin/env bash
# Packs finished test data into tests/data/*.tar.xz: the same input gives the same bytes.
# Usage: pack.sh SOURCE, where SOURCE has models/{tiny-kda,micro}, evals/ and golden/ (the layout that CMake unpacks to).
set -euo pipefail
source_dir=$1
out=$(cd "$(dirname "$0")/../../tests/data" && pwd)
export XZ_OPT=-9e
pack() {
  tar --sort=name --mtime=2026-01-01T00:00:00Z --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
      --exclude='*.md' -C "$source_dir" -cJf "$out/$1.tar.xz" "$2"
}
pack tiny-kda models/tiny-kda
pack micro models/micro
pack evals evals
pack golden golden
