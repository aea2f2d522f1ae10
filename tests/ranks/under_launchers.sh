#!/usr/bin/env bash
# The conformance suite of groups in processes: under_launchers.sh GROUP_PROGRAM mpirun|torchrun PYTHON.
# Every check must have passed on rank 0. For those that break the group one rank's report is enough, because the launcher
# may end the others as soon as that one ends, but none may have failed.
set -u
program=$1 launcher=$2 python=${3:-}
checks=10
endings="MissesASilentRank AbortEndsTheOthers"  # Each breaks its group.

expect_all() {  # BACKEND RANKS OUTPUT
  local passed
  passed=$(grep -c "^$1 $2 ranks: " <<<"$3")
  if [ "$passed" -ne "$checks" ]; then
    echo "FAILED: $launcher, $1, $2 ranks: $passed of $checks checks passed"
    echo "$3"
    exit 1
  fi
  echo "ok: $launcher, $1, $2 ranks: $passed checks"
}

expect_ending() {  # BACKEND RANKS CHECK OUTPUT
  if grep -qE "^(the|after a) .*(barrier passed|wrong code|too long)" <<<"$4" ||
    ! grep -q "^$1 $2 ranks: $3$" <<<"$4" && ! { [ "$1 $3" = "mpi AbortEndsTheOthers" ] && ended_by_mpirun "$2" "$4"; }; then
    echo "FAILED: $launcher, $1, $2 ranks: $3"
    echo "$4"
    exit 1
  fi
  echo "ok: $launcher, $1, $2 ranks: $3"
}

# MPI's ranks see that one failed when it exits. mpirun sees it too and ends the job, often before another can print.
ended_by_mpirun() {  # RANKS OUTPUT
  grep -q "mpirun has exited due to process rank $(($1 - 1)) " <<<"$2" && ! grep -q "after a rank gave up" <<<"$2"
}

case $launcher in
  mpirun)
    command -v mpirun >/dev/null || { echo "SKIPPED: no mpirun here"; exit 77; }
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    for backend in mpi ${python:+gloo}; do
      for ranks in 1 2 4; do
        expect_all "$backend" "$ranks" "$(timeout 120 mpirun --oversubscribe -np "$ranks" "$program" "$backend" 2>&1)"
      done
      for check in $endings; do
        expect_ending "$backend" 4 "$check" \
          "$(timeout 120 mpirun --oversubscribe -np 4 "$program" "$backend" "$check" 2>&1)"
      done
    done
    ;;
  torchrun)
    "$python" -c 'import torch' 2>/dev/null || { echo "SKIPPED: no torch here"; exit 77; }
    for ranks in 1 2 4; do
      expect_all gloo "$ranks" "$(timeout 120 "$python" -m torch.distributed.run --standalone --no-python \
        --nproc-per-node "$ranks" "$program" gloo 2>&1)"
    done
    for check in $endings; do
      expect_ending gloo 2 "$check" "$(timeout 120 "$python" -m torch.distributed.run --standalone --no-python \
        --nproc-per-node 2 "$program" gloo "$check" 2>&1)"
    done
    # The other kinds of rendezvous: a separate store of rank 0, the c10d rendezvous, variables set by hand.
    expect_all gloo 2 "$(TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 timeout 120 "$python" -m torch.distributed.run --no-python \
      --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:0 --nproc-per-node 2 "$program" gloo 2>&1)"
    expect_all gloo 2 "$(timeout 120 "$python" -m torch.distributed.run --no-python --master-port 29641 \
      --nproc-per-node 2 "$program" gloo 2>&1)"
    by_hand() { env RANK="$1" WORLD_SIZE=2 LOCAL_RANK="$1" LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29642 \
      timeout 120 "$program" gloo 2>&1; }
    expect_all gloo 2 "$(by_hand 1 & by_hand 0; wait)"
    ;;
esac
