"""Which names travel with the items, which are given once, which are state; and what cannot work.

Inputs and outputs that were left out are found here: a stage gives on what later stages read.
Those that were written are held against what the code does.
"""

import ast
from collections.abc import Iterable

from everstream.annotations.flow import NameUsage, loop_exits
from everstream.annotations.problems import AnnotationError
from everstream.annotations.program import Program, Region, StageBlock


def check(program: Program) -> None:
    """Fill in what each region and stage takes and gives; raise for what cannot work."""
    before = NameUsage(program.names)
    for name in program.parameters:
        before.bind(name, program.function)
    _Names(program)
    for region in program.regions:
        before.walk(region.before)
        _RegionCheck(program, region, set(before.writes)).run()
    _check_after(program)
    for region in program.regions:
        check_shared(program, region)


class _Names:
    """Names of operators, each used once."""

    def __init__(self, program: Program) -> None:
        seen: set[str] = set()
        for region in program.regions:
            marked: list[Region | StageBlock] = [region, *region.stages]
            for named in marked:
                if named.name in seen:
                    raise program.origin.problem(
                        named.options.get("name", named.node),
                        f"the name '{named.name}' is used twice",
                        "State is found by its operator's name: give each its own.",
                    )
                seen.add(named.name)


class _RegionCheck:
    def __init__(self, program: Program, region: Region, outer: set[str]) -> None:
        self.program = program
        self.region = region
        self.outer = outer
        """Names that have a value before the region."""
        self.owner = {name: stage for stage in region.stages for name in stage.state}
        self.flows = {s.number: self._flow(s) for s in region.stages}
        self.loop = self._loop_flow()
        self.made = {*self.loop.writes} - {*region.state}
        """Names that the loop or a stage assigns for each item."""
        for flow, stage in zip(self.flows.values(), region.stages, strict=True):
            self.made |= {*flow.writes} - {*stage.state}

    def problem(self, at: ast.AST, problem: str, fix: str) -> AnnotationError:
        return self.program.origin.problem(at, problem, fix)

    def run(self) -> None:
        self._check_state()
        self._check_loop()
        arriving = [n for n in self.loop.writes if n in self.loop.assigned]
        arriving += self.region.state
        perhaps = {*self.loop.writes} - {*arriving}
        come: list[list[str]] = []
        for stage in self.region.stages:
            self._check_writes(stage)
            self._check_reads(stage, arriving, perhaps)
            come.append(list(arriving))
            arriving, perhaps = self._behind(stage, arriving, perhaps)
        self._check_sinks()
        self._check_two_phase()
        self._pass_on(come)
        for stage in self.region.stages:
            self._check_order(stage)
        self._keep_order()
        self._check_given()

    def _flow(self, stage: StageBlock) -> NameUsage:
        flow = NameUsage(self.program.names)
        if stage.key is not None:
            flow.visit(stage.key)
        if stage.resource is not None:
            flow.bind(stage.resource, stage.node)
        flow.walk(stage.body)
        return flow

    def _loop_flow(self) -> NameUsage:
        flow = NameUsage(self.program.names)
        flow.visit(self.region.head)
        flow.walk([*self.region.targets, *self.region.prologue])
        return flow

    # The loop.

    def _check_loop(self) -> None:
        for name, at in self.loop.reads.items():
            if name in self.region.state:
                continue
            if name in self.owner:
                raise self._foreign(name, at)
            if name in self.loop.writes:
                raise self.problem(
                    at,
                    f"'{name}' is read before this turn of the loop has assigned it",
                    f"Assign it before the region and say es.ToStream(state=[{name}]): then it is "
                    "kept from turn to turn, and saved.",
                )
            if name not in self.outer:
                fix = "Assign it before the region."
                if name in self.made:
                    fix = "Stages run elsewhere, and later: compute it before the first stage."
                raise self.problem(at, f"'{name}' has no value here", fix)
        targets = {
            n.id for t in self.region.targets for n in ast.walk(t) if isinstance(n, ast.Name)
        }
        for name, at in self.loop.writes.items():
            if name in self.owner:
                raise self._foreign(name, at)
            if name in self.outer and name not in self.region.state and name not in targets:
                raise self.problem(
                    at,
                    f"'{name}' is from before the region, and the loop assigns it",
                    f"Say es.ToStream(state=[{name}]), so that it is saved with the loop's "
                    "position, or use another name.",
                )

    def _foreign(self, name: str, at: ast.AST) -> AnnotationError:
        owner = self.owner[name].name
        return self.problem(
            at,
            f"'{name}' is the state of '{owner}', and only '{owner}' can see it",
            f"Read it behind '{owner}', or behind the region.",
        )

    # State.

    def _check_state(self) -> None:
        seen = dict.fromkeys(self.region.state, self.region.name)
        for name in self.region.state:
            self._check_first_value(name, self.region.options["state"])
        for stage in self.region.stages:
            at = stage.options.get("state", stage.node)
            for name in stage.state:
                self._check_first_value(name, at)
                if name in seen:
                    raise self.problem(
                        at,
                        f"'{name}' is the state of '{seen[name]}' already",
                        "State belongs to one stage.",
                    )
                seen[name] = stage.name
                flow = self.flows[stage.number]
                if name not in flow.reads and name not in flow.writes:
                    raise self.problem(
                        at, f"the stage does not use its state '{name}'", "Take it out of state=."
                    )
            self._check_replicas(stage)

    def _check_first_value(self, name: str, at: ast.AST) -> None:
        if name not in self.outer:
            raise self.problem(
                at,
                f"the state '{name}' has no first value",
                f"Assign it before the region, as in `{name} = 0`.",
            )

    def _check_replicas(self, stage: StageBlock) -> None:
        given = stage.options.get("replicate")
        replicas = stage.replicas
        if given is not None and isinstance(given, ast.Constant) and (replicas or 0) < 1:
            raise self.problem(given, "replicate= takes a number from 1 up", "Say replicate=2.")
        if stage.state and stage.key is None and replicas != 1:
            assert given is not None
            raise self.problem(
                given,
                f"replicas cannot share the state {_listed(stage.state)}",
                "Say key=... if each item needs only its key's part of a dict, or drop replicate=.",
            )
        if stage.key is not None and not stage.state:
            raise self.problem(
                stage.key, "a key without state", "Say state=[...], or drop the key."
            )

    # Stages.

    def _check_writes(self, stage: StageBlock) -> None:
        for name, at in self.flows[stage.number].writes.items():
            if name in stage.state:
                continue
            if name in self.owner:
                raise self._foreign(name, at)
            if name in self.region.state:
                raise self.problem(
                    at,
                    f"'{name}' is the state of the loop, and a stage assigns it",
                    "The loop is ahead by then: assign it before the first stage, or use another "
                    "name here.",
                )
            if name in self.outer and name not in self.loop.writes:
                raise self.problem(
                    at,
                    f"'{name}' is from before the region, and no clause declares that this stage "
                    "changes it",
                    f"Say state=[{name}] to keep it from item to item, or use another name.",
                )

    def _check_reads(self, stage: StageBlock, arriving: list[str], perhaps: set[str]) -> None:
        listed = names_in(stage, "inputs")
        for name, at in listed.items():
            if name not in arriving and name not in self.outer:
                raise self._missing(stage, name, at, arriving, perhaps)
        for name, at in self.flows[stage.number].reads.items():
            if name in stage.state:
                continue
            if name in self.owner and name not in arriving:
                raise self._foreign(name, at)
            if name not in arriving and (name in self.made or name not in self.outer):
                raise self._missing(stage, name, at, arriving, perhaps)
            if "inputs" in stage.options and name in arriving and name not in listed:
                raise self.problem(
                    at,
                    f"'{name}' is read here, but it is not among the stage's inputs",
                    f"Say inputs=[{', '.join([*listed, name])}], or leave inputs out: then they "
                    "are found.",
                )

    def _missing(
        self, stage: StageBlock, name: str, at: ast.AST, arriving: list[str], perhaps: set[str]
    ) -> AnnotationError:
        if name in perhaps:
            return self.problem(
                at,
                f"'{name}' does not arrive for certain: it is assigned only on some ways",
                "Give it a value in every case, for example before the `if`.",
            )
        before = [s for s in self.region.stages if s.number < stage.number]
        for earlier in reversed(before):
            if "outputs" in earlier.options and name in self.made:
                given = _listed(names_in(earlier, "outputs")) or "nothing"
                return self.problem(
                    at,
                    f"'{name}' does not arrive: '{earlier.name}' outputs {given}",
                    f"Add {name} to its outputs=[...], or leave outputs out: then they are found.",
                )
        if name in self.made:
            return self.problem(
                at,
                f"'{name}' is read before this item has assigned it",
                f"Assign it in an earlier stage, or, to keep it from item to item, give it a value "
                f"before the region and say state=[{name}].",
            )
        arrive = f"there are {_listed(arriving)}" if arriving else "nothing arrives"
        return self.problem(
            at,
            f"'{name}' does not arrive: {arrive}",
            "Assign it in the loop, in an earlier stage or before the region.",
        )

    def _behind(
        self, stage: StageBlock, arriving: list[str], perhaps: set[str]
    ) -> tuple[list[str], set[str]]:
        """The names there are behind a stage, and those there may be."""
        flow = self.flows[stage.number]
        made = [n for n in flow.writes if n in flow.assigned and n not in arriving]
        there = [*arriving, *(n for n in made if n not in stage.state)]
        there += stage.state if stage.key is None else []
        perhaps = (perhaps | {*flow.writes}) - {*there} - {*stage.state}
        listed = names_in(stage, "outputs")
        for name, at in listed.items():
            if name in stage.state and stage.key is not None:
                raise self.problem(
                    at,
                    f"the keyed state '{name}' stays in its stage",
                    "Copy the entry into another name, and output that.",
                )
            if name not in there and name not in self.outer:
                raise self._missing(stage, name, at, there, perhaps)
        if "outputs" in stage.options:
            return [*listed], set()
        return there, perhaps

    def _check_sinks(self) -> None:
        for stage in self.region.stages:
            sink = stage.options.get("sink")
            last = stage is self.region.stages[-1]
            if sink is not None and not (last and names_in(stage, "outputs")):
                raise self.problem(
                    sink,
                    "a sink takes what the last stage outputs",
                    "Say outputs=[...] in the last stage, and sink=... there.",
                )

    def _check_two_phase(self) -> None:
        for stage in self.region.stages:
            options, last = stage.options, stage is self.region.stages[-1]
            if "on_rollback" in options and not stage.two_phase:
                raise self.problem(
                    options["on_rollback"],
                    "on_rollback without before_snapshot and on_commit",
                    "It rolls back what before_snapshot has prepared: say all three.",
                )
            if not stage.two_phase:
                continue
            at = options.get("on_commit", options.get("before_snapshot", stage.node))
            if not {"on_commit", "before_snapshot"} <= options.keys():
                raise self.problem(
                    at,
                    "before_snapshot and on_commit belong together",
                    "One prepares the open transaction under a name, the other commits that name.",
                )
            if not last or names_in(stage, "outputs"):
                raise self.problem(
                    at,
                    "only the last stage commits in two phases, and it has no outputs",
                    "Move what is written outside into a separate stage, the last one.",
                )
            for other, why in NOT_IN_TWO_PHASES.items():
                if other in options:
                    raise self.problem(
                        options[other], f"a stage that commits in two phases has no {other}=", why
                    )

    # What travels.

    def _pass_on(self, come: list[list[str]]) -> None:
        """Backwards: what a stage gives on is what those behind it need."""
        needed: list[str] = []
        for stage, arriving in reversed([*zip(self.region.stages, come, strict=True)]):
            flow = self.flows[stage.number]
            stage.outputs = [*names_in(stage, "outputs")] if "outputs" in stage.options else needed
            passed = {n for n in stage.outputs if n not in flow.assigned and n not in stage.state}
            wanted = {*flow.reads, *passed, *names_in(stage, "inputs")} - {*stage.state}
            needed = [name for name in arriving if name in wanted]
            given = [n for n in [*flow.reads, *passed] if n not in arriving and n in self.outer]
            stage.given = [n for n in dict.fromkeys(given) if n not in stage.state]
        self.region.outputs = needed
        came = needed
        for stage in self.region.stages:
            stage.inputs, came = came, stage.outputs

    def _check_order(self, stage: StageBlock) -> None:
        ordered = stage.options.get("ordered")
        if ordered is not None and not isinstance(ordered, ast.Constant):
            raise self.problem(ordered, "ordered= is True or False", "Write it out.")
        last = stage is self.region.stages[-1] and bool(stage.outputs)
        before = [s for s in self.region.stages if s.number < stage.number + last]
        split = next((s for s in before if s.key is not None and s.replicas != 1), None)
        wanted = bool(ordered.value) if isinstance(ordered, ast.Constant) else None
        if wanted and stage.replicas != 1 and not last:
            assert ordered is not None
            raise self.problem(
                ordered,
                "an ordered stage has no replicas",
                "Drop replicate=, or ordered=True; of a last stage with replicas the outputs can "
                "be ordered: say outputs=[...].",
            )
        if wanted and split is not None:
            assert ordered is not None
            raise self.problem(
                ordered,
                f"the order is lost in '{split.name}', whose items go to the replica of their key",
                "Drop ordered=True, or replicate= there.",
            )
        natural = bool(stage.state) and stage.replicas == 1 and split is None
        stage.kept_in_order = natural if wanted is None else wanted and stage.replicas == 1
        stage.output_in_order = bool(wanted) and stage.replicas != 1

    def _keep_order(self) -> None:
        """On the way to an ordered stage, items of several replicas are put in order at once."""
        until = max((s.number for s in self.region.stages if s.kept_in_order), default=0)
        if self.region.stages[-1].output_in_order:
            until = self.region.stages[-1].number + 1
        before: StageBlock | None = None
        for stage in self.region.stages:
            same = before is not None and _replicas(stage) == _replicas(before)
            if before is not None and stage.number < until and before.replicas != 1 and not same:
                if stage.replicas == 1:
                    stage.kept_in_order = True
                else:
                    stage.sorted_before = True
            before = stage

    def _check_given(self) -> None:
        region = self.region
        reads = [n for n in self.loop.reads if n in self.outer and n not in region.state]
        region.given = [*dict.fromkeys(reads)]
        if "inputs" not in region.options:
            return
        listed = names_in(region, "inputs")
        for name, at in listed.items():
            if name not in self.outer:
                raise self.problem(
                    at,
                    f"'{name}' has no value before the region",
                    "Assign it before, make it a parameter, or take it out of inputs=.",
                )
        used = [self.loop.reads, *(self.flows[s.number].reads for s in region.stages)]
        states = {*region.state, *self.owner}
        for reads_of in used:
            for name, at in reads_of.items():
                constant = name in self.outer and name not in self.made
                if constant and name not in states and name not in listed:
                    raise self.problem(
                        at,
                        f"'{name}' does not arrive: it is not among the inputs of es.ToStream",
                        f"Say es.ToStream(inputs=[{', '.join([*listed, name])}]), or leave inputs "
                        "out: then they are found.",
                    )


