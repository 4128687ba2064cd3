"""Where the library is: beside this file."""

import os

_HERE = os.path.dirname(os.path.abspath(__file__))


def library():
    """Path of libgatun.so: the package's own, else what the loader finds."""
    own = os.path.join(_HERE, "libgatun.so")
    return own if os.path.exists(own) else "libgatun.so"
