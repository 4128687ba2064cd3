"""Where the parts of the package are: the library and the programs stand beside this file."""

import os
import shutil

_HERE = os.path.dirname(os.path.abspath(__file__))


def library():
    """Path of libgatun.so: the package's own, else what the loader finds."""
    own = os.path.join(_HERE, "libgatun.so")
    return own if os.path.exists(own) else "libgatun.so"


def program(name):
    """Path of gatund or gatun: the package's own, else the one in PATH; None if there is none."""
    own = os.path.join(_HERE, "bin", name)
    return own if os.path.exists(own) else shutil.which(name)
