"""What passes the proxy: `Request`, one S3 request in the words of S3's API, and `Fault`, what is done to one."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

ANSWERS = {
    "500": ("500 Internal Server Error", "InternalError"),
    "503": ("503 Slow Down", "SlowDown"),
    "409": ("409 Conflict", "ConditionalRequestConflict"),
    "412": ("412 Precondition Failed", "PreconditionFailed"),
    "200 with an error": ("200 OK", "InternalError"),
    "done, then 500": ("500 Internal Server Error", "InternalError"),
}
"""Kinds of faults that answer in the server's place: the status, and the code in the body."""

KINDS = (
    *ANSWERS,
    *("reset before", "reset midway", "reset after"),
    *("truncated", "stalled", "wrong bytes"),
    *("killed before", "killed midway", "killed after"),
)

_BY_QUERY = {
    ("PUT", "uploadId"): "UploadPart",
    ("POST", "uploads"): "CreateMultipartUpload",
    ("POST", "uploadId"): "CompleteMultipartUpload",
    ("DELETE", "uploadId"): "AbortMultipartUpload",
    ("GET", "uploadId"): "ListParts",
    ("GET", "uploads"): "ListMultipartUploads",
    ("GET", "list-type"): "ListObjectsV2",
    ("POST", "delete"): "DeleteObjects",
    ("GET", "location"): "GetBucketLocation",
    ("GET", "versions"): "ListObjectVersions",
}
_OF_KEYS = {"GET": "GetObject", "PUT": "PutObject", "HEAD": "HeadObject", "DELETE": "DeleteObject"}
_OF_BUCKETS = {"GET": "ListObjects", "PUT": "CreateBucket", "HEAD": "HeadBucket", "DELETE": "DeleteBucket"}
_WITH_ANSWER = ("GET", "POST")


@dataclass
class Request:
    """A request, and what came of it.

    Attributes
    ----------
    operation : str
        As S3's API calls it.
    range : str
        What of an object was asked for, such as ``bytes=0-99``.
    size : int
        Of the body that the client announced, in bytes.
    status : int
        Of what the client was answered; 0 if it got no answer.
    sent, received : int
        Bytes of bodies: of this request that were passed to the server, and of its answer that were passed to the
        client.
    begun, ended : float
        Seconds of a clock of the proxy's own; `ended` is 0 while the request is under way.
    fault : str
        Its kind.
    """

    operation: str
    key: str = ""
    range: str = ""
    size: int = 0
    conditional: bool = False
    has_answer: bool = False
    status: int = 0
    sent: int = 0
    received: int = 0
    begun: float = 0.0
    ended: float = 0.0
    fault: str = ""

    @classmethod
    def of(cls, method: str, target: str, fields: dict[str, str]) -> Request:
        """Names a request with its bucket in the path, by its first line and its header's fields."""
        url = urlsplit(target)
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        query = parse_qs(url.query, keep_blank_values=True)
        named = [operation for (of, name), operation in _BY_QUERY.items() if of == method and name in query]
        plain = _OF_KEYS if key else _OF_BUCKETS if bucket else {"GET": "ListBuckets"}
        operation = named[0] if named else plain.get(method, f"{method} {target}")
        if "x-amz-copy-source" in fields:
            operation = {"PutObject": "CopyObject", "UploadPart": "UploadPartCopy"}[operation]
        conditional = operation not in ("GetObject", "HeadObject") and not fields.keys().isdisjoint(
            ("if-match", "if-none-match")
        )
        size = int(fields.get("content-length", 0))
        return cls(operation, key, fields.get("range", ""), size, conditional, method in _WITH_ANSWER)


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong with some of the requests that it suits.

    Attributes
    ----------
    kind : str
        One of `KINDS`. "before", "midway" and "after" are seen from the server: it has nothing of the request then, a
        part of its body, or has done what was asked. Killed is `process`, whatever the client may be.
    operation : str
        Of the requests; "" for any.
    number, times : int
        The requests from this number on, counted from 0, and how many of them.
    at : float
        How much of a body passes before the fault, as a share.
    seconds : float
        How long a connection stalls before it is reset.
    """

    kind: str
    operation: str = ""
    number: int = 0
    times: int = 1
    at: float = 0.5
    seconds: float = 1.0
    process: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"no kind of fault is called {self.kind!r}")

    def suits(self, request: Request) -> bool:
        """Whether this can go wrong with it at all."""
        if self.operation not in ("", request.operation):
            return False
        match self.kind:
            case "409" | "412":
                return request.conditional
            case "200 with an error":
                return request.operation in ("CompleteMultipartUpload", "CopyObject", "UploadPartCopy")
            case "reset midway" | "killed midway":
                return request.size > 0
            case "truncated":
                return request.has_answer
            case "wrong bytes":
                return request.operation == "GetObject"
        return True
