"""The proxy does what it says, between botocore and a real server."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from tests.dcp.s3_server import client_of

from .control import Proxy, most_at_once
from .requests import Fault, Request

pytestmark = [pytest.mark.s3, pytest.mark.slow]

BUCKET = "checkpoints"
PART = 5 * 2**20  # the smallest that S3 takes, but for the last
DATA = bytes(range(256)) * 4000


@pytest.fixture(scope="module")
def connected(running: Proxy) -> Iterator[Any]:
    made = client_of(running.url)
    yield made
    made.close()


@pytest.fixture
def client(connected: Any, proxy: Proxy) -> Any:
    """A client that asks the proxy, which begins anew."""
    return connected


@pytest.fixture(scope="module")
def beside(endpoint: str) -> Iterator[Any]:
    """A client that asks the server itself."""
    made = client_of(endpoint)
    yield made
    made.close()


def failure(action: Callable[[], Any]) -> str:
    """The code that S3's answer has, or the name of what else is raised."""
    from botocore.exceptions import BotoCoreError, ClientError

    with pytest.raises((ClientError, BotoCoreError)) as caught:
        action()
    if isinstance(caught.value, ClientError):
        return str(caught.value.response["Error"]["Code"])
    return type(caught.value).__name__


def stored(client: Any, key: str) -> bytes | None:
    try:
        return bytes(client.get_object(Bucket=BUCKET, Key=key)["Body"].read())
    except client.exceptions.NoSuchKey:
        return None


def test_it_passes_on_and_counts(proxy: Proxy, client: Any, beside: Any) -> None:
    client.put_object(Bucket=BUCKET, Key="proxy/a b/ü", Body=DATA)
    assert stored(beside, "proxy/a b/ü") == DATA
    assert stored(client, "proxy/a b/ü") == DATA
    part = client.get_object(Bucket=BUCKET, Key="proxy/a b/ü", Range="bytes=10-19")["Body"].read()
    assert part == DATA[10:20]
    client.head_object(Bucket=BUCKET, Key="proxy/a b/ü")
    client.copy_object(Bucket=BUCKET, Key="proxy/copy", CopySource={"Bucket": BUCKET, "Key": "proxy/a b/ü"})
    client.list_objects_v2(Bucket=BUCKET, Prefix="proxy/")
    client.delete_object(Bucket=BUCKET, Key="proxy/copy")
    found = proxy.requests()
    operations = "PutObject GetObject GetObject HeadObject CopyObject ListObjectsV2 DeleteObject"
    assert " ".join(request.operation for request in found) == operations
    assert {request.key for request in found[:4]} == {"proxy/a b/ü"}
    assert [request.range for request in found[:4]] == ["", "", "bytes=10-19", ""]
    assert [request.received for request in found[:4]] == [0, len(DATA), 10, 0]
    assert [request.status for request in found] == [200, 200, 206, 200, 200, 200, 204]
    assert found[0].sent == found[0].size >= len(DATA)
    proxy.forget()
    assert proxy.requests() == []


def test_uploads_in_parts(proxy: Proxy, client: Any, beside: Any) -> None:
    upload = {"Bucket": BUCKET, "Key": "proxy/parts"}
    upload["UploadId"] = client.create_multipart_upload(**upload)["UploadId"]
    parts = [
        {"PartNumber": number, "ETag": client.upload_part(**upload, PartNumber=number, Body=body)["ETag"]}
        for number, body in ((1, bytes(PART)), (2, b"end"))
    ]
    assert len(client.list_parts(**upload)["Parts"]) == 2
    client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    assert stored(beside, "proxy/parts") == bytes(PART) + b"end"
    upload["UploadId"] = client.create_multipart_upload(Bucket=BUCKET, Key="proxy/parts")["UploadId"]
    assert len(client.list_multipart_uploads(Bucket=BUCKET)["Uploads"]) == 1
    client.abort_multipart_upload(**upload)
    assert [*proxy.counts().items()] == [
        *[("CreateMultipartUpload", 2), ("UploadPart", 2), ("ListParts", 1), ("CompleteMultipartUpload", 1)],
        *[("ListMultipartUploads", 1), ("AbortMultipartUpload", 1)],
    ]


@pytest.mark.parametrize(
    ("kind", "code", "done"),
    [
        *[("500", "InternalError", False), ("503", "SlowDown", False), ("done, then 500", "InternalError", True)],
        *[("reset before", "ConnectionClosedError", False), ("reset midway", "ConnectionClosedError", False)],
        *[("reset after", "ConnectionClosedError", True), ("stalled", "ConnectionClosedError", True)],
    ],
)
def test_puts_fail(proxy: Proxy, client: Any, beside: Any, kind: str, code: str, done: bool) -> None:
    key = f"proxy/{kind}"
    proxy.faults(Fault(kind, "PutObject", seconds=0.1))
    assert failure(lambda: client.put_object(Bucket=BUCKET, Key=key, Body=DATA)) == code
    (request,) = proxy.requests()
    assert request.fault == kind
    assert (0 < request.sent < request.size) == (kind == "reset midway")
    assert (stored(beside, key) == DATA) == done
    client.put_object(Bucket=BUCKET, Key=key, Body=DATA)
    assert stored(beside, key) == DATA


