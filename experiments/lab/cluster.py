"""A lab that is up: its state file, its gatunds, commands in its hosts, and its end.

The state file is written before the first namespace is made and removed after the last is gone. What a killed program left
is found by it and by the names, which all carry the lab's id, so down() works after any death.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import network
import topology
from topology import Bad

STATE = "/run/gatun-lab"
PINS = "pins"
GATUND_PORT = 7117
START_S, STOP_S = 15, 5


def state_path(lab, name="state.json"):
    return os.path.join(STATE, lab, name)


def listdir(folder):
    return os.listdir(folder) if os.path.isdir(folder) else []


def labs():
    return sorted(listdir(STATE))


def check_id(lab):
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,31}", lab):
        raise Bad(f"lab id '{lab}': it has up to 32 of a-z, 0-9, _ and -; give another with --id")


def up(lab, wanted, gatund="gatund"):
    check_id(lab)
    if why := network.missing():
        raise Bad(why)
    os.makedirs(STATE, exist_ok=True)
    try:
        os.mkdir(os.path.join(STATE, lab))
    except FileExistsError:
        raise Bad(f"lab '{lab}' is up, or was left by an earlier run; gatun lab down {lab}, or another --id") from None
    try:
        with open(state_path(lab), "w", encoding="utf-8") as file:
            json.dump({"id": lab, "pid": os.getpid(), "topology": wanted.text}, file)
        write_names(lab, wanted)
        network.Builder(lab, wanted, state_path(lab, PINS)).make()
        for switch in wanted.switches:
            if switch.gatund is not None:
                start_gatund(lab, wanted, switch, gatund)
    except BaseException:
        down(lab)
        raise
    return Lab(lab, wanted)


def write_names(lab, wanted):
    """ip netns exec lays these files over /etc/hosts."""
    lines = ["127.0.0.1 localhost", *(f"{node.address} {node.name}" for node in [*wanted.switches, *wanted.hosts])]
    for node in [*wanted.switches, *wanted.hosts]:
        folder = f"/etc/netns/{network.namespace(lab, node.name)}"
        os.makedirs(folder, exist_ok=True)
        with open(f"{folder}/hosts", "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")


def start_gatund(lab, wanted, switch, program):
    """Settings may name another switch as {name}, which becomes its address."""
    addresses = {s.name: s.address for s in wanted.switches}
    flags = []
    for key, value in {"listen": switch.address, "transport": "udp", **switch.gatund}.items():
        try:
            flags += [f"--{key.replace('_', '-')}", str(value).format(**addresses)]
        except (KeyError, IndexError, ValueError):
            raise Bad(
                f"gatund of {switch.name}: {key} = '{value}' names no switch; there are: {', '.join(addresses)}"
            ) from None
    ready, log = state_path(lab, f"{switch.name}.port"), state_path(lab, f"{switch.name}.log")
    with open(log, "wb") as output:
        process = subprocess.Popen(
            ["ip", "netns", "exec", network.namespace(lab, switch.name), program, *flags, "--port-file", ready],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    end = time.monotonic() + START_S
    while not os.path.exists(ready):
        if process.poll() is not None or time.monotonic() > end:
            with open(log, encoding="utf-8", errors="replace") as file:
                words = file.read().strip().splitlines()
            raise Bad(f"gatund of {switch.name} does not serve: {words[-1] if words else 'it says nothing'}")
        time.sleep(0.01)


def down(lab):
    """Removes what is there of the lab; True if there was anything."""
    check_id(lab)
    found = network.namespaces(lab)
    stop(lambda: network.processes(lab))
    network.remove(lab)
    network.unmount(state_path(lab, PINS))
    names = [name for name in listdir("/etc/netns") if name.startswith(f"gatun-lab.{lab}.")]
    for folder in [*(f"/etc/netns/{name}" for name in names), os.path.join(STATE, lab)]:
        if os.path.isdir(folder):
            found.append(folder)
            shutil.rmtree(folder)
    for folder in ("/etc/netns", STATE):
        with contextlib.suppress(OSError):  # others are there, or it never was
            os.rmdir(folder)
    return bool(found)


def stop(running):
    """Ends the processes that running() lists: asks, then does not ask."""
    for sent, patience in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, STOP_S)):
        for pid in running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sent)
        end = time.monotonic() + patience
        while running() and time.monotonic() < end:
            time.sleep(0.02)


def load(lab):
    try:
        with open(state_path(lab), encoding="utf-8") as file:
            return Lab(lab, topology.parse("the lab's topology", json.load(file)["topology"]))
    except (OSError, ValueError, KeyError):
        there = ", ".join(labs()) or "none"
        raise Bad(f"lab '{lab}' is not up (there: {there}); gatun lab up FILE --id {lab}") from None


class Lab:
    def __init__(self, lab, wanted):
        self.id, self.topology = lab, wanted
        self.hosts = {host.name: host for host in wanted.hosts}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        down(self.id)

    def chosen(self, text):
        """The hosts that "all" or "h0,h2" names."""
        names = list(self.hosts) if text == "all" else text.split(",")
        for name in names:
            if name not in self.hosts:
                raise Bad(f"there is no host '{name}' in lab '{self.id}'; it has {', '.join(self.hosts)}, and all")
        return names

    def environment_of_host(self, name):
        switch = self.topology.gatund_of(self.hosts[name])
        values = {"LAB_ID": self.id, "GLOO_SOCKET_IFNAME": "eth0", "GATUN_TRANSPORT": "udp"}
        if switch is not None:
            values["GATUN_ADDRESS"] = f"{switch.address}:{GATUND_PORT}"
        return values

    def environment_of_rank(self, names, rank):
        first = self.hosts[names[0]].address
        place = {"RANK": rank, "WORLD_SIZE": len(names), "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        meet = {"MASTER_ADDR": first, "MASTER_PORT": 29500, "GATUN_RENDEZVOUS": f"{first}:7119"}
        return {key: str(value) for key, value in {**place, **meet, **self.environment_of_host(names[rank])}.items()}

    def inside(self, node, command):
        """The command line that runs command on a host, under its name, or in a switch."""
        name = ["unshare", "-u", "sh", "-c", 'echo "$0" > /proc/sys/kernel/hostname; exec "$@"', node]
        return ["ip", "netns", "exec", network.namespace(self.id, node), *name, *command]

    def start(self, names, command, environment=(), **options):
        """One process a host, with the variables of a rank."""
        started = []
        for rank, name in enumerate(names):
            values = {**os.environ, **self.environment_of_rank(names, rank), **dict(environment)}
            started.append(subprocess.Popen(self.inside(name, command), env=values, **options))
        return started

    def run(self, names, command, timeout=None):
        """Runs to the end, each line after its host's name; the first exit status that is not 0."""
        pipes = (
            {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if len(names) > 1 else {}
        )
        started = self.start(names, command, **pipes)
        copiers = [
            threading.Thread(target=copy_lines, args=(name, process.stdout))
            for name, process in zip(names, started)
            if process.stdout
        ]
        for copier in copiers:
            copier.start()
        end = time.monotonic() + timeout if timeout else None
        try:
            for process in started:
                process.wait(None if end is None else max(0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Bad(f"after {timeout} s not all of {', '.join(names)} had ended; they were stopped") from None
        finally:
            stop(lambda: [process.pid for process in started if process.poll() is None])
            for copier in copiers:
                copier.join()
        return next((code for code in (process.returncode for process in started) if code), 0)


def copy_lines(name, pipe):
    for line in pipe:
        sys.stdout.write(f"{name} | {line.decode(errors='replace')}")
        sys.stdout.flush()
