"""`AwsKms`: a key that never leaves AWS KMS, which wraps and unwraps data keys on request."""

from __future__ import annotations

import hmac
import ipaddress
import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any, ClassVar
from urllib.parse import urlsplit

from streamxf.errors import KeyServiceError, ParameterError, StreamxfError, WrongKeyError
from streamxf.keys.key import KeyProvider, public_id, wrong_voucher
from streamxf.lazy import pattern

CONNECT_SECONDS = 3
READ_SECONDS = 5
ATTEMPTS = 5

_ARN = pattern(r"arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]{1,64}", re.ASCII)
_CODE = pattern(r"[A-Za-z0-9.]{1,64}", re.ASCII)
_WRONG_KEY = frozenset({"InvalidCiphertextException", "IncorrectKeyException"})
_CREDENTIALS = "the credentials are invalid or have expired"
_THROTTLED = "too many requests, even after waiting; try again later, or raise the account's quota"
_REASONS = {
    "AccessDeniedException": "these credentials are not allowed to; the key's policy or an IAM policy must grant it",
    "NotFoundException": "there is no such key",
    "DisabledException": "the key is disabled",
    "KMSInvalidStateException": "the key's state does not allow it: it is pending deletion, or not usable yet",
    "InvalidKeyUsageException": "the key is not for symmetric encryption",
    "KeyUnavailableException": "the key is not available at the moment; try again later",
    "ThrottlingException": _THROTTLED,
    "LimitExceededException": _THROTTLED,
    "UnrecognizedClientException": _CREDENTIALS,
    "InvalidClientTokenId": _CREDENTIALS,
    "InvalidSignatureException": _CREDENTIALS,
    "ExpiredTokenException": _CREDENTIALS,
}


