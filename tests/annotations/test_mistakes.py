"""Every mistake in annotated code is an error at its definition: the line, a caret, the fix."""

import pickle
import re
import threading

import pytest

import everstream as es
from everstream.annotations import AnnotationError
from everstream.errors import UserError
from tests.annotations.simulating import HEAD, function_of

LOOP = """
@es.annotated
def main(limit):
    total = 0
    found = []
    counts = {}
    with es.ToStream(%s):
        for n in range(limit):
%s
    return limit
"""


def in_loop(body: str, region: str = "") -> str:
    """A function with this body of its loop."""
    lines = [f"            {line}" if line else "" for line in body.strip("\n").splitlines()]
    return LOOP % (region, "\n".join(lines))


IN_A_LOOP = {
    "no stage": ("print(n)", "the loop has no stage", "with es.Stage():"),
    "a name that is not there": (
        "with es.Stage():\n    print(n, missed)\nwith es.Stage():\n    missed = 1",
        "'missed' is read before this item has assigned it",
        "state=[missed]",
    ),
    "a name that is not output": (
        "with es.Stage(outputs=[n]):\n    square = n * n\nwith es.Stage():\n    print(square)",
        "'square' does not arrive: 'stage-1' outputs 'n'",
        "Add square to its outputs=[...]",
    ),
    "a name that is not input": (
        "square = n * n\nwith es.Stage(inputs=[n]):\n    print(n, square)",
        "'square' is read here, but it is not among the stage's inputs",
        "Say inputs=[n, square]",
    ),
    "an input that nobody gives": (
        "with es.Stage(inputs=[n, square]):\n    square = n",
        "'square' is read before this item has assigned it",
        "earlier stage",
    ),
    "a name that is assigned on some ways": (
        "with es.Stage():\n    if n > 3:\n        large = n\nwith es.Stage():\n    print(large)",
        "'large' does not arrive for certain",
        "before the `if`",
    ),
    "a statement between stages": (
        "with es.Stage():\n    print(n)\nprint(n + 1)\nwith es.Stage():\n    print(n)",
        "a statement between or behind the stages",
        "Move it into a stage",
    ),
    "a statement behind the stages": (
        "with es.Stage():\n    print(n)\ntotal += n",
        "a statement between or behind the stages",
        "Move it into a stage",
    ),
    "an outer name that is assigned": (
        "with es.Stage():\n    total += n",
        "'total' is from before the region, and no clause declares",
        "Say state=[total]",
    ),
    "an outer name that the loop assigns": (
        "total += n\nwith es.Stage():\n    print(n)",
        "'total' is read before this turn of the loop has assigned it",
        "es.ToStream(state=[total])",
    ),
    "an outer name that the loop just sets": (
        "total = n\nwith es.Stage():\n    print(n)",
        "'total' is from before the region, and the loop assigns it",
        "es.ToStream(state=[total])",
    ),
    "an outer list that grows": (
        "with es.Stage():\n    found.append(n)",
        "'found' is from before the region and is changed here",
        "es.Stage(state=[found])",
    ),
    "an outer dict that grows": (
        "with es.Stage():\n    counts[n] = 1",
        "'counts' is from before the region and is changed here",
        "es.Stage(state=[counts])",
    ),
    "an outer list that the loop lets grow": (
        "found.append(n)\nwith es.Stage():\n    print(n)",
        "'found' is from before the region and is changed here",
        "es.ToStream(state=[found])",
    ),
    "replicas with state": (
        "with es.Stage(state=[total], replicate=2):\n    total += n",
        "replicas cannot share the state 'total'",
        "Say key=...",
    ),
    "perhaps replicas with state": (
        "with es.Stage(state=[total], replicate=limit):\n    total += n",
        "replicas cannot share the state 'total'",
        "drop replicate=",
    ),
    "no replicas at all": (
        "with es.Stage(replicate=0):\n    print(n)",
        "replicate= takes a number from 1 up",
        "replicate=2",
    ),
    "a key without state": (
        "with es.Stage(key=n):\n    print(n)",
        "a key without state",
        "or drop the key",
    ),
    "keyed state at another key": (
        "with es.Stage(state=[counts], key=n % 3, replicate=2):\n    counts[n] = 1",
        "may use 'counts' only at that key",
        "Write counts[n % 3]",
    ),
    "keyed state as a whole": (
        "with es.Stage(state=[counts], key=n, replicate=2):\n    print(len(counts))",
        "may use 'counts' only at that key",
        "counts.get(n)",
    ),
    "a key that changes": (
        "with es.Stage(state=[counts], key=n, replicate=2):\n    n = 1\n    counts[n] = 1",
        "'n' is part of the key and is assigned here",
        "in an earlier stage",
    ),
    "break in a stage": (
        "with es.Stage():\n    if n > 3:\n        break",
        "break in a stage",
        "Use `continue`",
    ),
    "return in a stage": (
        "with es.Stage():\n    if n > 3:\n        return n",
        "return before the last region has ended",
        "Return behind the regions",
    ),
    "return in the loop": (
        "if n > 3:\n    return n\nwith es.Stage():\n    print(n)",
        "return before the last region has ended",
        "`break` before the first stage",
    ),
    "yield in a stage": (
        "with es.Stage():\n    yield n",
        "an annotated function neither yields nor awaits",
        "Collect results in state",
    ),
    "a stage in an if": (
        "with es.Stage():\n    print(n)\n    with es.Stage():\n        print(n)",
        "a stage that does not stand directly in the loop",
        "not inside an `if`",
    ),
    "state of another stage": (
        "with es.Stage():\n    print(total)\nwith es.Stage(state=[total]):\n    total += n",
        "'total' is the state of 'stage-2', and only 'stage-2' can see it",
        "Read it behind 'stage-2'",
    ),
    "state of two stages": (
        "with es.Stage(state=[total]):\n    total += n\nwith es.Stage(state=[total]):\n    total += n",
        "'total' is the state of 'stage-1' already",
        "belongs to one stage",
    ),
    "state without a first value": (
        "with es.Stage(state=[fresh]):\n    fresh = n",
        "the state 'fresh' has no first value",
        "Assign it before the region",
    ),
    "state that is not used": (
        "with es.Stage(state=[total]):\n    print(n)",
        "the stage does not use its state 'total'",
        "Take it out of state=",
    ),
    "an option that is not there": (
        "with es.Stage(replicas=2):\n    print(n)",
        "there is no option 'replicas'",
        "There are: inputs, outputs, state",
    ),
    "no list of names": (
        "with es.Stage(inputs=n):\n    print(n)",
        "inputs= takes a list of names",
        "[n, prime]",
    ),
    "an expression among the names": (
        "with es.Stage(outputs=[n + 1]):\n    print(n)",
        "outputs= takes names only",
        "[n, prime]",
    ),
    "order with replicas": (
        "with es.Stage(ordered=True, replicate=2):\n    print(n)",
        "an ordered stage has no replicas",
        "Drop replicate=",
    ),
    "order behind a key": (
        "with es.Stage(state=[counts], key=n, replicate=2):\n    counts[n] = 1\n"
        "with es.Stage(ordered=True):\n    print(n)",
        "the order is lost in 'stage-1'",
        "Drop ordered=True",
    ),
    "one name twice": (
        "with es.Stage(name='a'):\n    print(n)\nwith es.Stage(name='a'):\n    print(n)",
        "the name 'a' is used twice",
        "give each its own",
    ),
    "a sink for nothing": (
        "with es.Stage(sink=es.Collect()):\n    print(n)",
        "a sink takes what the last stage outputs",
        "Say outputs=[...]",
    ),
    "as without on_init": (
        "with es.Stage() as model:\n    print(n, model)",
        "`as` names what on_init returns",
        "Say on_init=...",
    ),
}


