# A destination that is neither a file nor a folder is never replaced, even with --force; "-" is not a file of that
# name.
. "$(dirname "$0")/common.sh"
model m.safetensors 4096

mkfifo pipe
ln -s pipe link
ln -s /dev/null device
for each in pipe link device; do
  for force in "" --force; do
    expect 5 gather m.safetensors -o $each --to safetensors $force
    holds err "$each: cannot write: the destination is neither a file nor a folder"
    lacks err "add --force"
  done
done
expect 5 inspect m.safetensors --html pipe --force
[ -p pipe ] || fail "the pipe was replaced"
[ -L link ] && [ -L device ] || fail "a link was replaced"

# torchrun --log-dir /dev/null names that device for the error, which a program of root could replace.
for each in pipe link; do
  (export RANK=0 WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=1 TORCHELASTIC_ERROR_FILE=$PWD/$each && expect 3 inspect absent)
done
[ -p pipe ] && [ -L link ] || fail "the error was written in place of a pipe"

expect 2 gather m.safetensors -o - --to safetensors
holds err "cannot write a checkpoint to standard output"
[ ! -e - ] || fail "a file named - was written"
expect 0 gather m.safetensors -o ./- --to safetensors

# Other links are replaced themselves; their targets stay.
mkdir kept
ln -s kept to_folder
expect 5 gather m.safetensors -o to_folder
expect 0 gather m.safetensors -o to_folder --force
[ ! -L to_folder ] && [ -z "$(ls kept)" ] || fail "the link was followed"

# A file that an option names is not replaced by the output, under any of its names.
printf 'color = "never"\n' >options.toml
cp options.toml before
ln options.toml hard
ln -s options.toml soft
for each in options.toml hard soft; do
  expect 5 gather m.safetensors -o $each --to safetensors --config options.toml --force
  holds err "options.toml"
done
cmp options.toml before || fail "the file of options was replaced"
expect 0 gather m.safetensors -o log.safetensors --log-file log.txt
expect 5 gather m.safetensors -o log.txt --to safetensors --log-file log.txt --force

# Any name that the file system takes is a destination: a file, a folder, again with --force, and continued by --resume.
for bytes in 200 201 232 240 255; do
  name=$(printf "%$((bytes - 12))s" | tr ' ' n).safetensors
  expect 0 gather m.safetensors -o $name
  expect 5 gather m.safetensors -o $name
  expect 0 gather m.safetensors -o $name --force
  expect 0 diff m.safetensors $name
  rm $name
done
model large.safetensors $((10 << 20)) # It keeps a journal.
expect 0 gather large.safetensors -o $name
expect 0 gather large.safetensors -o $name --force --resume
expect 0 diff large.safetensors $name
rm $name
folder=$(printf '%0255d' 7)
expect 0 split m.safetensors -o $folder --shards 2
expect 0 split m.safetensors -o $folder --shards 2 --force --resume
expect 0 diff m.safetensors $folder
expect 6 gather m.safetensors -o x$folder
lacks err ".shardctl-"

# Formats that a hint names can be written.
expect 2 split m.safetensors -o x --to torch-ranks --shards 2
holds err "write one of safetensors"
lacks err megatron,
[ -z "$(ls -A | grep '^\.')" ] || fail "left behind: $(ls -A)"

# A working directory that was removed is named, for the source and for the destination. Other paths work as before.
mkdir gone && cd gone && rmdir ../gone
code=0
"$SHARDCTL" inspect . >"$work/out" 2>"$work/err" || code=$?
[ $code = 3 ] || fail "inspect in a removed folder: exit $code, not 3"
holds err "cannot read: the working directory was removed"
code=0
"$SHARDCTL" gather "$work/m.safetensors" -o x.safetensors >"$work/out" 2>"$work/err" || code=$?
[ $code = 6 ] || fail "gather to a removed folder: exit $code, not 6"
holds err "x.safetensors: cannot write: the working directory was removed"
expect 0 gather "$work/m.safetensors" -o "$work/elsewhere.safetensors"
expect 0 completion bash
cd "$work"
