#!/usr/bin/env python3
"""tidy finds what it must find: each case plants one violation in a small clean tree and expects it by file and line."""

import os
import tempfile
import unittest

import cpp
from tidy import Tidy

HEADER = "// What it is.\n#pragma once\n"
CLEAN = {
    "README.md": "See [the header](protocols/a.h).\n",
    "CMakeLists.txt": "add_library(a protocols/a.cc host/lib/factory.cc)\n",
    "protocols/a.h": HEADER + "#include <vector>\nint size(int bytes);\n",
    "protocols/a.cc": '#include "protocols/a.h"\nint size(int bytes) { return bytes; }\n',
    "switch_model/b.h": HEADER + '#include <hwy/highway.h>\n#include "protocols/a.h"\n',
    "host/lib/c.h": HEADER + '#include <sys/socket.h>\n#include "gatun/gatun.h"\n#include "host/transport/t.h"\n',
    "host/lib/factory.cc": "#if GATUN_WITH_X\n#endif\n",
}


def tidy(files):
    with tempfile.TemporaryDirectory() as root:
        for path, text in {**CLEAN, **files}.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as f:
                f.write(text)
        return Tidy(root).run()


class TidyTest(unittest.TestCase):
    def finds(self, path, text, place, words):
        complaints = tidy({path: text})
        self.assertEqual(len(complaints), 1, f"{path}: {text[:80]!r}: {complaints}")
        self.assertTrue(complaints[0].startswith(place) and words in complaints[0], complaints[0])

    def passes(self, path, text):
        self.assertEqual(tidy({path: text}), [])

    def test_clean_tree(self):
        self.assertEqual(tidy({}), [])

    def test_wrong_arrows(self):
        wrong = [
            ("protocols/x.h", '"switch_model/b.h"'), ("protocols/x.h", "<sys/socket.h>"), ("protocols/x.h", "<chrono>"),
            ("switch_model/x.h", '"switch_model/daemon/d.h"'), ("switch_model/x.h", '"host/base/b.h"'),
            ("switch_model/x.h", "<thread>"), ("host/base/x.h", '"host/transport/t.h"'),
            ("host/transport/x.h", '"switch_model/b.h"'), ("host/lib/x.h", '"switch_model/b.h"'),
            ("host/tools/x.h", '"host/lib/c.h"'), ("host/plugins/x.h", '"protocols/a.h"'),
            ("include/gatun/x.h", '"protocols/a.h"'), ("switch_model/daemon/x.h", '"host/lib/c.h"'),
            ("protocols/x.h", '"a.h"'),
        ]
        for path, include in wrong:
            self.finds(path, HEADER + f"#include {include}\n", f"{path}:3:", include.strip('"<>'))

    def test_right_arrows(self):
        self.passes("switch_model/daemon/x.h", HEADER + '#include <sys/un.h>\n#include "host/transport/t.h"\n')
        self.passes("protocols/x.h", HEADER + '// #include "host/lib/c.h"\n')
        self.passes("tests/x.h", HEADER + '#include "host/lib/c.h"\n#include "switch_model/b.h"\n')

    def test_banned_calls(self):
        wrong = [
            "void f() { exit(1); }", "void f() { std::abort(); }", 'void f() { printf("x"); }',
            "void f() { std::cout << 1; }",
            'void f() { fprintf(stderr, "x"); }', "void f() { assert(1); }", "void f() { throw 1; }",
            "void f() { std::signal(1, g); }", "std::function<void()> f;", "#define private public", "using namespace std;",
            "void f() { sprintf(a, b); }", "int f() { return rand(); }", "int get_size() { return 1; }",
        ]
        for code in wrong:
            self.finds("protocols/x.h", HEADER + code + "\n", "protocols/x.h:3:", "'")

    def test_allowed_calls(self):
        self.passes("switch_model/daemon/x.h", HEADER + "void f() { exit(1); }\n")
        self.passes("host/tools/x.h", HEADER + 'void f() { printf("x"); throw 1; }\n')
        self.passes("protocols/x.h", HEADER + 'const char* f() { return "exit(1)"; }  // abort(), throw\n')
        self.passes("protocols/x.h", HEADER + "void f() { machine.exit(1); machine->abort(); loop::exit(2); }\n")

    def test_sizes(self):
        self.finds("protocols/x.h", HEADER + "\n" * 499, "protocols/x.h:501:", "501 lines")
        self.finds("protocols/x.h", HEADER + "// " + "x" * 123 + "\n", "protocols/x.h:3:", "126 columns")
        body = "  f();\n" * 69
        self.finds("protocols/x.h", HEADER + "void f() {\n" + body + "}\n", "protocols/x.h:3:", "71 lines")
        self.passes("protocols/x.h", HEADER + "void f() {\n" + "  f();\n" * 68 + "}\n")
        self.finds("tests/x.py", "def f():\n" + "    f()\n" * 70, "tests/x.py:1:", "71 lines")

    def test_text(self):
        self.finds("protocols/x.h", HEADER + "// TO" + "DO: later\n", "protocols/x.h:3:", "file it")
        self.finds("protocols/x.h", HEADER + "int a; \n", "protocols/x.h:3:", "white space")
        self.finds("protocols/x.h", HEADER + "\tint a;\n", "protocols/x.h:3:", "tab")
        self.finds("protocols/x.h", HEADER + "int a;", "protocols/x.h:3:", "newline")
        self.finds("protocols/x.h", "#pragma once\n", "protocols/x.h:1:", "open with a comment")
        self.finds("protocols/x.h", "// What.\n", "protocols/x.h:1:", "#pragma once")
        self.finds("tests/x.json", "{,}\n", "tests/x.json:1:", "not JSON")
        self.finds("tests/x.py", "def f(:\n", "tests/x.py:1:", "not Python")

    def test_tree(self):
        self.finds("docs/x.md", "x\n", "docs:1:", "top-level")
        self.finds("notes.md", "x\n", "notes.md:1:", "may not lie at the top")
        self.finds("protocols/unlisted.cc", "int a;\n", "protocols/unlisted.cc:1:", "CMakeLists.txt")
        self.finds("protocols/P.md", "\n[x](gone.md)\n", "protocols/P.md:2:", "gone.md")
        self.passes("protocols/P.md", "[x](a.h#top) [y](https://example.org) [z](#here)\n")

    def test_feature_macros(self):
        self.finds("host/lib/x.h", HEADER + "#if GATUN_WITH_X\n#endif\n", "host/lib/x.h:3:", "factory")
        self.passes("host/tools/x.h", HEADER + "#if GATUN_HAVE_X\n#endif\n")


