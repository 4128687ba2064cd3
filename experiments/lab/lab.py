"""gatun lab: an emulated cluster. Hosts and switches are namespaces, links are shaped veth pairs, programs are real.

gatun lab up FILE [--id ID] [--set KEY=VALUE]   make the network of a topology file; --set changes its [links]
gatun lab run [--id ID] HOSTS -- COMMAND        run COMMAND on hosts: all, h0 or h0,h2 (RANK, WORLD_SIZE, GATUN_ADDRESS ..)
gatun lab status [--json]                       what is up
gatun lab down [ID] [--all]                     stop and remove it, also what a killed run left
gatun lab rsh HOST COMMAND                      the remote shell for mpirun: --mca plm_rsh_agent "gatun lab rsh"
"""

import argparse
import json
import os
import re
import shutil
import signal
import sys

import cluster
import network
import topology
from topology import Bad


def one_lab(given):
    """The lab that is meant: the one given, LAB_ID's, or the only one."""
    lab = given or os.environ.get("LAB_ID")
    there = cluster.labs()
    if lab or len(there) == 1:
        return lab or there[0]
    raise Bad(f"which lab? there are {', '.join(there)}; name it" if there else "no lab is up; gatun lab up FILE makes one")


def with_changes(text, changes):
    """The topology's text with KEY=VALUE in [links], whether or not the key stands there."""
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals or not key:
            raise Bad(f"--set {change}: write KEY=VALUE, such as --set rate=200mbit")
        bare = value in ("true", "false") or re.fullmatch(r"-?\d+(\.\d+)?", value)
        line = f"{key} = {value if bare else json.dumps(value)}"
        head, found, rest = text.partition("[links]\n")
        if not found:
            head, rest = "", text
        section, bracket, after = rest.partition("\n[") if found else ("", "", rest)
        kept = [old for old in section.split("\n") if old.partition("=")[0].strip() != key]
        text = head + "[links]\n" + "\n".join([line, *kept]) + (bracket or "\n") + after
    return text


def cmd_up(arguments):
    wanted = topology.read(arguments.file)
    if arguments.set:
        wanted = topology.parse(f"{arguments.file} with --set", with_changes(wanted.text, arguments.set))
    lab = arguments.id or re.sub(r"[^a-z0-9_-]", "-", os.path.splitext(os.path.basename(arguments.file))[0].lower())
    made = cluster.up(lab, wanted, gatund_program())
    served = [switch.name for switch in wanted.switches if switch.gatund is not None]
    hosts = f"{len(wanted.hosts)} hosts (h0 to {wanted.hosts[-1].name})"
    print(f"lab '{made.id}' is up: {hosts}, {len(wanted.switches)} switches, gatund on {', '.join(served) or 'none'}")
    print(f"gatun lab run --id {made.id} all -- gatun perf -b 1M -e 16M -f 4    gatun lab down {made.id}")
    return 0


def gatund_program():
    program = shutil.which("gatund")
    if not program:
        raise Bad("there is no gatund beside gatun-lab or in PATH; build it, or install Gatun")
    return program


def cmd_run(arguments):
    lab = cluster.load(one_lab(arguments.id))
    return lab.run(lab.chosen(arguments.hosts), arguments.command, arguments.timeout)


def cmd_rsh(arguments):
    lab = cluster.load(one_lab(None))
    names = lab.chosen(arguments.host)
    command = lab.inside(names[0], ["sh", "-c", " ".join(arguments.command)])
    os.execvpe(command[0], command, {**os.environ, **lab.environment_of_host(names[0])})


def cmd_down(arguments):
    if why := network.missing():
        raise Bad(why)
    for lab in cluster.labs() if arguments.all else [one_lab(arguments.id)]:
        print(f"lab '{lab}': {'removed' if cluster.down(lab) else 'nothing was there'}")
    return 0


def cmd_status(arguments):
    found = []
    for name in cluster.labs():
        lab = cluster.load(name)
        found.append(
            {
                "id": name,
                "namespaces": len(network.namespaces(name)),
                "processes": network.processes(name),
                "hosts": {host.name: host.address for host in lab.topology.hosts},
                "switches": {switch.name: switch.address for switch in lab.topology.switches},
            }
        )
    if arguments.json:
        print(json.dumps(found))
    elif not found:
        print("no lab is up")
    for lab in [] if arguments.json else found:
        nodes = len(lab["hosts"]) + len(lab["switches"])
        print(
            f"lab '{lab['id']}': {len(lab['hosts'])} hosts, {len(lab['switches'])} switches, {lab['namespaces']} of {nodes} "
            f"namespaces, {len(lab['processes'])} processes"
        )
    return 0


def parser():
    top = argparse.ArgumentParser(
        prog="gatun lab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = top.add_subparsers(dest="name", required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="make the network of a topology file")
    up.add_argument("file", help="TOML; samples are beside the README of experiments/lab")
    up.add_argument("--id", help="name of the lab; the file's otherwise")
    up.add_argument("--set", action="append", metavar="KEY=VALUE", help="of [links]: rate, mtu, mark, loss ..")
    run = commands.add_parser("run", help="run a command on hosts")
    run.add_argument("--id")
    run.add_argument("--timeout", type=float, metavar="S", help="stop it after so many seconds")
    run.add_argument("hosts", help="all, h0, or h0,h2: rank 0 is the first")
    run.add_argument("command", nargs=argparse.REMAINDER)
    rsh = commands.add_parser("rsh", help="run a command as ssh would, for mpirun")
    rsh.add_argument("host")
    rsh.add_argument("command", nargs=argparse.REMAINDER)
    down = commands.add_parser("down", help="stop and remove a lab")
    down.add_argument("id", nargs="?")
    down.add_argument("--all", action="store_true", help="every lab on this machine")
    commands.add_parser("status", help="what is up").add_argument("--json", action="store_true")
    return top


def main():
    arguments = parser().parse_args()
    if "command" in arguments:
        arguments.command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
        if not arguments.command:
            parser().error(f"{arguments.name} needs a command")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # What is beside this program is what the hosts run.
    os.environ["PATH"] = os.path.dirname(os.path.realpath(sys.argv[0])) + ":" + os.environ.get("PATH", "")
    commands = {"up": cmd_up, "run": cmd_run, "rsh": cmd_rsh, "down": cmd_down, "status": cmd_status}
    try:
        sys.exit(commands[arguments.name](arguments))
    except Bad as error:
        sys.exit(f"gatun lab: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
