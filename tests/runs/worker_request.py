"""Ray starts this where it would start a worker; it has the template of `forked_workers.py` fork one."""

import json
import os
import signal
import socket
import sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect("\0" + os.environ["TESTS_WORKER_TEMPLATE"])
    socket.send_fds(connection, [b" "], [0, 1, 2])
    request = {
        "arguments": sys.argv[1:],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "group": os.getpgrp(),
        "leads": os.getpgrp() == os.getpid(),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    }
    connection.sendall(json.dumps(request).encode())
