"""Word problems: own templates with worked answers, and number variations of existing worked problems.

`vary` changes the numbers of a question and recomputes every equation of its answer; it gives up (None) when a step
would stop being a positive whole number or a value would be ambiguous.
"""
import re

from .text import chat

NAMES = "Tom Mia Sam Ava Leo Zoe Ben Ivy Max Eva Kim Dan Ada Raj Lin Omar Nina Paul".split()
THINGS = "apples books marbles stickers pencils cookies coins cards oranges shells stamps toys".split()
ASK = ["", "", "", "\nShow your work.", "\nExplain the steps and give the result last.", "\nSolve it step by step.", "\nThink carefully, then give the final answer."]
FIXED = {0, 1, 2, 3, 4, 5, 7, 10, 12, 24, 30, 52, 60, 100, 365, 1000}
EQUATION = re.compile(r"([\d$][\d\s+\-*/().$%]*[+\-*/][\d\s+\-*/().$%]*)=\s*\$?(\d+)(?![\d.,]*[\d])")

# (question, answer): n, m names; i, j things; a b c d up to 60; k up to 12. Braces hold expressions of these.
TEMPLATES = [
    ("{n} has {a} {i} and buys {b} more. How many {i} does {n} have now?", "{n} starts with {a} {i}.\n{n} buys {b} more, so {n} has {a} + {b} = {a+b} {i}.\n#### {a+b}"),
    ("{n} has {a+b} {i}. {n} gives {b} {i} to {m}. How many {i} does {n} have left?", "{n} has {a+b} {i} and gives away {b}.\n{a+b} - {b} = {a} {i} are left.\n#### {a}"),
    ("There are {k} boxes with {a} {i} in each box. How many {i} are there in total?", "Each box holds {a} {i} and there are {k} boxes.\n{k} * {a} = {k*a} {i} in total.\n#### {k*a}"),
    ("{n} shares {k*a} {i} equally among {k} friends. How many {i} does each friend get?", "There are {k*a} {i} and {k} friends.\n{k*a} / {k} = {a} {i} for each friend.\n#### {a}"),
    ("{n} buys {k} {i} at ${a} each and {b} {j} at ${c} each. How much does {n} spend in total?", "The {i} cost {k} * {a} = ${k*a}.\nThe {j} cost {b} * {c} = ${b*c}.\nIn total {n} spends {k*a} + {b*c} = ${k*a+b*c}.\n#### {k*a+b*c}"),
    ("{n} reads {a} pages a day. How many pages does {n} read in {k} weeks?", "There are {k} * 7 = {k*7} days in {k} weeks.\n{n} reads {a} * {k*7} = {a*k*7} pages.\n#### {a*k*7}"),
    ("{m} has {a} {i}. {n} has {k} times as many {i} as {m}. How many {i} do they have together?", "{n} has {k} * {a} = {k*a} {i}.\nTogether they have {a} + {k*a} = {a+k*a} {i}.\n#### {a+k*a}"),
    ("A car drives {a} miles per hour for {k} hours and then {b} miles per hour for {c} hours. How far does it go in total?", "In the first part it goes {a} * {k} = {a*k} miles.\nIn the second part it goes {b} * {c} = {b*c} miles.\nIn total it goes {a*k} + {b*c} = {a*k+b*c} miles.\n#### {a*k+b*c}"),
    ("{n} earns ${a} per hour and works {k} hours a day for {b} days. How much does {n} earn?", "{n} works {k} * {b} = {k*b} hours.\n{n} earns {a} * {k*b} = ${a*k*b}.\n#### {a*k*b}"),
    ("{n} had {a*k} {i}, lost {b} of them and then found {c} {i}. How many {i} does {n} have now?", "After losing {b}, {n} has {a*k} - {b} = {a*k-b} {i}.\nAfter finding {c}, {n} has {a*k-b} + {c} = {a*k-b+c} {i}.\n#### {a*k-b+c}"),
    ("What is {a} + {b} * {k}?", "First multiply: {b} * {k} = {b*k}.\nThen add: {a} + {b*k} = {a+b*k}.\n#### {a+b*k}"),
    ("A rectangle is {a} cm long and {b} cm wide. What are its area and perimeter?", "The area is {a} * {b} = {a*b} square cm.\nThe perimeter is 2 * ({a} + {b}) = 2 * {a+b} = {2*(a+b)} cm.\n#### {a*b} and {2*(a+b)}"),
    ("{n} is {a} years old. {m} is {b} years older than {n}. How old will {m} be in {k} years?", "{m} is {a} + {b} = {a+b} years old now.\nIn {k} years {m} will be {a+b} + {k} = {a+b+k} years old.\n#### {a+b+k}"),
    ("Solve for x: {k}x + {a} = {k*b+a}.", "Subtract {a} from both sides: {k}x = {k*b}.\nDivide both sides by {k}: x = {b}.\n#### {b}"),
]


def fill(text, values):
    return re.sub(r"\{([^}]+)\}", lambda m: str(eval(m[1], {}, values)), text)


def templated(rng):
    (n, m), (i, j) = rng.sample(NAMES, 2), rng.sample(THINGS, 2)
    a, b, c = (rng.randint(2, 60) for _ in range(3))
    a = max(a, b) if rng.random() < 0.5 else a
    values = dict(n=n, m=m, i=i, j=j, a=a, b=b, c=c, k=rng.randint(2, 12))
    question, answer = rng.choice(TEMPLATES)
    if "{a*k}" in question and values["a"] * values["k"] < b:
        values["b"] = 1
    return chat(fill(question, values), fill(answer, values))


def numbers(text, values):
    """Replace each whole number of `text` that has an entry in `values`."""
    return re.sub(r"(?<![\d.,])\d+(?![\d]|[.,]\d)", lambda m: str(values.get(int(m[0]), m[0])), text)


def vary(question, answer, rng):
    old = {int(x) for x in re.findall(r"(?<![\d.,])\d+(?![\d]|[.,]\d)", question)} - FIXED
    if not old or re.search(r"\d[.,/]\d", question + answer):
        return None
    values = {x: rng.randint(max(2, x // 2), 2 * x) for x in old}
    out, at = [], 0
    for m in EQUATION.finditer(answer):
        left = numbers(m[1], values)
        try:
            result = eval(left.replace("$", "").replace("%", "").replace("x", "*"), {}, {})
        except (SyntaxError, ZeroDivisionError, TypeError, NameError):
            return None
        was = int(m[2])
        if result != int(result) or not 0 < result < 10**6 or values.get(was, int(result)) != int(result):
            return None
        if was not in FIXED:
            values[was] = int(result)
        elif was != int(result):
            return None
        out += [numbers(answer[at : m.start()], values), left, answer[m.end(1) : m.start(2)], str(int(result))]
        at = m.end()
    if at == 0:
        return None
    out.append(numbers(answer[at:], values))
    return numbers(question, values), "".join(out)


def question_answer(document):
    """(question, answer) of a one-turn ChatML document."""
    m = re.fullmatch(r"<\|im_start\|>user\n(.*?)<\|im_end\|>\n<\|im_start\|>assistant\n(.*?)<\|im_end\|>\n", document, re.S)
    return m and (m[1], m[2])


def with_request(document, rng):
    """The same problem, sometimes with one more line that asks for steps."""
    qa = question_answer(document)
    return chat(qa[0] + rng.choice(ASK), qa[1]) if qa else document
