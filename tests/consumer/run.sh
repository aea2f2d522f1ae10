#!/usr/bin/env bash
# Installs the build tree, builds the consumer and the programs of docs/library.md only from the install tree, and runs
# them: run.sh BUILD_DIR SOURCE_DIR together|each
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Runs a command whose output matters only if it fails.
quiet() {
  "$@" >"$work/log" 2>&1 && return
  cat "$work/log" >&2
  echo "failed: $*" >&2
  exit 1
}

quiet cmake --install "$1" --prefix "$work/prefix"
cp -r "$2/tests/consumer" "$work/source"

# The blocks of the page that have a name are the files of a project.
mkdir "$work/page"
awk -v folder="$work/page" '/^```[a-z]+ [^ ]+\.[a-z]+$/ { file = folder "/" $2; next } /^```/ { file = "" } file { print >file }' \
  "$2/docs/library.md"
quiet cmake -S "$work/page" -B "$work/page/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix"
quiet cmake --build "$work/page/build"
"$work/page/build/names" "$2/tests/data/dcp/four_ranks" | tee "$work/names"
grep -q . "$work/names"
"$work/page/build/to_safetensors" "$2/tests/data/demo/ckpt" "$work/model.safetensors"
"$work/prefix/bin/shardctl" diff "$2/tests/data/demo/ckpt" "$work/model.safetensors" --include 'model.**'
"$work/prefix/bin/shardctl" gather "$2/tests/data/demo/ckpt" -o "$work/all.pt" --quiet
"$work/page/build/same" "$2/tests/data/demo/ckpt" "$work/all.pt" | tee "$work/same"
digest=$("$work/prefix/bin/shardctl" digest "$2/tests/data/demo/ckpt" | sed -n 's/^checkpoint //p')
[ "$(sed 3q "$work/same" | paste -sd ' ')" = "$digest $digest equal" ] || { echo "same: other digests" >&2 && exit 1; }
if "$work/page/build/same" "$2/tests/data/demo/ckpt" "$work/model.safetensors" >"$work/same"; then
  echo "same: the model alone is equal to the checkpoint" >&2
  exit 1
fi
"$work/prefix/bin/shardctl" export "$2/tests/data/demo/ckpt" -o "$work/by_tool" --quiet
"$work/page/build/export_model" "$2/tests/data/demo/ckpt" "$work/by_program"
diff -r "$work/by_tool" "$work/by_program"

# The project of docs/sharded-tensor.md finds everything it links; apps/examples compiles its program.
torch_page() {
  mkdir "$work/torch_page"
  awk -v folder="$work/torch_page" '/^```cmake CMakeLists.txt$/ { file = folder "/" $2; next } /^```/ { file = "" } file { print >file }' \
    "$1/docs/sharded-tensor.md"
  awk '/^```cpp$/ { code = 1; next } /^```/ { code = 0 } code' "$1/docs/sharded-tensor.md" >"$work/torch_page/guide.cpp"
  quiet cmake -S "$work/torch_page" -B "$work/torch_page/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix"
}

configure() { cmake -S "$work/source" -B "$work/$1" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" "${@:2}"; }

has_torch=$(find "$1/libshard" -name libshard_rpc.so)
[ -z "$has_torch" ] || torch_page "$2"
quiet configure build ${has_torch:+-DCONSUMER_COMPONENTS="torch;rpc"}
quiet cmake --build "$work/build"
"$work/prefix/bin/shardctl" --version
for file in man/man1/shardctl.1 man/man1/shardctl-split.1 bash-completion/completions/shardctl zsh/site-functions/_shardctl \
  fish/vendor_completions.d/shardctl.fish; do
  [ -s "$work/prefix/share/$file" ] || { echo "share/$file is not installed" >&2 && exit 1; }
done
[ -z "$has_torch" ] || "$work/build/torch_consumer"

# All installed headers compile in one source, or each by itself; shardtorch's are those of the program above. Private
# ones are absent.
cd "$work/prefix/include"
syntax() { g++ -std=c++20 -fsyntax-only -w -I. -x c++ "$@"; }
export -f syntax
headers=$(find libshard formats -name '*.h')
case $3 in
  together) sed 's/.*/#include "&"/' <<<"$headers" | syntax - ;;
  each) xargs -P 2 -I HEADER bash -c 'syntax HEADER' <<<"$headers" ;;
esac
private=$(cd "$2" && grep -rlE 'Inside .* only' --include='*.h' libshard formats shardtorch)
for header in $private libshard/exec/runs.h formats/torch/reader.h; do
  [ ! -e "$header" ] || { echo "$header is private, but installed" >&2 && exit 1; }
done

# Without LibTorch the rest is still found; a program that requires ShardedTensor gets an error.
quiet configure without -DLibTorch_ROOT="$work/nowhere"
if configure demanding -DLibTorch_ROOT="$work/nowhere" -DCONSUMER_COMPONENTS=torch >/dev/null 2>"$work/errors"; then
  echo "the component torch was found without LibTorch" >&2
  exit 1
fi
[ -z "$has_torch" ] || grep -q "need LibTorch" "$work/errors" || { cat "$work/errors" >&2 && exit 1; }
