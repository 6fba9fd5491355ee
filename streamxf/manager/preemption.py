"""Whether a cloud takes this machine away: functions for ``Schedule(notice=...)``.

Each asks the cloud's metadata service, which answers on every machine of the cloud and nowhere else. Clusters such as
SLURM and Kubernetes send signals instead.
"""

from __future__ import annotations

import json
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

_SECONDS = 2.0
_MOST = 1 << 20
_ENDS = {"Preempt", "Terminate", "Reboot", "Redeploy"}


def aws_notice(url: str = "http://169.254.169.254") -> bool:
    """Whether EC2 will interrupt this spot instance, which it says two minutes before.

    Raises
    ------
    OSError
        If the service does not answer, as outside of EC2.
    """
    token = _ask(f"{url}/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
    try:
        _ask(f"{url}/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token})
    except HTTPError as error:
        if error.code == 404:  # there is no action
            return False
        raise
    return True


def gce_notice(url: str = "http://metadata.google.internal") -> bool:
    """Whether Compute Engine preempts this machine, in 30 seconds, or stops it for maintenance of its host: in a
    minute, or in an hour if it has GPUs.

    Raises
    ------
    OSError
        If the service does not answer, as outside of Compute Engine.
    """
    instance, headers = f"{url}/computeMetadata/v1/instance", {"Metadata-Flavor": "Google"}
    return (
        _ask(f"{instance}/preempted", headers) == "TRUE"
        or _ask(f"{instance}/maintenance-event", headers) == "TERMINATE_ON_HOST_MAINTENANCE"
    )


def azure_notice(url: str = "http://169.254.169.254") -> bool:
    """Whether Azure will evict, delete, reboot or move this machine, which it says between 30 seconds and 15 minutes
    before.

    Raises
    ------
    OSError
        If the service does not answer, as outside of Azure; and in the first two minutes, when it begins to watch.
    ValueError
        If the answer is not one of Azure's.
    """
    headers = {"Metadata": "true"}
    found = json.loads(_ask(f"{url}/metadata/scheduledevents?api-version=2020-07-01", headers))
    try:
        affected = {name for event in found["Events"] if event["EventType"] in _ENDS for name in event["Resources"]}
    except (KeyError, TypeError) as error:
        raise ValueError(f"this is not a list of scheduled events: {found!r:.200}") from error
    # the events of all machines of a scale set come to each of them
    name = f"{url}/metadata/instance/compute/name?api-version=2021-02-01&format=text"
    return bool(affected) and _ask(name, headers) in affected


def _ask(url: str, headers: dict[str, str], method: str = "GET") -> str:
    # a proxy of the environment does not lead to the machine's own service
    with build_opener(ProxyHandler({})).open(Request(url, headers=headers, method=method), timeout=_SECONDS) as answer:
        text: str = answer.read(_MOST).decode()
    return text.strip()
