"""What a topology file says: switches, their hosts, links. Every error names the file, the line and the fix.

Switch i is a bridge with the subnet 10.77.i.0/24: it is .1, its hosts are .10 and up. Links between switches are routed, by
all shortest ways at once, so that leaf and spine need no spanning tree. What a link is comes from [links], and from [[link]]
for the one with these two ends.
"""

import difflib
import re
import tomllib
from collections import deque
from dataclasses import dataclass, field, replace

HOSTS_MAX = 200  # of a switch: .10 and up of its subnet
SWITCHES_MAX = 64
UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
FAULTS = ("loss", "duplicate", "reorder")


class Bad(Exception):
    """Something that the user can mend, as a sentence."""


@dataclass(frozen=True)
class Kind:
    """What a link is like."""

    rate: int = 10**9  # bits a second, each way, with Ethernet's header
    mtu: int = 1500
    delay_ms: float = 0
    queue_ms: float = 8  # what the queue holds, at the rate
    mark: bool = False  # ECN: marks what would stand in the queue
    loss: float = 0  # shares of packets, each way
    duplicate: float = 0
    reorder: float = 0

    def faulty(self):
        return any(getattr(self, name) for name in FAULTS)


@dataclass
class End:
    node: str
    device: str
    address: str


@dataclass
class Link:
    ends: tuple
    kind: Kind
    routed: bool = False  # between switches


@dataclass
class Host:
    name: str
    switch: str
    address: str


@dataclass
class Switch:
    name: str
    index: int
    address: str
    hosts: list = field(default_factory=list)
    gatund: dict = None  # settings; None: only a bridge


@dataclass
class Topology:
    hosts: list
    switches: list
    links: list
    text: str

    def switch(self, name):
        return next(s for s in self.switches if s.name == name)

    def gatund_of(self, host):
        """The gatund that a host asks: of its own switch, else the nearest."""
        near = self.distances(host.switch)
        there = [s for s in self.switches if s.gatund is not None]
        return min(there, key=lambda s: near[s.name], default=None)

    def neighbours(self, name):
        for link in self.links:
            for mine, other in (link.ends, link.ends[::-1]):
                if link.routed and mine.node == name:
                    yield mine, other

    def distances(self, name):
        found, queue = {name: 0}, deque([name])
        while queue:
            here = queue.popleft()
            for _, other in self.neighbours(here):
                if other.node not in found:
                    found[other.node] = found[here] + 1
                    queue.append(other.node)
        return found

    def next_hops(self, source, target):
        """Ends of the neighbours of switch source that are nearer to switch target."""
        left = self.distances(target)
        return [other for _, other in self.neighbours(source) if left[other.node] == left[source] - 1]


class File:
    """A parsed file that can say on which line a key stands."""

    def __init__(self, name, text):
        self.name, self.text = name, text
        try:
            self.tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            found = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
            line = found[1] if found else len(text.splitlines())
            sentence = str(error).split(" (at ")[0]
            raise Bad(f"{name}:{line}: not TOML: {sentence[0].lower() + sentence[1:]}") from None

    def line(self, header, key=None, turn=0):
        """Of the key below the turn-th [header], else of the header."""
        at, seen, inside = 1, -1, False
        for number, text in enumerate(self.text.splitlines(), 1):
            text = text.strip()
            if text.startswith("["):
                inside = text.split("#")[0].strip().strip("[]").replace(" ", "") == header
                seen += inside
                at = number if inside and seen == turn else at
            elif inside and seen == turn and key and re.match(rf"[\"']?{re.escape(str(key))}[\"']?\s*=", text):
                return number
        return at

    def bad(self, sentence, header, key=None, turn=0):
        return Bad(f"{self.name}:{self.line(header, key, turn)}: {sentence}")

    def known(self, table, keys, header, turn=0):
        for key in table:
            if key not in keys:
                near = difflib.get_close_matches(key, keys, 1)
                fix = f"did you mean {near[0]}?" if near else f"there are: {', '.join(keys)}"
                raise self.bad(f"unknown key '{key}'; {fix}", header or key, key, turn)


def rate_of(text):
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(kbit|mbit|gbit)", str(text).lower())
    return round(float(found[1]) * UNITS[found[2]]) if found else 0


def kind_of(table, base, complain):
    """Base changed by what the table says; complain(sentence, key) makes the error."""
    changed = {}
    for key, value in table.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if key == "rate":
            changed[key] = rate_of(value)
            if changed[key] < 10**6:
                raise complain(f'rate is \'{value}\'; it must be at least 1mbit, such as "200mbit" or "1gbit"', key)
        elif key == "mtu":
            if not isinstance(value, int) or not 576 <= value <= 65000:
                raise complain(f"mtu is '{value}'; it must be a number from 576 to 65000", key)
            changed[key] = value
        elif key in ("delay_ms", "queue_ms"):
            if not number or not 0 <= value <= 1000:
                raise complain(f"{key} is '{value}'; it must be a number from 0 to 1000", key)
            changed[key] = value
        elif key == "mark":
            if not isinstance(value, bool):
                raise complain(f"mark is '{value}'; it must be true or false", key)
            changed[key] = value
        elif key in FAULTS:
            if not number or not 0 <= value <= 0.5:
                raise complain(f"{key} is '{value}'; it must be a share of packets from 0 to 0.5, such as 0.01", key)
            changed[key] = value
    return replace(base, **changed)


