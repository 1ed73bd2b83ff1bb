#!/bin/busybox sh
# The first program of the guest: loads modules, puts the root file system together, and hands over to the agent.
# The variables AGENT, KEEP, FULL and WITHOUT come from /config. Errors go to the serial console and end the guest.
bb=/bin/busybox
fail() { echo "vm-init: $*"; $bb poweroff -f; }
must() { "$@" || fail "failed: $*"; }

. /config
must $bb mount -t proc proc /proc
must $bb mount -t sysfs sysfs /sys
$bb mount -t devtmpfs dev /dev 2>/dev/null
while read -r module; do
    $bb insmod "/modules/$module" || fail "cannot load module $module"
done < /modules/order
[ -n "$AGENT" ] || { echo "vm-init: it boots"; $bb poweroff -f; }

ninep=trans=virtio,version=9p2000.L,ro,msize=512000,cache=loose
must $bb mount -t 9p -o $ninep host /layers/host
must $bb mount -t 9p -o $ninep tools /layers/tools
layers=/layers/tools:/layers/host
if [ -n "$FULL" ]; then
    must $bb mount -t 9p -o $ninep full /layers/full
    layers=/layers/tools:/layers/full:/layers/host
fi
# Libraries that the guest is to be without: a layer above the others has a whiteout for each of their files.
if [ -n "$WITHOUT" ]; then
    must $bb mount -t tmpfs hidden /layers/hidden
    for file in /layers/*/usr/lib/"$WITHOUT"* /layers/*/usr/lib64/"$WITHOUT"* \
        /layers/*/usr/lib/*-linux-gnu/"$WITHOUT"* /layers/*/usr/local/lib/"$WITHOUT"*; do
        [ -e "$file" ] || [ -L "$file" ] || continue
        hidden="/layers/hidden/${file#/layers/*/}"
        [ -e "$hidden" ] && continue
        must $bb mkdir -p "${hidden%/*}"
        must $bb mknod "$hidden" c 0 0
    done
    layers=/layers/hidden:$layers
fi
must $bb mount -t overlay -o "ro,lowerdir=$layers" overlay /newroot
must $bb mount -t proc proc /newroot/proc
must $bb mount -t sysfs sysfs /newroot/sys
$bb mount -t debugfs debugfs /newroot/sys/kernel/debug
must $bb mount -t devtmpfs dev /newroot/dev
for directory in /run /tmp /dev/shm; do
    $bb mkdir -p "/newroot$directory"
    must $bb mount -t tmpfs -o mode=1777 tmpfs "/newroot$directory"
done
$bb mkdir -p /newroot/dev/pts
must $bb mount -t devpts -o mode=620,ptmxmode=666 devpts /newroot/dev/pts

$bb hostname guest

# Directories that the tmpfs above would hide.
echo "$KEEP" | while read -r directory; do
    [ -n "$directory" ] || continue
    must $bb mkdir -p "/newroot$directory"
    must $bb mount -o bind "/layers/host$directory" "/newroot$directory"
done
exec $bb switch_root /newroot "$AGENT" guest-init
fail "cannot start $AGENT"
