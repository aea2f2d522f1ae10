#!/usr/bin/env bash
# sandbox.sh DESCRIBE PARSER FILE: by strace, the parser's process opens only shared libraries, and nothing once it
# reads the file. It also reads the file if its caller's limit of processor time is lower than the parser's own.
set -eu
[ "$(ulimit -t 1; "$1" "$2" "$3")" = "$("$1" "$2" "$3")" ] || { echo "a lower limit of the caller stops the parser"; exit 1; }
command -v strace > /dev/null || { echo "skipped: strace is not installed"; exit 77; }
trace=$(mktemp -d)
trap 'rm -rf "$trace"' EXIT
strace -ff -o "$trace/of" "$1" "$2" "$3" > /dev/null || { echo "skipped: strace cannot trace"; exit 77; }
child=$(grep -l "execve(\"$2\"" "$trace"/of.*)
sed -n "\#execve(\"$2\"#,\$p" "$child" > "$trace/all"
sed -n '/SECCOMP_SET_MODE_FILTER, 0, {/,$p' "$trace/all" > "$trace/inside"
[ -s "$trace/inside" ] || { echo "skipped: the kernel has no seccomp"; exit 77; }
if grep -E '^(open|openat|creat)\(' "$trace/all" | grep -vE '/(ld\.so\.cache|lib[^/"]*\.so[^/"]*)"'; then
  echo "the parser opens a file that is not a library"
  exit 1
fi
# "???()" is a call that strace cannot read, because its process ends.
if grep -vE '^\?\?\?\(|^(read|write)\(0,|^(brk|mmap|munmap|mremap|madvise|futex|gettid|exit_group|seccomp)\(|^\+\+\+ ' "$trace/inside"; then
  echo "the parser asks the system for more than its socket and memory"
  exit 1
fi
grep -q '^close_range(1, ' "$trace/all" || { echo "the parser keeps what its caller has open"; exit 1; }
grep -q '^read(0,' "$trace/inside"
echo "$(wc -l < "$trace/inside") calls inside"
