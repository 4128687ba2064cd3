"""Says where the PyTorch of this Python is and how it was built, one key=value a line, without importing it.

An isolated build environment hides the packages of the environment it builds for; sysconfig still knows their folder.
GATUN_TORCH_DIR names a torch package folder and is believed. Exit code 1: there is none; the reason is on stderr.
"""

import importlib.util
import os
import re
import site
import sys
import sysconfig


def sees_system_packages():
    if sys.prefix == sys.base_prefix:
        return True
    try:
        with open(os.path.join(sys.prefix, "pyvenv.cfg")) as config:
            return bool(re.search(r"^include-system-site-packages\s*=\s*true", config.read(), re.M | re.I))
    except OSError:
        return False


def candidates():
    if os.environ.get("GATUN_TORCH_DIR"):
        yield os.environ["GATUN_TORCH_DIR"]
        return
    spec = importlib.util.find_spec("torch")
    if spec and spec.origin:
        yield os.path.dirname(spec.origin)
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if sees_system_packages():
        folders += site.getsitepackages([sys.prefix, sys.base_prefix])
        folders += ["/usr/lib/python3/dist-packages"] if sys.base_prefix == "/usr" else []
        folders += [site.getusersitepackages()]
    for folder in folders:
        yield os.path.join(folder, "torch")


def version_of(root):
    with open(os.path.join(root, "version.py")) as text:
        return re.search(r"^__version__\s*=\s*['\"]([^'\"]+)", text.read(), re.M).group(1)


def header_version(include):
    for name in ("torch/headeronly/version.h", "torch/csrc/api/include/torch/version.h"):
        try:
            with open(os.path.join(include, name)) as text:
                found = dict(re.findall(r"#define TORCH_VERSION_(MAJOR|MINOR) (\d+)", text.read()))
        except OSError:
            continue
        if len(found) == 2:
            return found["MAJOR"] + "." + found["MINOR"]
    return None


def uses_cxx11_strings(libraries):
    with open(os.path.join(libraries, "libc10.so"), "rb") as library:
        return b"_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_string" in library.read()


def main():
    looked = []
    for root in candidates():
        if root in looked:
            continue
        looked.append(root)
        include, libraries = os.path.join(root, "include"), os.path.join(root, "lib")
        if not os.path.exists(os.path.join(root, "version.py")):
            continue
        python_include = sysconfig.get_path("include")
        for name, path in (("torch/csrc/distributed/c10d/ProcessGroup.hpp", include), ("libtorch_python.so", libraries),
                           ("Python.h", python_include)):
            if not os.path.exists(os.path.join(path, name)):
                sys.exit(f"PyTorch {version_of(root)} is in {root}, but {os.path.join(path, name)} is missing "
                         "(Debian: apt-get install libtorch-dev python3-dev)")
        bundled = os.path.exists(os.path.join(include, "pybind11", "pybind11.h"))
        if not bundled and not os.path.exists("/usr/include/pybind11/pybind11.h"):
            sys.exit(f"PyTorch {version_of(root)} is in {root}, but pybind11 is missing "
                     "(Debian: apt-get install pybind11-dev)")
        print(f"root={root}")
        print(f"version={version_of(root)}")
        print(f"api={header_version(include)}")
        print(f"include={include};{os.path.join(include, 'torch/csrc/api/include')};{python_include}")
        print(f"libraries={libraries}")
        print(f"cxx11_strings={int(uses_cxx11_strings(libraries))}")
        print(f"suffix={sysconfig.get_config_var('EXT_SUFFIX')}")
        return
    sys.exit("no PyTorch in " + ", ".join(looked))


main()