NOT_IN_TWO_PHASES = {
    "state": "Keep state in the stage before: what this one knows is in the system it writes to.",
    "key": "Keep state in the stage before: what this one knows is in the system it writes to.",
    "sink": "It is the sink.",
    "on_snapshot": "Use on_commit.",
    "on_recover": "Use on_rollback: it is called after every failure, and when a run begins.",
    "on_error": "An item that raises ends the open transaction: check items in the stage before.",
}
"""Options that make no sense in such a stage -> what to do instead."""


def _check_after(program: Program) -> None:
    """What is read behind a region must have come out of it."""
    owners: dict[str, StageBlock] = {}
    touched: dict[str, Region] = {}
    for region in program.regions:
        if owners or touched:
            inside = [*region.before, region.head, *region.targets, *region.prologue]
            inside += [s for stage in region.stages for s in stage.body]
            for name, at in NameUsage.of(inside, program.names).reads.items():
                if name in owners or name in touched:
                    raise program.origin.problem(
                        at,
                        f"'{name}' is known only when the region before has ended, and all "
                        "regions of a function run at the same time",
                        "Make two annotated functions of it, one for each region.",
                    )
        for stage in region.stages:
            owners |= dict.fromkeys(stage.state, stage)
        inner = NameUsage(program.names)
        inner.walk([*region.targets, *region.prologue])
        for stage in region.stages:
            inner.walk(stage.body)
        touched |= dict.fromkeys([*inner.writes, *region.state], region)
    for name, at in NameUsage.of(program.after, program.names).reads.items():
        if name in owners:
            owners[name].collected.append(name)
        elif name in touched:
            raise program.origin.problem(
                at,
                f"'{name}' does not come out of the region",
                "Only state of a stage does: give it a value before the region, and keep it with "
                f"state=[{name}] in the stage that changes it.",
            )


def names_in(marked: Region | StageBlock, option: str) -> dict[str, ast.AST]:
    """The names in an option that lists some, and where they stand."""
    given = marked.options.get(option)
    if not isinstance(given, ast.List | ast.Tuple):
        return {}
    return {one.id: one for one in given.elts if isinstance(one, ast.Name)}


def _replicas(stage: StageBlock) -> str:
    return ast.dump(stage.options["replicate"]) if "replicate" in stage.options else ""


def leaves_items_out(region: Region) -> bool:
    """Whether the loop continues without having reached its first stage."""
    return any(True for _ in loop_exits(region.prologue, ast.Continue))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


CHANGING = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "insert", "pop"),
    *("popitem", "popleft", "remove", "reverse", "setdefault", "sort", "subtract", "update"),
    *("difference_update", "intersection_update", "symmetric_difference_update"),
}
"""Methods by which lists, sets, dicts and their like are changed in place."""


def check_shared(program: Program, region: Region) -> None:
    """Raise for a change to something that is not the changer's own.

    A stage that changes a name from before the region, with `append`, `x[...] = ` and the like, would
    change its own copy, and the change would be lost. Keyed state is partitioned by key, so a stage
    may only touch the entry of the item's key.
    """
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
