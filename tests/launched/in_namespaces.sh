#!/bin/bash
# Hosts on this machine that share neither network nor files: each has a network namespace, joined to the others by a
# bridge, a name (n01, n02, ...), and FOLDER/rankR mounted at FOLDER/here, where its commands run. Everything is removed
# when the script ends.
#   in_namespaces.sh HOSTS FOLDER COMMAND...   runs it on each, with HOST (0, 1, ...) in its environment; needs root;
#                                              ends with 77 if the kernel does not allow it
#   in_namespaces.sh --ssh NAME COMMAND...     a replacement of ssh, for a command that runs on one of the hosts
set -u
on_host() {
  HOST=$1 GLOO_SOCKET_IFNAME=e0 ip netns exec "n$1" unshare -mu bash -c '
    hostname "n0$((HOST + 1))" && mount --bind "$SHARD_HOSTS/hosts" /etc/hosts &&
    mount --bind "$SHARD_HOSTS/rank$HOST" "$SHARD_HOSTS/here" && cd "$SHARD_HOSTS/here" && exec "$@"' bash "${@:2}"
}
if [ "$1" = --ssh ]; then
  on_host $((${2#n0} - 1)) bash -c "${*:3}"
  exit
fi
hosts=$1 folder=$2
shift 2
if [ -z "${SHARD_HOSTS:-}" ]; then
  unshare -nmu true 2>/dev/null && command -v ip >/dev/null || exit 77
  SHARD_HOSTS=$folder exec unshare -nm "$0" "$hosts" "$folder" "$@"
fi
mkdir -p "$folder/here"
echo "127.0.0.1 localhost" >"$folder/hosts"
mount -t tmpfs none /run && mkdir -p /run/netns && ip link set lo up && ip link add bridge0 type bridge || exit 77
ip link set bridge0 up
for ((host = 0; host < hosts; ++host)); do
  ip netns add "n$host" && ip link add "v$host" type veth peer name e0 netns "n$host" || exit 77
  ip link set "v$host" master bridge0 up
  ip -n "n$host" address add "10.77.0.$((host + 1))/24" dev e0
  ip -n "n$host" link set e0 up
  ip -n "n$host" link set lo up
  echo "10.77.0.$((host + 1)) n0$((host + 1))" >>"$folder/hosts"
done
for ((host = 0; host < hosts; ++host)); do
  on_host "$host" "$@" &
  pids[host]=$!
done
code=0
for pid in "${pids[@]}"; do
  wait "$pid" || code=$?
done
exit $code
