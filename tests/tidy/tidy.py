#!/usr/bin/env python3
"""tidy: the rules of CONTRIBUTING.md that a program can check. Prints file:line, what is wrong and the way out.

Usage: tidy.py ROOT    exit code 1 if anything is wrong
"""

import ast
import json
import os
import re
import subprocess
import sys

import cpp
import layers

LINES_MAX = 500
FUNCTION_LINES_MAX = 70
COLUMNS_MAX = 125

TOP_FOLDERS = {"include", "protocols", "switch_model", "host", "tests", "experiments", ".ci"}
TOP_FILES = set(
    """
    .clang-format .clang-tidy .gitattributes .gitignore CMakeLists.txt CMakePresets.json CONTRIBUTING.md LICENSE README.md
    dev pyproject.toml
    """.split()
)

CPP = (".h", ".hpp", ".cc", ".c", ".cu")
TEXT = CPP + (".py", ".pyi", ".cmake", ".sh", ".md", ".txt", ".toml", ".json", ".in", ".service")

ALL = ("",)
LIBRARIES = (
    "include/", "protocols/", "switch_model/", "host/base/", "host/transport/", "host/lib/", "host/fallback/", "host/cuda/"
)
NOT_LIBRARIES = ("switch_model/daemon/",)
DATAPATH = ("protocols/", "switch_model/", "host/transport/")
NOT_DATAPATH = ("switch_model/daemon/", "protocols/control.", "protocols/membership.")

# (where, but not where, pattern on code without comments and strings, what to do instead)
FREE = r"(?<![\w.>:])(?:std::|::)?"  # a free function, not a member
BANNED = [
    (LIBRARIES, NOT_LIBRARIES, FREE + r"(?:_?exit|_Exit|quick_exit)\s*\(", "a library does not end its process: use Status"),
    (LIBRARIES, ("switch_model/daemon/", "protocols/status.h"), FREE + r"(?:abort|terminate)\s*\(", "use GATUN_CHECK"),
    (LIBRARIES, NOT_LIBRARIES, FREE + r"assert\s*\(", "GATUN_CHECK is on in every build"),
    (LIBRARIES, NOT_LIBRARIES, FREE + r"v?(?:printf|puts|putchar)\s*\(|\bstd::cout\b|\bstdout\b", "print nothing here"),
    (
        LIBRARIES,
        ("switch_model/daemon/", "protocols/status.h", "host/base/log.cc"),
        FREE + r"v?fprintf\s*\(|\bstd::cerr\b|\bstderr\b",
        "log through host/base/log.h",
    ),
    (LIBRARIES, NOT_LIBRARIES, FREE + r"(?:signal|sigaction)\s*\(", "signals belong to the program, not to a library"),
    (
        LIBRARIES,
        ("switch_model/daemon/", "include/gatun/gatun.hpp", "host/fallback/gloo/"),  # Gloo's own language
        r"\bthrow\b",
        "no exceptions inside: return a Status",
    ),
    (DATAPATH, NOT_DATAPATH, r"\bstd::function\b", "no std::function on the datapath: pass a reference or a template"),
    (ALL, (), r"#\s*define\s+(?:private|protected)\b", "test through the public interface"),
    (ALL, (), r"\busing\s+namespace\s+std\s*;", "write std::"),
    (ALL, (), FREE + r"(?:v?sprintf|strcpy|strcat|gets|strtok)\s*\(", "use a bounded function"),
    (ALL, (), FREE + r"s?rand\s*\(", "use a seeded generator, so that a run can be repeated"),
    (ALL, (), r"(?<![\w.>:])get_[a-z]\w*\s*\([^;{}]*\)\s*(?:const\s*)?\{", "no get_ in names: a noun reads"),
]
MARKERS = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
FEATURE_MACRO = re.compile(r"\bGATUN_(?:WITH|HAVE)_\w+")


