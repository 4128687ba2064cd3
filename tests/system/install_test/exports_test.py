#!/usr/bin/env python3
"""libgatun.so exports exactly what the public headers declare with GATUN_API: nothing leaks, nothing is missing.

Usage: exports_test.py LIBRARY INCLUDE_DIR NM
"""

import pathlib
import re
import subprocess
import sys


def main():
    library, include, nm = sys.argv[1:]
    listed = subprocess.run([nm, "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    exported = {line.split()[-1].split("@")[0] for line in listed.splitlines() if line.strip()}
    declared = set()
    for header in pathlib.Path(include).glob("*.h"):
        declared |= set(re.findall(r"^GATUN_API\b[^;(]*?\b(\w+)\s*\(", header.read_text(encoding="utf-8"), re.M))
    # A sanitizer's runtime and the linker add names of their own.
    own = re.compile(r"__(?:asan|ubsan|tsan|odr_asan|sanitizer)|_(?:bss_start|edata|end|init|fini)$|__bss_start$")
    leaked = {name for name in exported - declared if not own.match(name)}
    missing = declared - exported
    for name in sorted(leaked):
        print(f"{library} exports {name}, which no public header declares: hide it")
    for name in sorted(missing):
        print(f"{library} does not export {name}, which a public header declares")
    print(f"{len(declared)} declared, {len(exported)} exported")
    sys.exit(1 if leaked or missing or not declared else 0)


if __name__ == "__main__":
    main()
