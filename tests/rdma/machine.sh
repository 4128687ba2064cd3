#!/usr/bin/env bash
# machine.sh [--no-devices] [--timeout SECONDS] COMMAND ARG...
#
# Runs a command in an emulated machine with two soft-RoCE devices, rxe0 (10.77.0.1) and rxe1 (10.77.0.2), for hosts whose
# kernel has no RDMA. The command sees this host's files at their places; what it writes is gone afterwards, and there is no
# network outside. Its output comes back and its exit code; 124: out of time, 125: the machine failed, 77: there is none.
#
# One processor: with two, the soft-RoCE of this kernel reorders messages now and then. GATUN_RDMA_KERNEL names the folder
# for the kernel; without it, build/rdma.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
kernel=${GATUN_RDMA_KERNEL:-$here/../../build/rdma}
devices=1 timeout=300
while (($#)); do
  case $1 in
    --no-devices) devices=0; shift ;;
    --timeout) timeout=$2; shift 2 ;;
    --) shift; break ;;
    *) break ;;
  esac
done
(($#)) || { sed -n '2,/^set -/s/^#\( \|$\)//p' "$0"; exit 2; }

skip() { echo "[skipped] machine.sh: $*"; exit 77; }
for program in qemu-system-x86_64 flock ip rdma; do
  command -v "$program" >/dev/null || skip "no $program here (./dev test rdma installs it)"
done
mkdir -p "$kernel"
prepare() {
  flock 9
  [[ -s $kernel/vmlinux && $kernel/initrd -nt $here/guest_init.sh && $kernel/initrd -nt $here/kernel.sh ]] ||
    bash "$here/kernel.sh" "$kernel"
}
prepare 9>"$kernel/lock" || skip "no kernel for the emulated machine"

job=$(mktemp -d)
qemu="" readers=()
clean() {
  kill $qemu "${readers[@]}" 2>/dev/null || true  # they may have ended
  rm -rf "$job"
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
cp "$here/guest_job.sh" "$job/"
printf '%s\0' "$@" >"$job/command"
printf 'devices=%d\nfolder=%q\n' "$devices" "$PWD" >"$job/settings"

share=security_model=none,multidevs=remap
arguments=(-M q35,usb=off,sata=off,smbus=off,vmport=off -accel tcg,thread=multi -cpu max -smp 1 -m 1536
  -nodefaults -no-user-config -display none -no-reboot -monitor none -serial "file:$job/console"
  -kernel "$kernel/vmlinux" -initrd "$kernel/initrd"
  # Speed: no mitigations, no calibration of clocks, no tests of ciphers. dad: addresses are usable at once.
  -append "console=ttyS0 loglevel=4 panic=-1 mitigations=off nopti tsc=reliable no_timer_check cryptomgr.notests \
rcupdate.rcu_expedited=1 nowatchdog random.trust_cpu=on audit=0 net.ifnames=0"
  -fsdev "local,id=host,path=/,readonly=on,$share" -device virtio-9p-pci,fsdev=host,mount_tag=host
  -fsdev "local,id=job,path=$job,$share" -device virtio-9p-pci,fsdev=job,mount_tag=job
  -device virtio-serial-pci
  -chardev "file,id=out,path=$job/out" -device virtserialport,chardev=out,name=out
  -chardev "file,id=err,path=$job/err" -device virtserialport,chardev=err,name=err)
mkfifo "$job/out" "$job/err"
cat "$job/out" & readers+=($!)
cat "$job/err" >&2 & readers+=($!)
timeout -k 5 "$timeout" qemu-system-x86_64 "${arguments[@]}" </dev/null &
qemu=$!
ended=0
wait "$qemu" || ended=$?
qemu=""
if [[ -s $job/code ]]; then
  wait "${readers[@]}" || true  # the code is the command's; a reader whose output nobody takes any more does not change it
  readers=()
  code=$(<"$job/code")
  ((code != 125)) || tail -n 8 "$job/console" >&2
  exit "$code"
fi
tail -n 20 "$job/console" >&2
if ((ended == 124)); then
  echo "machine.sh: no end after $timeout s" >&2
  exit 124
fi
echo "machine.sh: the machine stopped without a result (qemu: $ended)" >&2
exit 125
