#!/usr/bin/env bash
# kernel.sh DIR: puts what machine.sh starts into DIR: Debian's own kernel (vmlinux), which has soft-RoCE as a module, and an
# initial file system (initrd) of busybox, the few modules that are needed, and guest_init.sh. Nothing is installed.
#
# 77 when the kernel cannot be had. The package, 70 MB, is kept beside them and not fetched again.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
cd "$1"

modules="virtio_pci 9p 9pnet_virtio overlay virtio_console veth crc32_generic rdma_rxe"
lacks() { echo "kernel.sh: $*" >&2; exit 77; }

for program in apt-get dpkg-deb modprobe depmod cpio xz busybox; do
  command -v "$program" >/dev/null || lacks "no program $program here"
done

package=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1)
archives=(linux-image-*.deb)
if [[ ! -s ${archives[0]} ]]; then
  [[ -n $package ]] || lacks "apt knows no linux-image-amd64 (apt-get update)"
  mkdir -p fetch
  (cd fetch && apt-get -q download "$package" >&2) || lacks "apt-get cannot download $package"
  mv fetch/*.deb .
  archives=(linux-image-*.deb)
fi

# Whole folders rather than files, since the names differ between versions; without drivers for hardware.
rm -rf tree initrd.d
mkdir tree
folders=(arch crypto lib net fs/9p fs/netfs fs/fscache fs/overlayfs fs/configfs drivers/infiniband/core drivers/infiniband/sw
         drivers/virtio drivers/char drivers/net/veth.ko)
dpkg-deb --fsys-tarfile "${archives[0]}" |
  tar -x -C tree --wildcards './boot/vmlinuz-*' './lib/modules/*/modules.*' \
    "${folders[@]/#/./lib/modules/*/kernel/}" 2>/dev/null || true  # a folder that this version lacks
version=$(basename tree/lib/modules/*)
depmod -b tree "$version" 2>/dev/null

# The bare ELF file starts at once; the compressed one would unpack itself, slowly, in the emulator.
start=$(LC_ALL=C grep -abo -P '\xfd7zXZ\x00' tree/boot/vmlinuz-* | head -n 1 | cut -d: -f1)
tail -c "+$((start + 1))" tree/boot/vmlinuz-* | xz -dc >vmlinux.new 2>/dev/null || true  # something follows the stream
[[ $(head -c 4 vmlinux.new | tail -c 3) == ELF ]] || lacks "cannot unpack the kernel of $package"

mkdir -p initrd.d/{bin,dev,proc,sys,modules,job,host,new}
cp "$(command -v busybox)" initrd.d/bin/busybox
install -m 755 "$here/guest_init.sh" initrd.d/init
number=10
for module in $modules; do
  modprobe -d tree -S "$version" --show-depends "$module" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
done | awk '!seen[$0]++' | while read -r file; do
  cp "$file" "initrd.d/modules/$number-$(basename "$file")"
  number=$((number + 1))
done
strip --strip-debug initrd.d/modules/*.ko 2>/dev/null || true  # it only makes the file smaller
(cd initrd.d && find . | cpio --quiet -o -H newc -R 0:0) >initrd.new
rm -rf tree initrd.d fetch
mv vmlinux.new vmlinux
mv initrd.new initrd
