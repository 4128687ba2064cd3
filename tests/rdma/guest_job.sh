# In the emulated machine, in the host's file system: two soft-RoCE devices at the ends of one virtual cable, then the
# command. rxe0 is 10.77.0.1, rxe1 is 10.77.0.2; both are in one network namespace, as rxe of this kernel knows no other.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
. /run/job/settings

finish() {
  echo "$1" >/run/job/code
  echo o >/proc/sysrq-trigger  # power off
  sleep 60
}

# The GID table is filled by a kernel worker, some time after the device is there.
wait_for_gid() {  # device, last byte of its address
  local try gid
  for try in {1..100}; do
    for gid in /sys/class/infiniband/"$1"/ports/1/gids/{0,1,2,3}; do
      [[ -r $gid && $(<"$gid") == 0000:*:ffff:0a4d:000$2 ]] 2>/dev/null && return
    done
    sleep 0.05
  done
  echo "guest: $1 has no IPv4 GID" >/dev/kmsg
  finish 125
}

make_devices() {
  # RoCE's largest MTU, 4096, needs that much and headers; a packet to an address of this host must come from the cable.
  ip -b - <<IP
link add veth0 mtu 4200 type veth peer name veth1 mtu 4200
addr add 10.77.0.1/24 dev veth0
addr add 10.77.0.2/24 dev veth1
link set veth0 up
link set veth1 up
IP
  local name
  for name in veth0 veth1 all; do
    cd /proc/sys/net/ipv4/conf/$name
    echo 1 >accept_local
    echo 0 >rp_filter
    echo 1 >arp_ignore
  done
  echo 100000 >/proc/sys/net/core/netdev_max_backlog  # the cable itself does not slow a sender down
  printf 'link add rxe%d type rxe netdev veth%d\n' 0 0 1 1 | rdma -b - || finish 125
  wait_for_gid rxe0 1
  wait_for_gid rxe1 2
}

out=/dev/null err=/dev/null
for port in /sys/class/virtio-ports/*; do
  [[ $(<"$port"/name) == out ]] && out=/dev/${port##*/}
  [[ $(<"$port"/name) == err ]] && err=/dev/${port##*/}
done
ip link set lo up
ulimit -l unlimited
((devices)) && make_devices
cd "$folder" || finish 125
mapfile -d '' -t command </run/job/command
"${command[@]}" </dev/null >$out 2>$err
finish $?
