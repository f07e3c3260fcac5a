#!/usr/bin/env python3
"""A provider that is far away, on one machine.

A device of /dev/net/tun with the address 10.99.0.1. What is sent to 10.99.0.2 comes out of it here, and is written
back later with its two addresses swapped: so a call to 10.99.0.2 reaches what listens on 10.99.0.1, and its answers
come back the same way. Every packet is far, those of handshakes too, and the kernel stamps it when it arrives. (Behind
a proxy it would not be so: there the kernel of this side shakes hands at once.)

Arguments and lines of stdin: LEAST SPREAD, in milliseconds. Each packet takes LEAST and up to SPREAD more, each length
as likely as any other; packets of one direction of a connection stay in their order. The end of stdin ends it.
Wants root, in a network namespace of its own (`unshare -n`).
"""
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time

SET_DEVICE = 0x400454CA  # TUNSETIFF
TUN_WITHOUT_HEAD = 0x0001 | 0x1000  # IFF_TUN | IFF_NO_PI


def way(line):
    least, spread = (float(text) / 1e3 for text in line.split())
    return least, spread


def device(name):
    """The device, up, with its address."""
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, SET_DEVICE, struct.pack("16sH", name.encode(), TUN_WITHOUT_HEAD))
    subprocess.run(["ip", "addr", "add", "10.99.0.1/24", "dev", name], check=True)
    subprocess.run(["ip", "link", "set", name, "up"], check=True)
    return tun


def main():
    least, spread = way(" ".join(sys.argv[1:]))
    tun = device("far0")
    # A way that waits for a processor would vary by more than it should.
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    print("up", flush=True)
    waiting = []  # when each packet is due, its number, and what is written then
    last = {}  # of each direction of a connection: when its last packet is due
    number = 0
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            os.write(tun, heapq.heappop(waiting)[2])
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select([tun, sys.stdin], [], [], pause)
        if sys.stdin in ready:
            line = sys.stdin.readline()
            if not line:
                return
            least, spread = way(line)
        if tun not in ready:
            continue
        packet = os.read(tun, 65536)
        if packet[0] >> 4 != 4:  # of IPv6 only what the kernel says to itself
            continue
        source, target, ports = packet[12:16], packet[16:20], packet[20:24]
        flow = source + target + ports
        due = max(time.monotonic() + least + random.random() * spread, last.get(flow, 0.0))
        last[flow] = due
        number += 1
        heapq.heappush(waiting, (due, number, packet[:12] + target + source + packet[20:]))


main()
