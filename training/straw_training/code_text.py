"""Python sources to question-answer documents: several kinds of prompt for one function.

Knows nothing about licences: the caller chooses the sources. Answers are the functions as their authors wrote them.
"""
import ast
import io
import re
import tarfile
import zipfile

from .text import chat

WRITE = ["Write a python function to {d}", "Write a Python function `{n}` to {d}", "Implement `{n}` in Python: {d}",
         "Give me a python function that can {d}", "Python function to {d}", "Write a function to {d}.", "I need Python code to {d}."]
COMPLETE = ["Complete this Python function and answer with all of it:", "Finish the function below. Give the whole function.",
            "Fill in the body and repeat the complete function.", "Here is the start of a function. Reply with the full code.",
            "Please complete the code.", "Implement the following function:"]
TEST = ["It has to pass this test:", "Your function should satisfy:", "Example test:", "This must hold:"]
SIGNATURE = ["Write the Python function `{s}`.", "Implement `{s}` in Python.", "Write a function with this signature: `{s}`", "Write `{s}`"]
EXPLAIN = ["What does this Python function do?", "Explain this code in one sentence:", "Summarize the function below.", "Describe what `{n}` does:"]


def sources(path):
    """Python files of a wheel, zip or tar archive, tests and vendored copies left out."""
    wanted = lambda name, size: name.endswith(".py") and "/vendor" not in name and "test" not in name.lower() and size < 60000
    if path.endswith((".whl", ".zip")):
        archive = zipfile.ZipFile(path)
        blobs = (archive.read(i) for i in archive.infolist() if wanted(i.filename, i.file_size))
    else:
        archive = tarfile.open(path)
        blobs = (archive.extractfile(m).read() for m in archive if wanted(m.name, m.size))
    for blob in blobs:
        try:
            yield blob.decode("utf8").replace("\0", "")
        except UnicodeDecodeError:
            continue


class Function:
    """One function cut from a file: its code, docstring, head (up to the docstring's end) and code without the docstring."""

    def __init__(self, node, lines):
        indent = node.col_offset
        cut = lambda a, b: "\n".join(l[indent:] if not l[:indent].strip() else l for l in lines[a:b])
        self.name, self.node = node.name, node
        first = node.lineno - 1
        self.code = cut(first, node.end_lineno)
        self.doc = ast.get_docstring(node) or ""
        self.head = self.bare = None
        if self.doc and len(node.body) > 1:
            end = node.body[0].end_lineno
            self.head = cut(first, end)
            self.bare = cut(first, node.body[0].lineno - 1) + "\n" + cut(end, node.end_lineno)
        self.signature = f"{node.name}({', '.join(a.arg for a in node.args.args if a.arg not in ('self', 'cls'))})"

    def purpose(self):
        """The docstring's first sentence as a verb phrase, or None when it is not usable as a request."""
        d = re.split(r"\n\s*\n|\.\s", self.doc.strip())[0].replace("\n", " ").strip().rstrip(".")
        d = re.sub(r"\s+", " ", d)
        if not 12 <= len(d) <= 160 or "``" in d or ":" in d[:12]:
            return None
        d = d[0].lower() + d[1:]
        return re.sub(r"^(return|get|compute|create|check|convert|make|find|calculate|set|add|remove|generate)s\b", r"\1", d)

    def example(self):
        """(call, value) of the first one-line doctest that calls the function itself, or None."""
        m = re.search(r">>> (" + re.escape(self.name) + r"\(.{1,60}\))\n\s*([^>\n]{1,50})$", self.doc, re.M)
        return m and (m[1], m[2].strip())


def functions(source):
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    lines = source.split("\n")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("__") and node.end_lineno - node.lineno <= 45:
            f = Function(node, lines)
            if 60 <= len(f.code) <= 1400:
                yield f


def fence(code):
    return f"```python\n{code}\n```"


def write_pair(f, rng):
    d = f.purpose()
    return d and chat(rng.choice(WRITE).format(d=d, n=f.name), fence(f.code))


def complete_pair(f, rng):
    return f.head and chat(f"{rng.choice(COMPLETE)}\n\n{fence(f.head)}", fence(f.code))


def test_pair(f, rng):
    d, e = f.purpose(), f.example()
    if not (d and e and f.bare):
        return None
    return chat(f"Write a function to {d}.\n{rng.choice(TEST)}\nassert {e[0]} == {e[1]}", fence(f.bare))


def signature_pair(f, rng):
    return chat(rng.choice(SIGNATURE).format(s=f.signature), fence(f.bare or f.code))


def explain_pair(f, rng):
    d = f.purpose()
    if not (d and f.bare and len(f.bare) < 700):
        return None
    first = re.split(r"\n\s*\n", f.doc.strip())[0].replace("\n", " ").strip()
    return chat(f"{rng.choice(EXPLAIN).format(n=f.name)}\n\n{fence(f.bare)}", first if first.endswith(".") else first + ".")
