"""`InferenceEngine`: the calls that have an inference engine reload its weights from a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from streamxf.errors import ForeignError, ParameterError, add_note
from streamxf.publishing.version import Version

_SECONDS = 600.0  # that a reload may take
_MOST_BYTES = 2**20  # of an answer


class InferenceEngine:
    """A server, as ``sglang=http://HOST:PORT`` or ``vllm=http://HOST:PORT``, the latter with VLLM_SERVER_DEV_MODE=1.

    Raises ParameterError for anything else.
    """

    def __init__(self, text: str) -> None:
        self._kind, _, url = text.partition("=")
        parts = urlsplit(url)
        if self._kind not in ("sglang", "vllm") or parts.scheme not in ("http", "https") or not parts.hostname:
            raise ParameterError(f"{text!r:.80} is no engine: write sglang=http://HOST:PORT or vllm=http://HOST:PORT")
        self._secure, self._host, self._path = parts.scheme == "https", parts.netloc.rpartition("@")[2], parts.path
        self._url = url.rstrip("/")

    def reload(self, folder: str, version: Version) -> None:
        """Have the engine take the weights in a folder. Raises ForeignError, with what it answered."""
        if self._kind == "sglang":
            content = {"model_path": folder, "weight_version": f"{version.step}-{version.save_id}", "flush_cache": True}
            self._post("/update_weights_from_disk", content)
            return
        try:
            self._post("/pause?mode=wait")
            self._post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}})
            self._post("/reset_prefix_cache")  # which a reload does not
        except BaseException as error:
            try:
                self._post("/resume")  # it may have paused though it did not answer
            except ForeignError as other:
                add_note(error, f"and it may still be paused: {other.message}")
            raise
        self._post("/resume")

    def _post(self, path: str, content: Mapping[str, Any] | None = None) -> None:
        place = f"{self._url}{path.partition('?')[0]}"
        connection = (HTTPSConnection if self._secure else HTTPConnection)(self._host, timeout=_SECONDS)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", f"{self._path.rstrip('/')}{path}", json.dumps(content or {}), headers)
            answer = connection.getresponse()
            body = answer.read(_MOST_BYTES).decode("utf-8", "replace")
        except (OSError, HTTPException) as error:
            raise ForeignError(f"{place} did not answer: {type(error).__name__}: {error}") from error
        finally:
            connection.close()
        if answer.status != 200 or _failed(body):
            raise ForeignError(f"{place} answered {answer.status}: {body.strip()[:500] or answer.reason}")


def _failed(body: str) -> bool:
    """Whether an answer says so, be its status 200, as vLLM's is where blocks of the cache are still held."""
    try:
        said = json.loads(body or "{}")
    except (ValueError, RecursionError):
        return False
    return isinstance(said, dict) and said.get("success", True) is not True
