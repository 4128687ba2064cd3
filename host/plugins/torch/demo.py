#!/usr/bin/env python3
"""A small network learns handwritten digits on several ranks of this machine, its gradients summed by gatund.

Starts gatund on a free port, trains with DistributedDataParallel over the backend gatun, then the same over Gloo from the
same start, and compares. Exit code 1 if a run learns too little or its ranks end with different parameters.
"""

import argparse
import ctypes
import datetime
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ACCURACY_MIN = 0.9
BATCH = 32  # of each rank


def find_package():
    """The package gatun: from PYTHONPATH, else from build/release, else the installed one; never the sources beside this."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    built = os.path.abspath(os.path.join(here, "../../../build/release/python"))
    if not any(os.path.exists(os.path.join(folder, "gatun")) for folder in folders) and os.path.exists(built):
        os.environ["PYTHONPATH"] = os.pathsep.join([built, *folders])
        sys.path.insert(0, built)


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


# --- one rank ---


class BusyTime:
    """Time during which at least one all-reduce is under way; overlapping ones count once."""

    def __init__(self):
        self.lock = threading.Lock()
        self.running, self.since, self.seconds = 0, 0.0, 0.0

    def begin(self):
        with self.lock:
            if self.running == 0:
                self.since = time.perf_counter()
            self.running += 1

    def end(self):
        with self.lock:
            self.running -= 1
            if self.running == 0:
                self.seconds += time.perf_counter() - self.since


def averaging_hook(busy, bucket):
    """What DistributedDataParallel does by itself, with a stopwatch."""
    import torch.distributed as dist

    busy.begin()
    future = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True).get_future()

    def finished(done):
        busy.end()
        return done.value()[0]

    return future.then(finished)


def network():
    import torch

    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3, padding=1), torch.nn.ReLU(),
        torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(32 * 4 * 4, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10),
    )  # fmt: skip


def digits():
    """1,797 images of 8 x 8 pixels from scikit-learn: four fifths to learn from, the rest to test with."""
    import sklearn.datasets
    import torch

    data = sklearn.datasets.load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    images, labels, cut = images[order], labels[order], len(labels) * 4 // 5
    return images[:cut], labels[:cut], images[cut:], labels[cut:]


def fingerprint(model):
    digest = hashlib.sha256()
    for parameter in model.state_dict().values():
        digest.update(parameter.numpy().tobytes())
    return digest.hexdigest()


def rank_main(args):
    die_with_parent()
    import torch
    import torch.distributed as dist

    import gatun  # noqa: F401  PyTorch before 2.5 does not look for backends itself

    torch.set_num_threads(1)
    rank, size = args.rank, args.ranks
    dist.init_process_group(
        args.backend, init_method=f"file://{args.meet}", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=60)
    )
    torch.manual_seed(7)
    model = torch.nn.parallel.DistributedDataParallel(network(), bucket_cap_mb=0.1)
    busy = BusyTime()
    model.register_comm_hook(busy, averaging_hook)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    images, labels, test_images, test_labels = digits()
    results = {}
    for epoch in range(1, args.epochs + 1):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        steps = len(labels) // (BATCH * size)
        total, busy.seconds = 0.0, 0.0
        dist.barrier()
        began = time.perf_counter()
        for step in range(steps):
            mine = order[(step * size + rank) * BATCH :][:BATCH]
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images[mine]), labels[mine])
            loss.backward()
            optimizer.step()
            total += loss.item()
        took = time.perf_counter() - began
        with torch.no_grad():
            accuracy = (model.module(test_images).argmax(1) == test_labels).float().mean().item()
        results = {"accuracy": accuracy, "loss": total / steps, "step_ms": took / steps * 1e3, "share": busy.seconds / took}
        results["best_step_ms"] = min(results["step_ms"], results.get("best_step_ms", 1e9))
        if rank == 0:
            print(json.dumps(dict(results, epoch=epoch)), flush=True)
    prints = [None] * size
    dist.all_gather_object(prints, fingerprint(model.module))
    if rank == 0:
        print(json.dumps({"identical": len(set(prints)) == 1, "fingerprint": prints[0]}), flush=True)
    dist.destroy_process_group()
    if args.backend == "gloo":
        os._exit(0)  # PyTorch 1.13's Gloo can hang when it is taken down


# --- the parent ---


class Children:
    """The switch, which is started first, and the ranks; all are gone when the block ends, however it ends."""

    def __enter__(self):
        self.processes = []
        return self

    def start(self, *command, **more):
        more.update(stdin=subprocess.DEVNULL, preexec_fn=die_with_parent, start_new_session=True)
        process = subprocess.Popen(command, **more)
        self.processes.append(process)
        return process

    def __exit__(self, *_):
        switch, *ranks = self.processes or [None]
        for rank in ranks:  # at once and before their switch, so that none of them has something to say
            if rank.poll() is None:
                rank.kill()
        if switch and switch.poll() is None:
            switch.terminate()
        for process in self.processes:
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def start_switch(children, folder):
    """gatund on a free port; returns its address."""
    package = importlib.util.find_spec("gatun")  # not imported: that imports PyTorch, which takes seconds
    own = os.path.join(os.path.dirname(package.origin), "bin", "gatund") if package else ""
    program = os.environ.get("GATUND") or (own if os.path.exists(own) else shutil.which("gatund"))
    if not package or not program:
        sys.exit("demo: gatund is not there; build it first with ./dev build, or install the package gatun")
    switch = children.start(program, "--port", "0", "--port-file", f"{folder}/port", "--metrics", "off",
                            "--log", "warn")
    while not os.path.exists(f"{folder}/port"):
        if switch.poll() is not None:
            sys.exit(f"demo: gatund ended with code {switch.poll()}; its words are above")
        time.sleep(0.01)
    with open(f"{folder}/port") as port:
        return f"127.0.0.1:{int(port.read())}"


def train(children, args, backend, address, folder):
    """One run; prints each epoch as it comes. Returns the last epoch's numbers and what was said of the parameters."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", GATUN_ADDRESS=address, PYTHONUNBUFFERED="1")
    command = [sys.executable, os.path.abspath(__file__), "--backend", backend, "--meet", f"{folder}/{backend}"]
    command += ["--ranks", str(args.ranks), "--epochs", str(args.epochs)]
    began = time.monotonic()
    ranks = []
    for rank in range(args.ranks):
        output = subprocess.PIPE if rank == 0 else None
        ranks.append(children.start(*command, "--rank", str(rank), env=environment, stdout=output, text=True))
    last, step_ms = {}, []
    print(f"\n{backend}\n  epoch    loss   test accuracy   step    all-reduce under way")
    for line in ranks[0].stdout:
        said = json.loads(line)
        if "epoch" in said:
            step_ms.append(said["step_ms"])
            print(
                f"  {said['epoch']:>3}/{args.epochs}  {said['loss']:6.3f}   {said['accuracy']:12.1%}"
                f" {said['step_ms']:7.1f} ms   {said['share']:10.0%} of the step",
                flush=True,
            )
        last.update(said)
    codes = [rank.wait() for rank in ranks]
    if any(codes):
        sys.exit(f"demo: a rank over {backend} ended with {next(code for code in codes if code)}; its words are above")
    last["median_step_ms"] = sorted(step_ms)[len(step_ms) // 2]
    last["seconds"] = time.monotonic() - began
    return last


def table(runs, args):
    print(f"\n{args.ranks} ranks, {args.epochs} epochs  test accuracy   step (median)   all ranks hold the same bits")
    good = True
    for backend, run in runs.items():
        same = "yes  " + run["fingerprint"][:12] if run["identical"] else "NO"
        print(f"  {backend:<20} {run['accuracy']:12.1%} {run['median_step_ms']:12.1f} ms   {same}")
        good = good and run["identical"] and run["accuracy"] >= ACCURACY_MIN
    if not good:
        print(f"demo: failed: each run must reach {ACCURACY_MIN:.0%} and its ranks must agree on every bit", file=sys.stderr)
    return 0 if good else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=8)
    for hidden in ("--backend", "--meet", "--rank"):
        parser.add_argument(hidden, type=int if hidden == "--rank" else str, help=argparse.SUPPRESS)
    args = parser.parse_args()
    find_package()
    if args.rank is not None:
        return rank_main(args)
    if args.ranks < 1 or args.epochs < 1:
        parser.error("--ranks and --epochs must be 1 or more")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with Children() as children, tempfile.TemporaryDirectory(prefix="gatun-demo-") as folder:
            address = start_switch(children, folder)
            print(f"gatund serves at {address}; training starts {args.ranks} processes")
            return table({each: train(children, args, each, address, folder) for each in ("gatun", "gloo")}, args)
    except KeyboardInterrupt:
        print("\ndemo: stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
