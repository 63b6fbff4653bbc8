"""Refuses changes to values that several processes have copies of, except to declared state.

A stage that changes a name from before the region, with `append`, `x[...] = ` and the like, would
change its own copy, and the change would be lost. Keyed state is partitioned by key, so a stage may
only touch the entry of the item's key.
"""

import ast

from everstream.annotations.program import Program, Region, StageBlock

CHANGING = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "insert", "pop"),
    *("popitem", "popleft", "remove", "reverse", "setdefault", "sort", "subtract", "update"),
    *("difference_update", "intersection_update", "symmetric_difference_update"),
}
"""Methods by which lists, sets, dicts and their like are changed in place."""


def check_shared(program: Program, region: Region) -> None:
    """Raise for a change to something that is not the changer's own."""
    loop: list[ast.AST] = [region.head, *region.prologue]
    _check_changes(program, loop, {*region.given}, "es.ToStream")
    states = {*region.state, *(name for stage in region.stages for name in stage.state)}
    for stage in region.stages:
        foreign = {*stage.given, *states} - {*stage.state}
        _check_changes(program, list(stage.body), foreign, "es.Stage")
        if stage.key is not None:
            _check_keyed(program, stage, stage.key)
    everywhere = [*loop, *(statement for stage in region.stages for statement in stage.body)]
    declared = _global_names(program)
    for node in (inner for outer in everywhere for inner in ast.walk(outer)):
        if (
            isinstance(node, ast.Name)
            and not isinstance(node.ctx, ast.Load)
            and node.id in declared
        ):
            raise program.origin.problem(
                node,
                f"the region assigns '{node.id}', a name from outside the function, which other "
                "processes do not share",
                "Make it a name of the function, and state=[...] of one stage.",
            )


def _global_names(program: Program) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(program.function):
        if isinstance(node, ast.Global | ast.Nonlocal):
            names |= {*node.names}
    return names


def _check_changes(program: Program, nodes: list[ast.AST], given: set[str], where: str) -> None:
    for node in nodes:
        for inner in ast.walk(node):
            changed = _changed(inner)
            if isinstance(changed, ast.Name) and changed.id in given:
                raise program.origin.problem(
                    inner,
                    f"'{changed.id}' is from before the region and is changed here, in a copy "
                    "that no other process sees",
                    f"Say {where}(state=[{changed.id}]); state belongs to one place.",
                )


def _changed(node: ast.AST) -> ast.AST | None:
    """What a node changes in place, if it does."""
    if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(
        node.ctx, ast.Store | ast.Del
    ):
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.value if node.func.attr in CHANGING else None
    return None


def _check_keyed(program: Program, stage: StageBlock, key: ast.expr) -> None:
    wanted = ast.dump(key)
    in_key = {n.id for n in ast.walk(key) if isinstance(n, ast.Name)}
    fine: set[int] = set()
    for node in (inner for statement in stage.body for inner in ast.walk(statement)):
        at = _looked_up(node)
        if at is not None and ast.dump(at[1]) == wanted:
            fine.add(id(at[0]))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in in_key:
            raise program.origin.problem(
                node,
                f"'{node.id}' is part of the key and is assigned here",
                "Compute it in an earlier stage: the key is fixed before the item comes here.",
            )
    for node in (inner for statement in stage.body for inner in ast.walk(statement)):
        if isinstance(node, ast.Name) and node.id in stage.state and id(node) not in fine:
            text = ast.unparse(key)
            raise program.origin.problem(
                node,
                f"a stage with a key may use '{node.id}' only at that key",
                f"Write {node.id}[{text}], {node.id}.get({text}) or {text} in {node.id}.",
            )


def _looked_up(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """(dict, key) if the node looks something up, sets or deletes it by its key."""
    if isinstance(node, ast.Subscript):
        return node.value, node.slice
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        asked = isinstance(node.ops[0], ast.In | ast.NotIn)
        return (node.comparators[0], node.left) if asked else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        return (node.func.value, node.args[0]) if node.func.attr == "get" else None
    return None
