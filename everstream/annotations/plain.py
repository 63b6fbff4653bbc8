"""The sequential program: an annotated function without its annotations.

It runs in the function's own place, with its globals, defaults and closure. Hooks are called where
a run would call them: on_init before the loop, the other hooks behind it; an item on which
a stage with on_error raises is left out, as it is in a run.
"""

import ast
import copy
import types
from collections.abc import Callable
from typing import Any

from everstream.annotations.glue import FreshNames, glue, packed
from everstream.annotations.program import Program, Region, StageBlock
from everstream.annotations.stage import call

ORDER = ("on_snapshot", "before_snapshot", "on_commit", "on_exit")


def plain_function(program: Program, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function without its annotations."""
    fresh = FreshNames(
        {*program.names, *function.__code__.co_names, *function.__code__.co_freevars}
    )
    helper = fresh.free("call_hook")
    body: list[ast.stmt] = []
    for region in program.regions:
        body += [*region.before, *_region(region, fresh, helper, program.name)]
    body += program.after
    bare = copy.copy(program.function)
    bare.args = _bare(program.function.args)
    bare.body, bare.decorator_list, bare.returns = body or [ast.Pass()], [], None
    around = [*function.__code__.co_freevars, helper]
    outer = glue(f"def around({', '.join(around)}):\n    INNER", program.function, INNER=[bare])
    module = ast.fix_missing_locations(ast.Module(outer, []))
    names: dict[str, Any] = {}
    exec(compile(module, program.origin.file, "exec", dont_inherit=True), {}, names)
    code = next(
        const
        for const in names["around"].__code__.co_consts
        if isinstance(const, types.CodeType) and const.co_name == program.name
    )
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells[helper] = types.CellType(call)
    made = types.FunctionType(
        code,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        tuple(cells[name] for name in code.co_freevars),
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _bare(arguments: ast.arguments) -> ast.arguments:
    """Parameters without annotations, with defaults that are put in later."""
    made = copy.deepcopy(arguments)
    for one in ast.walk(made):
        if isinstance(one, ast.arg):
            one.annotation = None
    made.defaults = [ast.Constant(None) for _ in made.defaults]
    made.kw_defaults = [None if d is None else ast.Constant(None) for d in made.kw_defaults]
    return made


def _region(region: Region, fresh: FreshNames, helper: str, function: str) -> list[ast.stmt]:
    before: list[ast.stmt] = []
    behind: list[ast.stmt] = []
    turn: list[ast.stmt] = list(region.prologue)
    for stage in region.stages:
        resource = stage.resource or fresh.free("resource")
        if "on_init" in stage.options:
            before += glue(f"{resource} = HOOK()", stage.node, HOOK=stage.options["on_init"])
        for hook in ORDER:
            if hook in stage.options:
                made = resource if "on_init" in stage.options else "None"
                name = f"everstream/called/{function}/{stage.name}"
                known = {"on_exit": made, "on_snapshot": "1", "on_commit": repr(name)}
                known["before_snapshot"] = f"{name!r}, {made}"
                text = f"{helper}(HOOK, {known[hook]})"
                behind += glue(text, stage.node, HOOK=stage.options[hook])
        turn += _stage(stage, fresh)
    loop = copy.copy(region.loop)
    loop.body = turn
    return [*before, loop, *behind]


def _stage(stage: StageBlock, fresh: FreshNames) -> list[ast.stmt]:
    hook = stage.options.get("on_error")
    if hook is None or (isinstance(hook, ast.Constant) and hook.value == "fail"):
        return stage.body
    item, error = fresh.free("item"), fresh.free("error")
    reaction: list[ast.stmt] = []
    if not isinstance(hook, ast.Constant):
        reaction = glue(f"HOOK({error}, {item})", stage.node, HOOK=hook)
    return glue(
        f"{item} = RECORD\ntry:\n    BODY\nexcept Exception as {error}:\n    SAID\n    continue",
        stage.node,
        RECORD=packed(stage.inputs, stage.node),
        BODY=stage.body,
        SAID=reaction,
    )