class Tidy:
    def __init__(self, root):
        self.root = root
        self.complaints = []

    def say(self, path, line, text):
        self.complaints.append(f"{path}:{line}: {text}")

    def files(self):
        git = ["git", "-C", self.root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        try:
            listed = subprocess.run(git, capture_output=True, check=True).stdout.decode().split("\0")
            return sorted({f for f in listed if f and os.path.isfile(os.path.join(self.root, f))})
        except (OSError, subprocess.CalledProcessError):
            return sorted(self.walk())

    def walk(self):
        for folder, names, files in os.walk(self.root):
            names[:] = [n for n in names if n not in ("build", ".git", "__pycache__")]
            for name in files:
                yield os.path.relpath(os.path.join(folder, name), self.root)

    def run(self):
        paths = self.files()
        self.top_level(paths)
        self.listed_in_cmake(paths)
        for path in paths:
            if path.endswith(TEXT) or os.path.basename(path) in ("dev", "run"):
                self.file(path)
        return self.complaints

    def read(self, path):
        with open(os.path.join(self.root, path), encoding="utf-8", newline="") as f:
            return f.read()

    # --- the tree ---

    def top_level(self, paths):
        for top in sorted({p.split("/")[0] for p in paths}):
            folder = any(p.startswith(top + "/") for p in paths)
            if folder and top not in TOP_FOLDERS:
                self.say(top, 1, f"is not one of the top-level folders ({', '.join(sorted(TOP_FOLDERS))}); put it below one")
            if not folder and top not in TOP_FILES:
                self.say(top, 1, "may not lie at the top; put it below the folder it belongs to")

    def listed_in_cmake(self, paths):
        lists = {os.path.dirname(p): self.read(p) for p in paths if os.path.basename(p) == "CMakeLists.txt"}
        for path in paths:
            if not path.endswith((".cc", ".c", ".cu")) or path.startswith("experiments/"):
                continue
            folder, known = os.path.dirname(path), False
            while not known:
                relative = re.escape(os.path.relpath(path, folder or "."))
                known = re.search(rf"(?<![\w/]){relative}(?!\w)", lists.get(folder, "")) is not None
                if not folder:
                    break
                folder = os.path.dirname(folder)
            if not known:
                self.say(path, 1, "is in no CMakeLists.txt of its folder or above: list it there, or delete it")

    # --- one file ---

    def file(self, path):
        try:
            text = self.read(path)
        except UnicodeDecodeError:
            self.say(path, 1, "is not UTF-8")
            return
        self.lines(path, text)
        if path.endswith(CPP):
            self.cpp(path, text)
        elif path.endswith(".py"):
            self.python(path, text)
        elif path.endswith(".md"):
            self.links(path, text)
        elif path.endswith(".json"):
            self.json(path, text)

    def lines(self, path, text):
        lines = text.split("\n")
        count = len(lines) - (lines[-1] == "")
        if count > LINES_MAX:
            self.say(path, LINES_MAX + 1, f"has {count} lines, more than {LINES_MAX}: split it by job")
        if text and not text.endswith("\n"):
            self.say(path, count, "does not end with a newline")
        for number, line in enumerate(lines, 1):
            if len(line) > COLUMNS_MAX and not path.endswith((".md", ".json")):
                self.say(path, number, f"has {len(line)} columns, more than {COLUMNS_MAX}")
            if line.endswith((" ", "\t", "\r")):
                self.say(path, number, "ends in white space")
            if "\t" in line and not path.endswith(".md"):
                self.say(path, number, "has a tab: indent with spaces")
            if MARKERS.search(line):
                self.say(path, number, f"{MARKERS.search(line)[0]}: do it, or file it")

    def cpp(self, path, text):
        for line, quote, include in cpp.includes(text):
            complaint = layers.check(path, include, quote)
            if complaint:
                self.say(path, line, complaint)
        for first, last, head in cpp.functions(text):
            if last - first + 1 > FUNCTION_LINES_MAX:
                self.long_function(path, first, last, head)
        code = cpp.code_only(text)
        self.banned(path, code)
        if FEATURE_MACRO.search(code) and not self.may_ask_features(path):
            at = FEATURE_MACRO.search(code).start()
            self.say(path, code.count("\n", 0, at) + 1, "asks for a feature macro; only factory files and tools may")
        if path.endswith((".h", ".hpp")):
            self.header(path, text)

    @staticmethod
    def may_ask_features(path):
        return "factory" in os.path.basename(path) or path.startswith(("host/tools/", "tests/"))

    def banned(self, path, code):
        for where, not_where, pattern, instead in BANNED:
            if path.startswith(where) and not (not_where and path.startswith(not_where)):
                found = {}  # one complaint a line
                for m in re.finditer(pattern, code):
                    found.setdefault(code.count("\n", 0, m.start()) + 1, m[0].split("(")[0].strip())
                for line, word in found.items():
                    self.say(path, line, f"'{word}': {instead}")

    def header(self, path, text):
        if not re.match(r"\s*(//|/\*)", text):
            self.say(path, 1, "does not open with a comment: say what it is, the idea, who owns it and the invariant")
        # An _inl.h is included again for every instruction set.
        if not path.endswith("_inl.h") and not re.search(r"^#pragma once$|^#ifndef \w+_H_$", text, re.MULTILINE):
            self.say(path, 1, "has no #pragma once")

    def python(self, path, text):
        try:
            tree = ast.parse(text)
        except SyntaxError as error:
            self.say(path, error.lineno or 1, f"is not Python: {error.msg}")
            return
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX:
                    self.long_function(path, node.lineno, node.end_lineno, node.name)

    def long_function(self, path, first, last, head):
        count = last - first + 1
        self.say(path, first, f"function of {count} lines, more than {FUNCTION_LINES_MAX}: split it: {head[:60]}")

    def links(self, path, text):
        text = re.sub(r"```.*?```", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.DOTALL)
        for m in re.finditer(r"\[[^\]\n]*\]\(([^)\s]+)\)", text):
            target = m[1].split("#")[0]
            if not target or re.match(r"[a-z]+:", target):
                continue
            if not os.path.exists(os.path.join(self.root, os.path.dirname(path), target)):
                self.say(path, text.count("\n", 0, m.start()) + 1, f"links to {target}, which is not there")

    def json(self, path, text):
        try:
            json.loads(text)
        except ValueError as error:
            self.say(path, getattr(error, "lineno", 1), f"is not JSON: {error}")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    complaints = Tidy(sys.argv[1]).run()
    for complaint in complaints:
        print(complaint)
    if complaints:
        print(f"tidy: {len(complaints)} complaints")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
