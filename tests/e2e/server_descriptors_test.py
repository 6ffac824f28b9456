#!/usr/bin/env python3
"""Tests a server that may open few descriptors and whose clients keep as many connections as they get. New clients must be
answered, running requests go on, and the server keeps descriptors for itself."""
import contextlib
import http.client
import os
import re
import socket
import sys
import threading
import time

from counting import check, finish
from serving import Server

DESCRIPTORS = 128
RESERVED = DESCRIPTORS // 4  # docs/server.md, "Limits and time-outs"
STREAM = {"text": "Once upon a time", "stream": True,
          "sampling_params": {"temperature": 0, "max_new_tokens": 2000, "ignore_eos": True}}


def hold(server, count, speak, address):
    """Opens `count` connections from an address, keeps them open, and returns them."""
    held = []
    for _ in range(count):
        sock = socket.create_connection(("127.0.0.1", server.port), timeout=60, source_address=(address, 0))
        if speak:
            with contextlib.suppress(OSError):
                sock.sendall(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
        held.append(sock)
    return held


def ask(server):
    """Returns the status that a new client gets, and its connection, which stays open."""
    connection = server.connect(60)
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        answer.read()
        return answer.status, connection
    except (OSError, http.client.HTTPException) as error:
        return error, connection


def server_descriptors(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def one_address_leaves_places_to_others():
    with Server("--enable-metrics", descriptors=DESCRIPTORS) as server:
        line = re.search(r"http_connections_lowered connections=(\d+) of_one_address=(\d+) descriptors=(\d+)", server.text())
        check("the log says at the start how few connections fit", line is not None, server.text())
        everybody, of_one, descriptors = map(int, line.groups())
        check("the line's numbers", descriptors == DESCRIPTORS and of_one == everybody * 3 // 4 < DESCRIPTORS, line[0])
        held = hold(server, DESCRIPTORS, True, "127.0.0.2")
        # No connection has been idle for a second yet, so no connection makes room. The connections of the first
        # address that are being refused have half of what it leaves, and the server has opened some files since.
        for i in range((everybody - of_one) // 4):
            status, connection = ask(server)
            check(f"another address is served, connection {i}", status == 200, status)
            held.append(connection)
        metrics = server.request("GET", "/metrics")[2].decode()
        refused = re.search(r'http_refused_requests_total\{[^}]*reason="peer_connections"[^}]*\} (\d+)', metrics)
        check("connections of the first address are refused", refused and int(refused[1]) > 0, metrics)
        for connection in held:
            connection.close()


def a_new_client_takes_the_place_of_the_idlest():
    with Server("--chat-template", "v2.5", "--enable-metrics", descriptors=DESCRIPTORS) as server:
        stream = []
        begun = threading.Event()

        def read():
            for event in server.events("/generate", STREAM):
                stream.append(event)
                begun.set()

        reader = threading.Thread(target=read)
        reader.start()
        # The stream begins before the other connections are opened, because its connection must not look
        # idle.
        check("a stream begins", begun.wait(60))
        # The server keeps fewer connections than are opened here. Half of them have sent a request, half never do.
        held = hold(server, DESCRIPTORS // 2, True, "127.0.0.2") + hold(server, DESCRIPTORS // 2, False, "127.0.0.3")
        # Connections that have been idle for less than a second are spared. Until then the answer may be 503,
        # and connections that have got a 503 are closed after two seconds.
        deadline = time.monotonic() + 60
        status, connection = ask(server)
        while status != 200 and time.monotonic() < deadline:
            connection.close()
            time.sleep(0.1)
            status, connection = ask(server)
        check("a new client is served", status == 200, status)
        new = [connection]
        for i in range(20):  # fewer than the connections that have been idle for longer than a second
            status, connection = ask(server)
            check(f"new client {i}", status == 200, status)
            new.append(connection)
        # Connections that got a 503 or made room for others are still closing for a moment.
        while (in_use := server_descriptors(server)) > DESCRIPTORS - RESERVED // 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        check("descriptors are left", in_use <= DESCRIPTORS - RESERVED // 2, in_use)
        reader.join()
        check("the running stream is complete", stream[-1:] == ["[DONE]"] and len(stream) > 2, stream[-1:])
        metrics = server.request("GET", "/metrics")[2].decode()
        closed = re.search(r"http_idle_connections_closed_total\{[^}]*\} (\d+)", metrics)
        check("closed connections are counted", closed and int(closed[1]) >= 20, closed)
        for connection in held + new:
            connection.close()
        check("exit code", server.stop() == 0, server.text()[-2000:])


def main():
    one_address_leaves_places_to_others()
    a_new_client_takes_the_place_of_the_idlest()
    return finish()


if __name__ == "__main__":
    sys.exit(main())
