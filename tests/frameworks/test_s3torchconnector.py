"""Amazon's S3 connector for PyTorch, whose writer and reader `attach` gives a chain, on a real S3 server."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.dcp.s3_server import ACCESS, SECRET, serving, weed

from .killed import SECONDS, environment

pytestmark = [pytest.mark.s3, pytest.mark.slow]

SCRIPT = """
import sys
import torch, torch.distributed.checkpoint as dcp
from s3torchconnector import S3ClientConfig
from s3torchconnector.dcp import S3StorageReader, S3StorageWriter
import streamxf

key, url = streamxf.Key.generate(), "s3://checkpoints/connector"
state = {"weight": torch.randn(3000, 1000).bfloat16(), "step": 3}
config = S3ClientConfig(force_path_style=True)
writer = streamxf.attach(
    S3StorageWriter("us-east-1", url, config), [streamxf.FloatZip(), streamxf.Checksum(), streamxf.Encrypt(key)]
)
dcp.save(state, storage_writer=writer)

target = {"weight": torch.zeros(3000, 1000).bfloat16(), "step": 0}
dcp.load(target, storage_reader=streamxf.attach(S3StorageReader("us-east-1", url, config), keys=key))
assert torch.equal(target["weight"], state["weight"]) and target["step"] == 3

own = streamxf.FsspecReader(url, keys=key, require="bound", endpoint_url=sys.argv[1])
target["weight"].zero_()
dcp.load(target, storage_reader=own)
assert torch.equal(target["weight"], state["weight"])
print("loaded by both")
"""


def test_attached_writer_and_reader(tmp_path: Path) -> None:
    pytest.importorskip("s3torchconnector")
    if weed() is None:
        pytest.skip("SeaweedFS is not installed")
    with serving(tmp_path) as url:
        account = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": url}
        command, variables = [sys.executable, "-c", SCRIPT, url], environment(**account)
        ran = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=SECONDS)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "loaded by both" in ran.stdout