@dataclass(frozen=True, repr=False)
class AwsKms(KeyProvider):
    """A symmetric key in AWS KMS: ``kms:Encrypt`` lets its callers write, ``kms:Decrypt`` read.

    It vouches for contents, so a checkpoint that it opens needs no signature. **Anyone who may call Encrypt can forge
    checkpoints**; if more people may call it than should write, have checkpoints signed and name the signers in
    ``trust=``.

    The service sees only data keys and digests: a save calls it once for each process and once to publish, a load once
    for each data key and once for the checkpoint. boto3 finds the credentials as usual (environment, profile, role).
    None are held here, so this object can be pickled; each process makes its own client. Needs the extra:
    ``pip install 'streamxf[kms]'``.

    Parameters
    ----------
    arn : str
        ``arn:aws:kms:<region>:<account>:key/<id>``; the key's own `id` here, 16 hexadecimal digits, is derived from it.
        An alias is refused, since it can be pointed to another key.
        Replicas of a multi-Region key count as different keys.
    profile : str, optional
        In boto3's configuration files.
    endpoint_url : str, optional
        Instead of that of the ARN's region; boto3 also reads ``AWS_ENDPOINT_URL_KMS``. Data keys are sent there, so it
        must be https.
    allow_http : bool
        Whether it may be http on this machine's loopback address, as a stand-in for tests is. Data keys are then sent
        unprotected, and never through a proxy.

    Raises KeyServiceError if boto3 is not installed.
    """

    kind = "aws-kms"
    vouches: ClassVar[bool] = True
    portable: ClassVar[bool] = True

    arn: str
    profile: str | None = field(default=None, kw_only=True)
    endpoint_url: str | None = field(default=None, kw_only=True)
    allow_http: bool = field(default=False, kw_only=True)
    id: str = field(init=False, compare=False)
    _client: tuple[int, Any] | None = field(default=None, init=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.arn, str) or not _ARN.fullmatch(self.arn):
            raise ParameterError(
                "this is not the full ARN of a key in AWS KMS, arn:aws:kms:REGION:ACCOUNT:key/ID; an alias is not one"
            )
        if find_spec("boto3") is None:
            raise KeyServiceError("a key in AWS KMS needs boto3: pip install 'streamxf[kms]'")
        object.__setattr__(self, "id", public_id(self.arn.encode("ascii"), self.kind))

    def wrap(self, data_key: bytes, dek_id: bytes) -> bytes:
        return self._call("encrypt", "CiphertextBlob", Plaintext=data_key, EncryptionContext=_context("dek", dek_id))

    def unwrap(self, wrapped: bytes, dek_id: bytes) -> bytes:
        return self._call("decrypt", "Plaintext", CiphertextBlob=wrapped, EncryptionContext=_context("dek", dek_id))

    def vouch(self, digest: bytes) -> bytes:
        context = _context("contents", digest)
        return self._call("encrypt", "CiphertextBlob", Plaintext=digest, EncryptionContext=context)

    def check_voucher(self, voucher: bytes, digest: bytes) -> None:
        context = _context("contents", digest)
        try:
            found = self._call("decrypt", "Plaintext", CiphertextBlob=voucher, EncryptionContext=context)
        except WrongKeyError:
            found = b""
        if not hmac.compare_digest(found, digest):
            raise wrong_voucher(self)

    def __repr__(self) -> str:
        return f"AwsKms({self.arn!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        how = partial(AwsKms, profile=self.profile, endpoint_url=self.endpoint_url, allow_http=self.allow_http)
        return how, (self.arn,)

    def _call(self, operation: str, wanted: str, **arguments: Any) -> bytes:
        """The part `wanted` of KMS's answer."""
        from botocore.exceptions import BotoCoreError, ClientError

        failure: StreamxfError
        try:
            client = self._connected()
            with _unlogged():
                answer: dict[str, Any] = getattr(client, operation)(KeyId=self.arn, **arguments)
        except ClientError as error:
            failure = self._refusal(operation, error.response)
        except BotoCoreError as error:
            said = " ".join(f"{type(error).__name__}: {error}".split())  # made of addresses and names of settings
            failure = KeyServiceError(f"AWS KMS could not {operation} with {self.arn}: {said[:300]}")
        except StreamxfError as error:
            failure = error.with_traceback(None)
        except Exception as error:  # from botocore's parsers and urllib3, for odd answers and addresses
            failure = KeyServiceError(
                f"AWS KMS could not {operation} with {self.arn}: {type(error).__name__}, from a setting of boto3 (an "
                "endpoint without https://?) or a response that is not from KMS"
            )
        else:
            found = answer.get(wanted) if isinstance(answer, dict) and answer.get("KeyId") == self.arn else None
            if found and isinstance(found, bytes):
                return found
            failure = KeyServiceError(f"AWS KMS was asked to {operation} with {self.arn}, but sent a wrong response")
        # raised here, since botocore's exceptions hold the request, which has the data key
        raise failure

    def _refusal(self, operation: str, response: Any) -> StreamxfError:
        told = response.get("Error") if isinstance(response, dict) else None
        code = str(told.get("Code", "")) if isinstance(told, dict) else ""
        if code in _WRONG_KEY:
            return WrongKeyError(f"the key {self.arn} does not open this")
        reason = _REASONS.get(code, "it gives no other reason")
        shown = code if _CODE.fullmatch(code) else "an error without a name"
        # the service's own message is left out: it may repeat the request
        return KeyServiceError(f"AWS KMS does not {operation} with {self.arn}: {reason} ({shown})")

    def _connected(self) -> Any:
        cached = self._client
        if cached is not None and cached[0] == os.getpid():
            return cached[1]
        client = self._new_client()
        url = urlsplit(client.meta.endpoint_url)
        if url.scheme == "http" and self.allow_http and _is_loopback(url.hostname or ""):
            client = self._new_client(proxies={})  # one that the environment names would read the data key
        elif url.scheme != "https":
            raise KeyServiceError(
                f"data keys are not sent to {url.scheme}://{url.hostname}: that needs https. For tests, "
                "allow_http=True accepts http on this machine's loopback address"
            )
        object.__setattr__(self, "_client", (os.getpid(), client))  # threads may make one each, of which one stays
        return client

    def _new_client(self, **config: Any) -> Any:
        import boto3
        from botocore.config import Config

        return boto3.session.Session(profile_name=self.profile).client(
            "kms",
            region_name=self.arn.split(":")[3],
            endpoint_url=self.endpoint_url,
            config=Config(
                connect_timeout=CONNECT_SECONDS,
                read_timeout=READ_SECONDS,
                retries={"total_max_attempts": ATTEMPTS, "mode": "standard"},
                **config,
            ),
        )


def _context(what: str, data: bytes) -> dict[str, str]:
    return {f"streamxf:{what}": data.hex()}


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    return False


_asking = threading.local()


def _is_shown(record: logging.LogRecord) -> bool:
    """Drop a thread's debug records while it calls KMS: botocore logs whole requests and answers."""
    return record.levelno >= logging.INFO or not getattr(_asking, "now", False)


@contextmanager
def _unlogged() -> Iterator[None]:
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in ("boto3", "botocore", "urllib3"):
            logging.getLogger(name).addFilter(_is_shown)
    _asking.now = True
    try:
        yield
    finally:
        _asking.now = False
