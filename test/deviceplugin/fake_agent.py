#!/usr/bin/env python3
"""fake_agent.py ALLOC-DIR: replaces the node agent: a listening agent.sock in every allocation, until it is stopped."""

import os
import socket
import sys
import time

root, sockets = sys.argv[1], {}
while True:
    names = (
        {n for n in os.listdir(root) if os.path.exists(f"{root}/{n}/allocation.json")} if os.path.isdir(root) else set()
    )
    for name in names - sockets.keys():
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            s.bind(f"{root}/{name}/agent.sock")
        except OSError:
            continue
        s.listen(64)
        s.setblocking(False)
        sockets[name] = s
    for name, s in list(sockets.items()):
        try:
            while True:
                s.accept()[0].close()
        except BlockingIOError:
            pass
        if name not in names:
            s.close()
            del sockets[name]
    time.sleep(0.05)
