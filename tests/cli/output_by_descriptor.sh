#!/usr/bin/env bash
# While a job runs its staged folder is moved away and a link to a private folder takes its name: exit code 6, and no file in
# the private folder is published or touched. Also files that -f replaces: modes, dangling links, targets of the source's links.
. "$(dirname "$0")/common.sh"
model m.safetensors 65536

# "-f" keeps modes, replaces a dangling link as a name, and refuses the folder that the source's links lead into.
"$SHARDCTL" gather m.safetensors -o private.safetensors -q && chmod 600 private.safetensors
expect 0 gather m.safetensors -o private.safetensors -f
[ "$(stat -c %a private.safetensors)" = 600 ] || fail "a private file became $(stat -c %a private.safetensors)"
ln -s nowhere link.safetensors
expect 5 gather m.safetensors -o link.safetensors
expect 0 gather m.safetensors -o link.safetensors -f
[ -f link.safetensors ] && [ ! -L link.safetensors ] && [ ! -e nowhere ] || fail "the link was not replaced as a name"
mkdir blobs snapshot
cp m.safetensors blobs/abc
ln -s ../blobs/abc snapshot/model.safetensors
for source in snapshot snapshot/model.safetensors; do
  expect 5 gather $source -o blobs -f
  [ -f blobs/abc ] || fail "the source is gone"
done
expect 0 gather snapshot -o other -f
long=$(printf 'x%.0s' {1..300})
expect 6 gather m.safetensors -o "$long.safetensors"
expect 6 gather m.safetensors -o "$(printf 'folder/%.0s' {1..900})x.safetensors"

# Only a build with test hooks can be stopped at a step.
if [ "${SHARD_TEST_HOOKS:-}" != 1 ]; then
  echo "SKIP: this shardctl was built without SHARD_TEST_HOOKS; no run can be held"
  exit 0
fi
mkdir mine target
for name in out x.safetensors; do
  for step in copy commit; do
    rm -rf target/* target/.[!.]* mine/*
    mkdir -p mine/out
    echo secret >mine/x.safetensors
    echo secret >mine/out/model.safetensors
    SHARDCTL_TEST_HOLD=$step:0:$work/door "$SHARDCTL" gather m.safetensors -o target/$name >out 2>err &
    pid=$!
    while [ ! -e door ]; do kill -0 $pid 2>/dev/null || fail "it ended before the step $step"; sleep 0.01; done
    sibling=$(ls -A target)
    mv "target/$sibling" moved
    ln -s "$work/mine" "target/$sibling"
    rm door
    code=0
    wait $pid || code=$?
    [ $code = 6 ] || fail "$name at $step: exit $code, not 6"
    holds err "moved or replaced"
    [ ! -e target/$name ] || fail "$name at $step: something was published"
    [ "$(cat mine/x.safetensors mine/out/model.safetensors)" = $'secret\nsecret' ] || fail "$name at $step: a private file was touched"
    [ "$(find mine | wc -l)" = 4 ] || fail "$name at $step: files were made behind the link: $(find mine)"
    rm -rf moved
  done
done