class CppTest(unittest.TestCase):
    """Where functions begin and end."""

    def heads(self, text):
        return [(first, last, head.split("(")[0].split()[-1]) for first, last, head in cpp.functions(text)]

    def test_scopes_and_methods(self):
        text = "namespace a {\nclass B : C<int> {\n public:\n  int f() const {\n    return 1;\n  }\n};\n}\nvoid g() {}\n"
        self.assertEqual(self.heads(text), [(4, 6, "f"), (9, 9, "g")])

    def test_member_initializers(self):
        text = "A::A(int b)\n    : b_{b}, c_{1},\n      d_(2) {\n  f();\n}\nint g() { return 1; }\n"
        self.assertEqual(self.heads(text), [(1, 5, "A::A"), (6, 6, "g")])

    def test_braces_elsewhere(self):
        text = 'void f(B b = {1}) {\n  auto x = [] { return "}"; };  // }\n  if (x) { y(); }\n}\n'
        text += "int a[] = {1, 2};\nenum E { k };\n"
        self.assertEqual(self.heads(text), [(1, 4, "f")])

    def test_raw_strings_and_macros(self):
        text = 'auto s = R"x({{{)x";\n#define M(x) do { \\\n  x } while (0)\nTEST_CASE("a__b", "[c]") {\n}\n'
        self.assertEqual(self.heads(text), [(4, 5, "TEST_CASE")])

    def test_template_and_operator(self):
        text = "template <typename T>\nbool operator==(const T& a, const T& b) {\n  return true;\n}\n"
        self.assertEqual([f[:2] for f in cpp.functions(text)], [(1, 4)])


if __name__ == "__main__":
    unittest.main()
