"""Where functions begin and end, by brackets alone: good enough to measure them, with no compiler at hand."""
import ast
import re

_TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|#[^\n]*(?:\\\n[^\n]*)*', re.S)
_TYPE = re.compile(r"\b(class|struct|union|enum)\b")
_NAME = re.compile(r"([~\w:]+(?:\s*operator\s*[^\s(]+)?)\s*$")
# A '{' right behind one of these opens a body; behind another word it opens an initialiser.
_BODY_AHEAD = re.compile(r"(\)|\bconst|\bnoexcept|\boverride|\bfinal|\btry|&|->\s*[\w:<>,\s*&]+)\s*$")


def strip_comments_and_strings(text):
    """The same text, same line numbers, with comments, literals and preprocessor lines blanked."""
    def blank(match):
        token = match.group(0)
        if token.startswith("'") and match.start() and text[match.start() - 1].isalnum():
            return token  # a digit separator
        return re.sub(r"[^\n]", " ", token)
    return _TOKEN.sub(blank, text)


def _kind(head):
    """What a '{' behind `head` opens: n(amespace), t(ype), f(unction) or i(nitialiser)."""
    if re.search(r"\bnamespace\b", head) or re.search(r"\bextern\s*$", head.strip()):
        return "n"
    if "(" not in head:
        return "t" if _TYPE.search(head) else "i"
    if _TYPE.search(head) and re.search(r"\b(class|struct|union)\s+(\w+\([^)]*\)\s*)?\w+\s*(final)?\s*(:[^:].*)?$", head, re.S):
        return "t"
    if re.search(r"=\s*$", head) or not _BODY_AHEAD.search(head.rstrip() or ""):
        return "i"
    return "f"


def _name(head):
    before = head[:head.index("(")]
    match = _NAME.search(before)
    name = match.group(1) if match else "?"
    if name in ("TEST", "TEST_F", "TEST_P", "TYPED_TEST"):
        inside = head[head.index("(") + 1:head.rindex(")")]
        name = ".".join(part.strip() for part in inside.split(","))
    return name


def cpp_functions(text):
    """[(name, first line, last line)] of the functions at namespace and class scope."""
    code = strip_comments_and_strings(text)
    found, stack, head, head_start, line = [], [], "", None, 1
    for char in code:
        if char == "\n":
            line += 1
        inside = any(kind in "fi" for kind, _, _ in stack)
        if char == "{":
            kind = "i" if inside else _kind(head)
            stack.append((kind, _name(head) if kind == "f" else "", head_start or line))
            if kind in "ntf":
                head, head_start = "", None
        elif char == "}" and stack:
            kind, name, start = stack.pop()
            if kind == "f":
                found.append((name, start, line))
            if not any(k in "fi" for k, _, _ in stack) and kind != "i":
                head, head_start = "", None
        elif char == ";" and not inside and head.count("(") <= head.count(")"):
            head, head_start = "", None
        elif not inside:
            if not char.isspace() and head_start is None:
                head_start = line
            head += char
            if re.fullmatch(r"\s*(public|private|protected)\s*:", head):
                head, head_start = "", None
    return found


def python_functions(text):
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return []
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [(node.name, node.lineno, node.end_lineno) for node in ast.walk(tree) if isinstance(node, kinds)]
