#!/usr/bin/env bash
# What machine.sh promises of the machine that it starts.
set -uo pipefail
machine=$(dirname "$0")/machine.sh
folder=$(mktemp -d -p .)  # not in /tmp, which the machine has for itself
trap 'rm -rf "$folder"' EXIT
failed=0
expect() {  # what, expected, got
  [[ $2 == "$3" ]] && return
  echo "machine_test: $1: expected '$2', got '$3'"
  failed=1
}

"$machine" true  # the kernel is made ready here, if it is not yet: what that says is not the command's
code=$?
((code != 77)) || exit 77
expect "exit code of a command that succeeds" 0 $code

out=$("$machine" bash -c "echo to stdout; echo to stderr >&2; echo gone >$folder/file ; exit 7" 2>"$folder/err")
code=$?
expect "exit code" 7 $code
expect "standard output" "to stdout" "$out"
expect "standard error" "to stderr" "$(<"$folder/err")"
expect "what the command wrote" "" "$(cat "$folder/file" 2>/dev/null)"

out=$("$machine" bash -c 'cd /sys/class/infiniband; echo *; cat */ports/1/state')
expect "devices" $'rxe0 rxe1\n4: ACTIVE\n4: ACTIVE' "$out"
out=$("$machine" --no-devices bash -c 'echo /dev/infiniband/uverbs*')
expect "no devices" '/dev/infiniband/uverbs*' "$out"

"$machine" --timeout 8 sleep 100 >/dev/null 2>&1
expect "exit code of a command without end" 124 $?
exit $failed
