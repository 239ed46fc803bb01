"""Ports for the ranks that tests start."""
import os
import random
import socket

# Below those that Linux gives to connections (32768 to 60999), which another test could open before the rank listens, and
# below those that the program itself makes of a job's name (20000 to 32767).
FIRST, COUNT = 10000, 10000
_random = random.Random(os.urandom(8))  # a test's seed is not this one's


def free_port():
    """A port of 127.0.0.1 on which nobody listens."""
    for _ in range(COUNT):
        port = FIRST + _random.randrange(COUNT)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise OSError("no port is free")