@pytest.mark.parametrize(
    ("kind", "error"),
    [("truncated", "IncompleteRead"), ("stalled", "IncompleteRead"), ("reset after", "ConnectionClosedError")],
)
def test_answers_break(proxy: Proxy, client: Any, kind: str, error: str) -> None:
    client.put_object(Bucket=BUCKET, Key="proxy/answer", Body=DATA)
    proxy.faults(Fault(kind, "GetObject", seconds=0.1))
    with pytest.raises(Exception) as caught:
        stored(client, "proxy/answer")
    named = {each.__name__ for each in type(caught.value).__mro__}
    # a reset overtakes what was sent before it
    assert named & {error, "ConnectionClosedError", "ResponseStreamingError", "ReadTimeoutError"}
    assert stored(client, "proxy/answer") == DATA


def test_bytes_are_wrong(proxy: Proxy, client: Any) -> None:
    client.put_object(Bucket=BUCKET, Key="proxy/wrong", Body=DATA)
    proxy.faults(Fault("wrong bytes", at=0.25))
    found = client.get_object(Bucket=BUCKET, Key="proxy/wrong", Range=f"bytes=0-{len(DATA) - 1}")["Body"].read()
    assert [at for at, (one, other) in enumerate(zip(found, DATA, strict=True)) if one != other] == [len(DATA) // 4]


@pytest.mark.parametrize(("kind", "code"), [("412", "PreconditionFailed"), ("409", "ConditionalRequestConflict")])
def test_conditions_fail(proxy: Proxy, client: Any, beside: Any, kind: str, code: str) -> None:
    proxy.faults(Fault(kind))
    client.put_object(Bucket=BUCKET, Key=f"proxy/{kind}", Body=b"no condition")
    asked = {"Bucket": BUCKET, "Key": f"proxy/{kind}", "Body": b"condition", "IfMatch": '"other"'}
    assert failure(lambda: client.put_object(**asked)) == code
    assert stored(beside, f"proxy/{kind}") == b"no condition"


def test_a_completion_fails_in_its_body(proxy: Proxy, client: Any) -> None:
    upload = {"Bucket": BUCKET, "Key": "proxy/completion"}
    upload["UploadId"] = client.create_multipart_upload(**upload)["UploadId"]
    tag = client.upload_part(**upload, PartNumber=1, Body=b"all")["ETag"]
    whole = {"Parts": [{"PartNumber": 1, "ETag": tag}]}
    proxy.faults(Fault("200 with an error"))
    assert failure(lambda: client.complete_multipart_upload(**upload, MultipartUpload=whole)) == "InternalError"
    client.complete_multipart_upload(**upload, MultipartUpload=whole)
    assert stored(client, "proxy/completion") == b"all"


def test_which_requests_fail(proxy: Proxy, client: Any) -> None:
    proxy.faults(Fault("503", "HeadObject", number=1, times=2), Fault("500", "HeadObject", number=2))
    client.put_object(Bucket=BUCKET, Key="proxy/which", Body=b"")
    for _ in range(5):
        with suppress(client.exceptions.ClientError):
            client.head_object(Bucket=BUCKET, Key="proxy/which")
    assert [request.fault for request in proxy.requests()] == ["", "", "503", "503", "", ""]
    with pytest.raises(ValueError, match="no kind"):
        Fault("502")


@pytest.mark.parametrize("kind", ["killed before", "killed midway", "killed after"])
def test_a_process_is_killed(proxy: Proxy, beside: Any, kind: str) -> None:
    key = f"proxy/{kind}"
    program = (
        "import sys; from tests.dcp.s3_server import client_of; input()\n"
        "client_of(sys.argv[1]).put_object(Bucket='checkpoints', Key=sys.argv[2], Body=bytes(10**6))"
    )
    command = [sys.executable, "-c", program, proxy.url, key]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as process:
        proxy.faults(Fault(kind, process=process.pid))
        process.communicate(b"\n", timeout=600)
    assert process.returncode == -9
    (request,) = proxy.requests()
    assert (request.sent > 0) == (kind != "killed before")
    assert (stored(beside, key) == bytes(10**6)) == (kind == "killed after")


def test_bandwidth_is_shared_and_requests_wait(proxy: Proxy) -> None:
    """Only that it takes as long as it must: how much longer is the machine's affair."""
    proxy.pace(rate=8e6, latency=0.05)

    def put_and_get(number: int) -> bytes:
        client = client_of(proxy.url)
        client.put_object(Bucket=BUCKET, Key=f"proxy/pace{number}", Body=bytes(10**6))
        return bytes(client.get_object(Bucket=BUCKET, Key=f"proxy/pace{number}")["Body"].read())

    begin = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(put_and_get, range(2))] == [bytes(10**6)] * 2
    assert time.monotonic() - begin > 2 * 2e6 / 8e6  # each way for itself, one after the other for each client
    found = proxy.requests()
    assert all(request.ended - request.begun > 0.05 for request in found)
    assert most_at_once(found) == 2
    proxy.pace()


def test_most_at_once() -> None:
    spans = [(0, 2), (1, 3), (3, 5), (2.5, 4)]
    assert most_at_once([Request("", begun=begun, ended=ended) for begun, ended in spans]) == 2
    assert most_at_once([]) == 0