KIND_KEYS = tuple(Kind.__dataclass_fields__)


def read_switches(file):
    tables = file.tables.get("switch", {})
    if not isinstance(tables, dict) or not tables or not all(isinstance(t, dict) for t in tables.values()):
        raise file.bad("there is no switch; add [switch.s0] with hosts = 4 and gatund = true", "switch")
    if len(tables) > SWITCHES_MAX:
        raise file.bad(f"{len(tables)} switches; there can be {SWITCHES_MAX}", "switch")
    hosts, switches = [], []
    for index, (name, table) in enumerate(tables.items()):
        header = f"switch.{name}"
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,9}", name) or re.fullmatch(r"h\d+", name):
            raise file.bad(f"switch '{name}': a name has up to 10 of a-z, 0-9 and _, and h0, h1 .. are hosts", header)
        file.known(table, ("hosts", "gatund"), header)
        count, gatund = table.get("hosts", 0), table.get("gatund", False)
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= HOSTS_MAX:
            raise file.bad(f"hosts is '{count}'; it must be a number from 0 to {HOSTS_MAX}", header, "hosts")
        if not isinstance(gatund, (bool, dict)):
            raise file.bad(
                f"gatund is '{gatund}'; it must be true, false, or settings such as {{ lanes = 2 }}", header, "gatund"
            )
        settings = None if gatund is False else {} if gatund is True else gatund
        switch = Switch(name, index, f"10.77.{index}.1", gatund=settings)
        for i in range(count):
            switch.hosts.append(Host(f"h{len(hosts)}", name, f"10.77.{index}.{10 + i}"))
            hosts.append(switch.hosts[-1])
        switches.append(switch)
    if not hosts:
        raise file.bad("no switch has hosts; give one hosts = 4", f"switch.{switches[0].name}")
    return hosts, switches


def read_links(file, hosts, switches):
    base = file.tables.get("links", {})
    file.known(base, KIND_KEYS, "links")
    base = kind_of(base, Kind(), lambda sentence, key: file.bad(sentence, "links", key))
    links = {}
    for switch in switches:
        for host in switch.hosts:
            ends = (End(host.name, "eth0", host.address), End(switch.name, f"p_{host.name}", switch.address))
            links[frozenset((host.name, switch.name))] = Link(ends, base)
    names = [s.name for s in switches]
    listed = file.tables.get("link", [])
    if not isinstance(listed, list):
        raise file.bad("write [[link]], with two brackets, for each link", "link")
    for turn, table in enumerate(listed):
        file.known(table, ("ends", *KIND_KEYS), "link", turn)
        ends = table.get("ends")
        if not isinstance(ends, list) or len(ends) != 2 or ends[0] == ends[1]:
            raise file.bad('a link needs ends = ["one", "other"]', "link", "ends", turn)
        for end in ends:
            if end not in names and end not in [h.name for h in hosts]:
                raise file.bad(
                    f"there is no '{end}'; switches: {', '.join(names)}; hosts: h0 to h{len(hosts) - 1}",
                    "link",
                    "ends",
                    turn,
                )
        kind = kind_of(table, base, lambda sentence, key, turn=turn: file.bad(sentence, "link", key, turn))
        key = frozenset(ends)
        if key in links:
            links[key].kind = kind
        elif ends[0] in names and ends[1] in names:
            number = sum(link.routed for link in links.values())
            subnet = f"10.78.{number // 64}."
            links[key] = Link(
                tuple(End(ends[i], f"p_{ends[1 - i]}", subnet + str(number % 64 * 4 + 1 + i)) for i in (0, 1)),
                kind,
                routed=True,
            )
        else:
            raise file.bad(
                f"{ends[0]} and {ends[1]} are not linked: a host is linked with its own switch only", "link", "ends", turn
            )
    return list(links.values())


def parse(name, text):
    file = File(name, text)
    file.known(file.tables, ("links", "switch", "link"), "")
    hosts, switches = read_switches(file)
    topology = Topology(hosts, switches, read_links(file, hosts, switches), text)
    reached = topology.distances(switches[0].name)
    for switch in switches:
        if switch.name not in reached:
            raise file.bad(f"no way from {switches[0].name} to {switch.name}; add a [[link]]", f"switch.{switch.name}")
    return topology


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return parse(path, file.read())
    except OSError as error:
        raise Bad(f"{path}: {error.strerror}; name a topology file, such as experiments/lab/star.toml") from None
    except UnicodeDecodeError:
        raise Bad(f"{path}: not UTF-8 text; name a topology file") from None
