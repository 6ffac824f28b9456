"""Carries out the steps of a case (case.py) from 127.0.0.2, which the server counts as another client than the neighbour at
127.0.0.1. It uses one thread with asyncio, so that thousands of connections need little time of the two cores."""
import asyncio
import collections
import contextlib
import dataclasses
import re
import socket
import ssl
import struct
import time

# While no connection has been answered, a case waits this many seconds longer than its own, because a grammar may use 5 s
# of processor time.
GRACE_S = 30
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")


@dataclasses.dataclass
class Seen:
    """Holds the answers that the clients of a case received."""
    statuses: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    connections: int = 0
    cut: int = 0  # connections which the server closed without an answer
    largest_answer: int = 0
    seconds: float = 0.0


class Attack:
    def __init__(self, port, case, tls, grace_s=GRACE_S):
        self.port, self.case, self.tls, self.grace_s, self.seen = port, case, tls, grace_s, Seen()

    async def connect(self):
        last = None
        for _ in range(20):
            client = socket.socket()
            client.setblocking(False)
            client.bind(("127.0.0.2", 0))
            try:
                await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", self.port))
                return client
            except OSError as error:  # a full backlog
                client.close()
                last = error
                await asyncio.sleep(0.05)
        raise last

    def note(self, data, size):
        for status in STATUS.findall(data):
            self.seen.statuses[int(status)] += 1
        self.seen.largest_answer = max(self.seen.largest_answer, size)

    async def talk(self):
        """Runs one connection from open to close."""
        self.seen.connections += 1
        if self.tls and self.case.through_tls:
            return await self.talk_tls()
        loop = asyncio.get_running_loop()
        client = await self.connect()
        size, reader = 0, None

        async def read():
            nonlocal size
            while data := await loop.sock_recv(client, 65536):
                size += len(data)
                self.note(data, size)

        try:
            for step in self.case.steps:
                if isinstance(step, bytes):
                    # Answers are read while the request is sent, because a server may refuse before all of it
                    # has arrived.
                    if reader is None and step and ("read",) in self.case.steps:
                        reader = asyncio.ensure_future(read())
                    with contextlib.suppress(ConnectionError):
                        await loop.sock_sendall(client, step)
                elif step[0] == "wait":
                    await asyncio.sleep(step[1])
                elif step[0] == "trickle":
                    data, n, pause = step[1:]
                    for at in range(0, len(data), n):
                        await loop.sock_sendall(client, data[at:at + n])
                        await asyncio.sleep(pause)
                elif step[0] == "read":
                    await (reader or read())
                    self.seen.cut += size == 0
                elif step[0] == "sip":
                    while data := await loop.sock_recv(client, step[1]):
                        size += len(data)
                        self.note(data, size)
                        await asyncio.sleep(step[2])
                elif step[0] == "half-close":
                    client.shutdown(socket.SHUT_WR)
                elif step[0] == "reset":
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except (ConnectionError, socket.timeout):
            self.seen.cut += size == 0
        finally:
            if reader is not None:
                reader.cancel()
            client.close()

    async def talk_tls(self):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        writer = None
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context, local_addr=("127.0.0.2", 0))
            size = 0
            writer.write(b"".join(step for step in self.case.steps if isinstance(step, bytes)))
            while data := await reader.read(65536):
                size += len(data)
                self.note(data, size)
        except (OSError, asyncio.IncompleteReadError):
            self.seen.cut += 1
        finally:
            if writer is not None:
                # close() would wait until the server has read everything. A client that is cancelled would leave its
                # socket open until the garbage collector closes it, and the server would have to serve it until then.
                writer.transport.abort()

    async def client(self, until):
        while True:
            try:
                await self.talk()
            except OSError:
                self.seen.cut += 1
                await asyncio.sleep(0.05)
            if self.case.once or time.monotonic() >= until:
                return
            await asyncio.sleep(0)

    async def run(self, sample):
        """Attacks until the time is over; `sample` is called every 20 ms. Returns what the clients
        received."""
        started = time.monotonic()
        until = started + self.case.seconds
        clients = [asyncio.ensure_future(self.client(until)) for _ in range(self.case.clients)]
        while not all(client.done() for client in clients):
            sample()
            await asyncio.sleep(0.02)
            now = time.monotonic()
            if now > until and (self.seen.statuses or self.seen.cut or not self.case.answers):
                break
            if now > until + self.grace_s:
                break
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        self.seen.seconds = time.monotonic() - started
        return self.seen
