"""Just enough C++ reading for tidy: text without comments and strings, #includes, and where functions begin and end."""

import re

# One pass over everything that can hide braces: comments, raw strings, strings, characters.
_TOKENS = re.compile(
    r"""//[^\n]*
      | /\*.*?\*/
      | R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)"
      | "(?:\\.|[^"\\\n])*"
      | (?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'
    """,
    re.VERBOSE | re.DOTALL,
)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)
_TYPE_HEAD = re.compile(
    r"^(?:template\s*<.*>\s*)?(?:(?:typedef|alignas\s*\([^)]*\))\s+)*(?:class|struct|union|enum)\b", re.DOTALL
)
_SCOPE_HEAD = re.compile(r"^(?:inline\s+)?namespace\b|^extern\b\s*(?:\"\s*\")?\s*$")


def _blank(text):
    return re.sub(r"[^\n]", " ", text)


def without_comments(text):
    """Comments become spaces; strings stay. Lines and columns are kept."""
    return _TOKENS.sub(lambda m: _blank(m[0]) if m[0][0] == "/" else m[0], text)


def code_only(text):
    """Comments and the insides of strings become spaces. Lines and columns are kept."""
    return _TOKENS.sub(lambda m: _blank(m[0]) if m[0][0] == "/" else '"' + _blank(m[0][1:-1]) + '"', text)


def includes(text):
    """[(line, quote, path)] of every #include."""
    text = without_comments(text)
    return [(text.count("\n", 0, m.start()) + 1, m[1], m[2]) for m in _INCLUDE.finditer(text)]


def _is_initializer(head):
    """Is a brace after this text a value (argument, member initializer) and not a body?"""
    if head.count("(") > head.count(")"):
        return True
    stripped = head.rstrip()
    after_name = bool(stripped) and (stripped[-1].isalnum() or stripped[-1] in "_>")
    in_member_list = re.search(r"\)\s*(?:noexcept\s*)?:(?!:)", head) is not None
    return after_name and in_member_list and not re.search(r"\)\s*(?:const|noexcept|override|final)\s*$", stripped)


def functions(text):
    """[(first line, last line, head)] of every function body, the head included. Nested lambdas belong to their function."""
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: _blank(m[0]), code_only(text), flags=re.MULTILINE)
    found = []
    stack = []  # "scope", "function", "value" or "block", each with the function's start
    head_start = 0
    for m in re.finditer(r"[{};]", code):
        head = code[head_start : m.start()]
        in_scope = all(kind == "scope" for kind, _ in stack)
        if m[0] == "{":
            text_before = re.sub(r"^\s*(?:(?:public|private|protected)\s*:\s*)*", "", head)
            if in_scope and (_SCOPE_HEAD.match(text_before) or _TYPE_HEAD.match(text_before)):
                stack.append(("scope", 0))
            elif in_scope and "(" in head:
                if _is_initializer(head):
                    stack.append(("value", 0))
                    continue  # the head goes on behind the value
                start = m.start() - len(text_before)
                stack.append(("function", start))
            else:
                stack.append(("block", 0))
        elif m[0] == "}":
            kind, start = stack.pop() if stack else ("block", 0)
            if kind == "value":
                continue
            if kind == "function":
                first = code.count("\n", 0, start) + 1
                last = code.count("\n", 0, m.start()) + 1
                name = " ".join(code[start : code.find("{", start)].split())
                found.append((first, last, name))
        elif stack and stack[-1][0] == "value":
            continue
        head_start = m.end()
    return found
