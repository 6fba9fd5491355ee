"""What stands in for AWS KMS: moto's server, and one that answers whatever a test wants."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

REGION = "eu-west-1"
CREDENTIALS = {"aws_access_key_id": "test", "aws_secret_access_key": "a-secret-of-the-test"}


class Kms:
    """Moto's server, for an administrator.

    Parameters
    ----------
    url : str
    certificate : str
        The file with which its own is verified.
    """

    def __init__(self, url: str, certificate: str) -> None:
        self.url = url
        self.certificate = certificate

    def new_key(self) -> str:
        """The ARN of a new key."""
        return self._client.create_key()["KeyMetadata"]["Arn"]

    @cached_property
    def _client(self) -> Any:
        import boto3  # where the tests have moto, which depends on it

        return boto3.client("kms", region_name=REGION, endpoint_url=self.url, verify=self.certificate, **CREDENTIALS)


def write_certificate(folder: Path) -> tuple[str, str]:
    """A certificate for the loopback address, which vouches for itself, and its key; the files' names."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    usage = x509.KeyUsage(True, False, False, False, False, True, False, False, False)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    form = serialization.PrivateFormat.PKCS8
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(pem))
    (folder / "key.pem").write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
    return str(folder / "certificate.pem"), str(folder / "key.pem")


@dataclass
class Answers:
    """A server that gives the same answer to everything."""

    url: str = ""
    status: int = 200
    answer: dict[str, object] = field(default_factory=dict)
    asked: list[bytes] = field(default_factory=list)

    def set(self, status: int, answer: dict[str, object]) -> None:
        """What to answer from now on; forgets what it was asked."""
        self.status, self.answer, self.asked = status, answer, []


@contextmanager
def answering() -> Iterator[Answers]:
    """Start it on loopback."""
    answers = Answers()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answers.asked.append(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps(answers.answer).encode()
            self.send_response(answers.status)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Nothing: the test says what it was asked."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        answers.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield answers
        finally:
            server.shutdown()
            thread.join()
