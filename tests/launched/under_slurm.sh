#!/bin/bash
# Runs a command by srun, two tasks on each host of in_namespaces.sh, which starts this on every one of them. Slurm need
# not be installed: UNPACKED is a folder with Debian's packages (apt-get download slurm-client slurmctld slurmd
# slurm-wlm-basic-plugins libmunge2; dpkg -x each), which is mounted over /usr only for this run.
#   under_slurm.sh UNPACKED HOSTS COMMAND...
set -u
unpacked=$1 hosts=$2 all=$SHARD_HOSTS/slurm own=$SHARD_HOSTS/slurm/$HOST
shift 2
mkdir -p "$own/links/sbin"
ln -sf slurmstepd-wlm "$own/links/sbin/slurmstepd"  # The same as in the package's installation.
mount -t overlay overlay -o "lowerdir=$own/links:$unpacked/usr:/usr" /usr && mount -t tmpfs none /sys/fs/cgroup || exit 77
cat >"$own/slurm.conf" <<END
ClusterName=test
SlurmctldHost=n01
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
DebugFlags=NO_CONF_HASH
StateSaveLocation=$own
SlurmdSpoolDir=$own
SlurmctldPidFile=$own/slurmctld.pid
SlurmdPidFile=$own/slurmd.pid
NodeName=n[01-0$hosts] CPUs=2
PartitionName=all Nodes=ALL Default=YES
END
echo "CgroupPlugin=cgroup/v1" >"$own/cgroup.conf"
export SLURM_CONF=$own/slurm.conf LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/slurm-wlm
slurmd-wlm -D -N "$(hostname)" >"$own/slurmd.log" 2>&1 &
if [ "$HOST" != 0 ]; then
  for ((i = 0; i < 1200; ++i)); do [ -e "$all/done" ] && break || sleep 0.1; done
  kill %1
  exit 0
fi
slurmctld-wlm -D >"$own/slurmctld.log" 2>&1 &
for ((i = 0; i < 300; ++i)); do [ "$(sinfo -h -t idle -o %D 2>"$own/sinfo.log")" = "$hosts" ] && break || sleep 0.1; done
srun -N "$hosts" --ntasks-per-node 2 "$@"
code=$?
touch "$all/done"
kill %1 %2
exit $code
