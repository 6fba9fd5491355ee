"""Plain objects."""


def renew_plain(pickled: bytes) -> bytes | None:
    return None
