#!/usr/bin/env bash
# Installs the build tree, builds the consumer from the install tree alone, and runs it: run.sh BUILD_DIR SOURCE_DIR
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$1" --prefix "$work/prefix" >/dev/null
cp -r "$2/tests/consumer" "$work/source"
cmake -S "$work/source" -B "$work/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null
cmake --build "$work/build" >/dev/null
"$work/build/consumer" "$2/tests/data/dcp/four_ranks" | tee "$work/names"
grep -q . "$work/names"
"$work/prefix/bin/shardctl" --version
