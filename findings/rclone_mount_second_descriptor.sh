#!/usr/bin/env bash
# rclone mount 1.60.1 (Debian 12) without its write cache (the default): a file that was written and closed becomes empty
# when an older descriptor of it, through which nothing was written, is closed.
#
# The older one was opened to read and write before the file was there, say to lock it; the newer one truncates, as "w"
# of Python's open does. Both closes succeed. The mount itself goes on to show the full size for a moment.
#
# Needs root or fusermount3, /dev/fuse, and apt-get. Seen on Linux 6.18:
#   written and closed: 300000 bytes
#   the older descriptor closed, too: 0 bytes
set -euo pipefail
[ -r /dev/fuse ] && command -v apt-get >/dev/null || {
    echo "not run: there is no FUSE, or no apt-get"
    exit 2
}
folder=$(mktemp -d)
clean() {
    fusermount3 -uz "$folder/mount" 2>/dev/null || umount -l "$folder/mount" 2>/dev/null || true
    rm -rf --one-file-system "$folder"
}
trap clean EXIT
cd "$folder"
mkdir source mount package
apt-get download -q "rclone=1.60.1+dfsg-2+b5" >/dev/null
dpkg -x rclone_*.deb package
package/usr/bin/rclone --config /dev/null mount source mount --daemon 2>/dev/null
found=$(python3 - <<'PYTHON'
import os, time

older = os.open("mount/file", os.O_RDWR | os.O_CREAT, 0o666)
with open("mount/file", "wb") as file:
    file.write(bytes(300000))
time.sleep(1)
print(f"written and closed: {os.path.getsize('source/file')} bytes")
os.close(older)
time.sleep(1)
print(f"the older descriptor closed, too: {os.path.getsize('source/file')} bytes")
PYTHON
)
echo "$found"
[ "$found" = "written and closed: 300000 bytes
the older descriptor closed, too: 0 bytes" ]
