#!/bin/busybox sh
# The emulated machine's first process: modules, then the host's file system under a layer in memory, and guest_job.sh there.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
ln -s /proc/self/fd /dev/fd

stop() { echo "guest: $*" >/dev/kmsg; poweroff -f; }
for module in /modules/*.ko; do insmod "$module" || echo "guest: no $module" >/dev/kmsg; done

share="trans=virtio,version=9p2000.L,msize=512000"
mount -t 9p -o $share,cache=none job /job || stop "no job folder"
mount -t 9p -o $share,cache=loose,ro host /host || stop "no host files"
mount -t tmpfs tmpfs /new
mkdir -p /new/upper /new/work /new/root
mount -t overlay -o lowerdir=/host,upperdir=/new/upper,workdir=/new/work overlay /new/root || stop "no overlay"
for folder in proc sys dev; do mount --move /$folder /new/root/$folder; done
mount -t tmpfs tmpfs /new/root/tmp
mount -t tmpfs tmpfs /new/root/run
mkdir /new/root/run/job
mount --bind /job /new/root/run/job
exec chroot /new/root /bin/bash /run/job/guest_job.sh