def caught(text: str) -> AnnotationError:
    with pytest.raises(AnnotationError) as error:
        function_of(text, "wrong")
    return error.value


@pytest.mark.parametrize("mistake", IN_A_LOOP)
def test_a_mistake_is_shown_with_its_line_and_its_fix(mistake: str) -> None:
    body, problem, fix = IN_A_LOOP[mistake]
    text = in_loop(body)
    error = caught(text)
    assert problem in error.problem
    assert fix in error.fix
    line = (HEAD + text).splitlines()[error.line - 1]
    said, shown, carets, *advice = str(error).splitlines()
    assert said == f"<wrong>, line {error.line}: {error.problem}"
    assert shown == f"{error.line:>6} | {line}"
    start, end = re.search(r"\^+", carets).span() if "^" in carets else (0, 0)  # type: ignore[union-attr]
    assert shown[start:end].strip() and not shown[start].isspace()
    assert advice == [error.fix]


FUNCTIONS = {
    "no region": (
        "@es.annotated\ndef main():\n    print(1)\n",
        "'main' has no region",
        "with es.ToStream():",
    ),
    "more than a loop": (
        "@es.annotated\ndef main():\n    with es.ToStream():\n        x = 1\n"
        "        for n in [x]:\n            with es.Stage():\n                print(n)\n",
        "a region holds one loop and nothing else",
        "before or behind the region",
    ),
    "a region in an if": (
        "@es.annotated\ndef main(x):\n    if x:\n        with es.ToStream():\n"
        "            for n in x:\n                with es.Stage():\n                    print(n)\n"
        "    with es.ToStream():\n        for n in x:\n            with es.Stage():\n"
        "                print(n)\n",
        "a region inside another statement",
        "at the outermost level",
    ),
    "a loop with else": (
        "@es.annotated\ndef main(x):\n    with es.ToStream():\n        for n in x:\n"
        "            with es.Stage():\n                print(n)\n        else:\n"
        "            print(2)\n",
        "the loop of a region has no else",
        "behind the region",
    ),
    "an async function": (
        "@es.annotated\nasync def main(x):\n    pass\n",
        "an annotated function cannot be async",
        "plain def",
    ),
    "a loop variable behind the region": (
        "@es.annotated\ndef main(x):\n    with es.ToStream():\n        for n in x:\n"
        "            with es.Stage():\n                print(n)\n    return n\n",
        "'n' does not come out of the region",
        "state=[n]",
    ),
    "loop state behind the region": (
        "@es.annotated\ndef main(x):\n    seen = set()\n    with es.ToStream(state=[seen]):\n"
        "        for n in x:\n            seen.add(n)\n            with es.Stage():\n"
        "                print(n)\n    return seen\n",
        "'seen' does not come out of the region",
        "state=[seen]",
    ),
    "a region that needs another": (
        "@es.annotated\ndef main(x):\n    a = 0\n    with es.ToStream():\n        for n in x:\n"
        "            with es.Stage(state=[a]):\n                a += n\n"
        "    with es.ToStream():\n        for n in range(a):\n            with es.Stage():\n"
        "                print(n)\n",
        "'a' is known only when the region before has ended",
        "two annotated functions",
    ),
    "an input that is not declared": (
        "@es.annotated\ndef main(x, y):\n    with es.ToStream(inputs=[x]):\n        for n in x:\n"
        "            with es.Stage():\n                print(n + y)\n",
        "'y' does not arrive: it is not among the inputs of es.ToStream",
        "es.ToStream(inputs=[x, y])",
    ),
    "loop state that a stage assigns": (
        "@es.annotated\ndef main(x):\n    with es.ToStream(state=[x]):\n        while x:\n"
        "            x -= 1\n            with es.Stage():\n                x = 7\n",
        "'x' is the state of the loop, and a stage assigns it",
        "before the first stage",
    ),
    "loop state that a stage changes": (
        "@es.annotated\ndef main(x):\n    with es.ToStream(state=[x]):\n        while x:\n"
        "            x.pop()\n            with es.Stage():\n                x.append(7)\n",
        "'x' is from before the region and is changed here",
        "state belongs to one place",
    ),
    "a while loop without state": (
        "@es.annotated\ndef main(x):\n    with es.ToStream():\n        while x:\n            x -= 1\n"
        "            with es.Stage():\n                print(x)\n",
        "'x' is read before this turn of the loop has assigned it",
        "es.ToStream(state=[x])",
    ),
    "a global name": (
        "total = 0\n@es.annotated\ndef main(x):\n    global total\n    with es.ToStream():\n"
        "        for n in x:\n            with es.Stage():\n                total += n\n",
        "the region assigns 'total', a name from outside the function",
        "state=[...] of one stage",
    ),
    "an early return": (
        "@es.annotated\ndef main(x):\n    if not x:\n        return 0\n    with es.ToStream():\n"
        "        for n in x:\n            with es.Stage():\n                print(n)\n",
        "return before the last region has ended",
        "Return behind the regions",
    ),
}


