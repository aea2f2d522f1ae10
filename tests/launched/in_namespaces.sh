#!/bin/bash
# Runs a command as several ranks that share neither network nor files: each has a network namespace, joined to the
# others by a bridge, and FOLDER/rankR mounted at FOLDER/here, where it runs. Everything goes when the script ends.
#   in_namespaces.sh RANKS FOLDER COMMAND...      (as root; ends with 77 where the kernel does not allow it)
set -u
ranks=$1 folder=$2
shift 2
if [ -z "${SHARD_IN_NAMESPACES:-}" ]; then
  unshare -nm true 2>/dev/null && command -v ip >/dev/null || exit 77
  SHARD_IN_NAMESPACES=1 exec unshare -nm "$0" "$ranks" "$folder" "$@"
fi
mkdir -p "$folder/here"
mount -t tmpfs none /run && mkdir -p /run/netns && ip link set lo up && ip link add bridge0 type bridge || exit 77
ip link set bridge0 up
for ((rank = 0; rank < ranks; ++rank)); do
  ip netns add "n$rank" && ip link add "v$rank" type veth peer name e0 netns "n$rank" || exit 77
  ip link set "v$rank" master bridge0 up
  ip -n "n$rank" address add "10.77.0.$((rank + 1))/24" dev e0
  ip -n "n$rank" link set e0 up
  ip -n "n$rank" link set lo up
done
for ((rank = 0; rank < ranks; ++rank)); do
  GLOO_SOCKET_IFNAME=e0 ip netns exec "n$rank" unshare -m bash -c \
    'mount --bind "$1/rank$2" "$1/here" && cd "$1/here" && shift 2 && exec "$@"' bash "$folder" "$rank" \
    "$@" --backend gloo --rank "$rank" --world-size "$ranks" --rdzv 10.77.0.1:29577 &
  pids[rank]=$!
done
code=0
for pid in "${pids[@]}"; do
  wait "$pid" || code=$?
done
exit $code
