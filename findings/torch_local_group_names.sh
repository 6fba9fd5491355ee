#!/usr/bin/env bash
# torch 2.13.0: a process group made with new_group(..., use_local_synchronization=True) gets the name of one that was
# destroyed before, and its ranks then find the addresses of the old group in the job's store.
#
# The name is a hash of the ranks and of how many groups this process knows (_hash_ranks_to_str in distributed_c10d.py),
# and a group that is destroyed is counted no longer. So making a group, destroying it and making it again, as a job does
# that has one object after the other with a group of its own, often fails with several ranks: "Gloo connectFullMesh failed".
# Groups that stay give each other different names, so keeping all of them works.
# Exits with 0 if the names are the same, as seen in 2.13.0, else with 1.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy
cat > "$folder/names.py" <<'PYTHON'
import sys
import torch, torch.distributed as dist

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
names = []
for _ in range(2):
    group = dist.new_group([0], use_local_synchronization=True)
    names.append(group.group_name)
    dist.destroy_process_group(group)
print(f"torch {torch.__version__}: the names of two groups, one after the other: {names}")
sys.exit(len(set(names)) > 1)
PYTHON
"$folder/venv/bin/python" "$folder/names.py" 2>/dev/null
