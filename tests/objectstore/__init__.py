"""A proxy between clients and an S3 server on loopback: it counts, limits, delays and breaks requests.

A test starts it with `control.proxied`, in front of the server of `dcp.s3_server`.
"""