@pytest.mark.parametrize("mistake", FUNCTIONS)
def test_a_function_that_cannot_be_a_pipeline_says_why(mistake: str) -> None:
    text, problem, fix = FUNCTIONS[mistake]
    error = caught(text)
    assert problem in error.problem
    assert fix in error.fix


def test_a_caret_stands_under_what_is_meant_also_behind_wide_letters() -> None:
    error = caught(
        in_loop('with es.Stage():\n    print("größe", missed)\nwith es.Stage():\n    missed = n')
    )
    _, shown, carets, _ = str(error).splitlines()
    start = carets.index("^")
    assert shown[start : start + carets.count("^")] == "missed"


def test_a_mistake_survives_pickling() -> None:
    error = caught(in_loop("print(n)"))
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.line == error.line


def test_a_function_without_source_is_refused() -> None:
    names: dict[str, object] = {"es": es}
    with pytest.raises(UserError, match="put the function into a file"):
        exec("@es.annotated\ndef main():\n    pass\n", names)


@pytest.mark.parametrize("marker", [es.ToStream, es.Stage])
def test_markers_outside_an_annotated_function_say_where_they_belong(marker: type) -> None:
    with pytest.raises(UserError, match=r"only in a function with @es\.annotated"):
        marker()


def test_a_value_that_cannot_travel_is_named() -> None:
    main = function_of(
        "@es.annotated\ndef main(lock):\n    with es.ToStream():\n        for n in range(3):\n"
        "            with es.Stage():\n                lock.acquire(n)\n"
    )
    with pytest.raises(UserError, match="'lock' is used in a region"):
        main.pipeline(threading.Lock())
