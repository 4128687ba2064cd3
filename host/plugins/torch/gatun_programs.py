"""The commands gatund and gatun of an installed package: they become the programs that stand in it.

A module beside the package, since importing the package imports PyTorch, which takes seconds.
"""

import os
import sys


def _become(name):
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gatun", "bin", name)
    try:
        os.execv(path, [name] + sys.argv[1:])
    except OSError as error:
        sys.exit(f"{name}: cannot run {path}: {error.strerror}; install the package gatun again")


def gatund():
    _become("gatund")


def gatun():
    _become("gatun")
