"""gatund as a process, and a rank that speaks its protocols byte by byte, so that tests can say what no library would.

The formats are those of protocols/PROTOCOL.md, control.h and wire.h.
"""

import os
import re
import signal
import socket
import struct
import subprocess
import tempfile
import time

BIN = ""
PATIENCE_S = 30  # for things that must happen at once; slow machines may take a while

NAMES = ("Join", "Admit", "Ready", "Start", "KeepAlive", "Report", "Mismatch", "Leave", "Abort", "Lost", "Left", "Refused",
         "Closing", "Stalled", "Peers", "Attach", "Waiting")


def environment(**extra):
    return {**{k: v for k, v in os.environ.items() if not k.startswith("GATUN_")}, **extra}


def until(condition, what, limit_s=PATIENCE_S):
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if result := condition():
            return result
        time.sleep(0.01)
    raise AssertionError(f"within {limit_s} s not: {what}")


class Daemon:
    """A running gatund on a free port. default_metrics: with its metrics at their usual address, else off or by flags."""

    def __init__(self, *flags, files_max=None, default_metrics=False, **extra):
        self.folder = tempfile.TemporaryDirectory(prefix="gatund_test_")
        self.log_path = f"{self.folder.name}/log"
        command = [f"{BIN}/gatund", "--port", "0", "--port-file", f"{self.folder.name}/port",
                   *([] if default_metrics else ["--metrics", "off"]), *flags]
        if files_max:
            command = ["/bin/sh", "-c", f'ulimit -n {files_max}; exec "$@"', "sh", *command]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(command, env=environment(**extra), stdout=log, stderr=log)
        try:
            until(lambda: os.path.exists(f"{self.folder.name}/port") or self.process.poll() is not None, "gatund starts")
            with open(f"{self.folder.name}/port", encoding="utf-8") as file:
                self.port = int(file.read())
            until(lambda: " serves " in self.log(), "gatund says where it serves")
        except BaseException:
            self.kill()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.folder.cleanup()

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def alive(self):
        return self.process.poll() is None

    def terminate(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(timeout=PATIENCE_S)

    def counters(self):
        """What SIGUSR1 makes it log, as {name: number}; of several lanes the first."""
        seen = self.log().count("counters:")
        self.process.send_signal(signal.SIGUSR1)
        until(lambda: self.log().count("counters:") > seen and self.log().endswith("\n"), "counters are logged")
        line = self.log().rpartition("counters:")[2].partition("; lane 1:")[0].replace("; lane 0: trees", ", lane trees")
        return {name: int(number) for name, number in re.findall(r"([a-z][a-z ]*?) (\d+)(?:,|\n|$)", line)}


def text(value):
    data = value.encode()
    return struct.pack(">H", len(data)) + data


def frame(kind, body=b"", version=2):
    return struct.pack(">IBB", len(body) + 2, version, NAMES.index(kind) + 1) + body


def join_frame(rank, size, job="test", transport=2, trees=1, window=0, payload=0, path=65472, identity="elsewhere", **facts):
    return frame("Join", text(job) + struct.pack(">IIIIIBB", rank, size, trees, window, payload, transport, 0)
                 + struct.pack(">IIIII", path, 1 << 20, facts.get("join_timeout_ms", 60000), 1000 + rank,
                               facts.get("failovers", 0))
                 + text(f"host{rank}") + text(identity) + text("raw") + text(""))


TABLE = []
for value in range(256):
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    TABLE.append(value)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def packet(kind, job, child=0, payload=b"", tree=0, seq=0, elems=0):
    """kind: 1 data, 4 probe. Elements are u8, summed."""
    head = struct.pack(">BBBBIIIHHII", 0x10 | kind, 0, tree, child, job, seq, 7, 0, 1, elems << 8 | 1 << 4, 0)
    return head + struct.pack(">I", crc32c(head + payload)) + payload


class Rank:
    """One rank's control connection and UDP socket."""

    def __init__(self, daemon, host="127.0.0.1"):
        self.tcp = socket.create_connection((host, daemon.port), timeout=PATIENCE_S)
        self.udp = socket.socket(self.tcp.family, socket.SOCK_DGRAM)
        self.udp.settimeout(0.2)
        self.host = host
        self.data = b""
        self.admit = None

    def close(self):
        self.tcp.close()
        self.udp.close()

    def say(self, data):
        self.tcp.sendall(data)
        return self

    def hear(self, *kinds):
        """The next message of one of these kinds as (kind, body); others but keep-alives are an error."""
        while True:
            while len(self.data) < 4 or len(self.data) < 4 + struct.unpack(">I", self.data[:4])[0]:
                got = self.tcp.recv(65536)
                if not got:
                    raise AssertionError(f"the connection ended before {kinds}")
                self.data += got
            length, _, number = struct.unpack(">IBB", self.data[:6])
            body, self.data = self.data[6:4 + length], self.data[4 + length:]
            kind = NAMES[number - 1]
            if kind in kinds:
                return kind, body
            if kind not in ("KeepAlive", "Waiting"):
                raise AssertionError(f"{kind} {body!r} instead of {kinds}")

    def sentence(self, *kinds):
        """The text of such a message, which is its last field in all of them."""
        kind, body = self.hear(*kinds)
        start = {"Refused": 0, "Closing": 0, "Waiting": 0, "Abort": 5, "Left": 8}.get(kind, 4)
        (size,) = struct.unpack(">H", body[start:start + 2])
        return body[start + 2:start + 2 + size].decode()

    def ended(self):
        """Reads to the end of the stream; a reset counts as the end too."""
        try:
            while self.tcp.recv(65536):
                pass
        except ConnectionResetError:
            pass
        return True

    def join(self, *args, **facts):
        return self.say(join_frame(*args, **facts))

    def admitted(self):
        _, body = self.hear("Admit")
        job, token, window, payload, _, _, _, transport = struct.unpack(">IQIIQIIB", body[:37])
        (size,) = struct.unpack(">H", body[37:39])
        rest = body[39 + size:]
        port, _, child = struct.unpack(">HBB", rest[2:6])
        self.admit = {"job": job, "token": token, "window": window, "payload": payload, "port": port, "child": child,
                      "transport": transport}
        return self

    def prove(self):
        """The data path with a probe of full size, then Ready."""
        probe = packet(4, self.admit["job"], self.admit["child"], struct.pack(">Q", self.admit["token"]).ljust(64, b"\0"))
        reply = self.exchange(probe)
        assert reply[0] == 0x15 and reply[32:] == probe[32:], reply[:40]
        return self.say(frame("Ready"))

    def exchange(self, data):
        """Sends until something comes back."""
        for _ in range(PATIENCE_S * 5):
            self.udp.sendto(data, (self.host, self.admit["port"]))
            try:
                return self.udp.recv(65536)
            except TimeoutError:
                continue
        raise AssertionError("no answer on the data path")


def run_job(daemon, size, job="test", host="127.0.0.1", **facts):
    """Ranks of a job that has started."""
    ranks = [Rank(daemon, host).join(rank, size, job=job, **facts) for rank in range(size)]
    for rank in ranks:
        rank.admitted()
    for rank in ranks:
        rank.prove()
    for rank in ranks:
        rank.hear("Start")
    return ranks


def sum_bytes(ranks, seq, values):
    """One chunk of u8 over the data path: every rank's own value in 64 bytes, its answer on every rank."""
    answers = {}
    for _ in range(PATIENCE_S * 5):
        for rank, value in zip(ranks, values):
            if rank not in answers:
                job, child = rank.admit["job"], rank.admit["child"]
                data = packet(1, job, child, bytes([value]) * 64, seq=seq, elems=64)
                rank.udp.sendto(data, (rank.host, rank.admit["port"]))
        for rank in ranks:
            try:
                data = rank.udp.recv(65536) if rank not in answers else b""
                if data[:1] == b"\x12" and struct.unpack(">I", data[8:12])[0] == seq:
                    answers[rank] = data[32:]
            except TimeoutError:
                pass
        if len(answers) == len(ranks):
            return [answers[rank] for rank in ranks]
    raise AssertionError("no answer to data")
