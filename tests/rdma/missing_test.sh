#!/usr/bin/env bash
# missing_test.sh BIN: what is said where RDMA is in the kernel and no device is, and where the kernel has none.
set -uo pipefail
machine=$(dirname "$0")/machine.sh
failed=0
expect() {  # what, a part of the output, output
  [[ $3 == *"$2"* ]] && return
  echo "missing_test: $1: expected '$2', got '$3'"
  failed=1
}

no_device="there is no RDMA device; for RDMA in software: rdma link add"
out=$("$machine" --no-devices bash -c "'$1/gatun' info -d; '$1/gatund' --port 0 --transport verbs" 2>&1)
code=$?
((code == 77)) && { echo "$out"; exit 77; }
expect "gatun info" "RDMA        $no_device" "$out"
expect "gatund" "gatund: error: $no_device" "$out"
expect "exit code of gatund" 1 $code

# Here. A host that has RDMA after all says something else.
if [[ ! -e /sys/class/infiniband_verbs ]]; then
  out=$("$1/gatun" info -d)
  expect "gatun info without RDMA in the kernel" "this kernel has no RDMA: its module ib_uverbs is not loaded" "$out"
  out=$(timeout -s TERM 1 "$1/gatund" --port 0 --metrics off 2>&1)
  expect "auto without RDMA in the kernel" "none by RDMA (this kernel has no RDMA: its module ib_uverbs is not loaded" "$out"
fi
exit $failed
