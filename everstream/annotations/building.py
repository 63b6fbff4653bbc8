"""Generates Python code from a checked program: the code that runs and that `annotate` shows.

Each region becomes a subclass of `LoopSource` and each stage one of `StageOperator`. The code before
and after the regions becomes two functions: `make` returns the pipeline, `finish` returns the value
of the user's function. User code is inserted unchanged, with its line numbers.
"""

import ast
import copy
from collections.abc import Sequence
from dataclasses import dataclass

from everstream.annotations import two_phase
from everstream.annotations.checking import leaves_items_out
from everstream.annotations.flow import NameUsage
from everstream.annotations.glue import FreshNames, glue, packed
from everstream.annotations.program import Program, Region, StageBlock
from everstream.annotations.stage import KEYED, RESULT

SUPPORT = (
    *("AnnotatedPipeline", "Collect", "Keyed", "LoopSource", "StageOperator"),
    *("InOrder", "StageSink", "frozen", "islice"),
)
"""What generated code uses of ours, and of Python's."""


@dataclass(frozen=True)
class Generated:
    """The statements of a module, and what its two functions are called."""

    body: list[ast.stmt]
    make: str
    aliases: dict[str, str]
    """What generated code calls our support."""


def build(program: Program) -> Generated:
    return _Builder(program).build()


class _Builder:
    def __init__(self, program: Program) -> None:
        self.program = program
        used = {n.id for n in ast.walk(program.function) if isinstance(n, ast.Name)}
        self.fresh = FreshNames({*program.names, *used, program.name})
        self.support = {name: self.fresh.free(name) for name in SUPPORT}
        self.classes: dict[int | str, str] = {}

    def build(self) -> Generated:
        body: list[ast.stmt] = []
        for region in self.program.regions:
            body += self._source(region)
            for stage in region.stages:
                body += self._operator(stage)
        finish = self.fresh.free("finish")
        if self.program.after:
            body += self._finish(finish)
        make = self.program.name
        body += self._make(make, finish)
        return Generated(body, make, self.support)

    # The source.

    def _source(self, region: Region) -> list[ast.stmt]:
        at = region.loop
        name = self.classes[region.name] = self.fresh.free(class_name(region.name, "Source"))
        kind = "for" if isinstance(region.loop, ast.For) else "while"
        head = ast.unparse(region.head)
        over = f" {ast.unparse(region.loop.target)} in" if isinstance(region.loop, ast.For) else ""
        methods: list[ast.stmt] = []
        if isinstance(region.loop, ast.For):
            owner = self.fresh.local("self")["self"]
            methods += glue(
                f"def over({owner}):\n    NAMES\n    return HEAD",
                at,
                NAMES=self._given(self._read_by([region.head], region.given), at, owner),
                HEAD=region.head,
            )
        methods += self._take(region)
        return glue(
            f"class NAME(BASE):\n    {self._shown_source(region)!r}\n"
            f"    loop = {f'{kind}{over} {head}'!r}\n    STATE\n    METHODS",
            at,
            NAME=name,
            BASE=self.support["LoopSource"],
            STATE=glue(f"state = {tuple(region.state)!r}", at) if region.state else [],
            METHODS=methods,
        )

    def _shown_source(self, region: Region) -> str:
        parts = [lines_text(region.loop, region.stages[0].node)]
        return listed(parts, Given=region.given, State=region.state, Out=region.outputs)

    def _take(self, region: Region) -> list[ast.stmt]:
        """One method that turns the loop a number of times; none where each item is just taken."""
        target = region.loop.target if isinstance(region.loop, ast.For) else None
        alone = isinstance(target, ast.Name) and region.outputs == [target.id]
        if alone and not region.prologue:
            return []
        at: ast.AST = region.loop
        w = self.fresh.local("self", "items", "want", "kept", "taken", "turns", "ended")
        skips = leaves_items_out(region)
        prologue = Breaks(w["ended"]).over(region.prologue)
        record = self._record(region.outputs, region.state, region.stages[0].node)
        turn: list[ast.stmt] = []
        if skips:
            turn += glue(f"{w['turns']} += 1", at)
        turn += prologue + glue(f"{w['taken']}.append(RECORD)", at, RECORD=record)
        constants = self._read_by([*region.prologue], region.given)
        if isinstance(region.loop, ast.For):
            loop = glue(
                f"for TARGET in ISLICE({w['items']}, {w['want']}):\n    TURN",
                at,
                ISLICE=self.support["islice"],
                TURN=turn,
            )
            assert isinstance(loop[0], ast.For) and target is not None
            loop[0].target = target
        else:
            constants = region.given
            stop = glue(
                f"if not COND:\n    {w['ended']} = True\n    break", at, COND=region.loop.test
            )
            if isinstance(region.loop.test, ast.Constant) and region.loop.test.value:
                stop = []
            loop = glue(f"for _ in range({w['want']}):\n    TURN", at, TURN=[*stop, *turn])
        turns = w["turns"] if skips else f"len({w['taken']})"
        ended = w["ended"]
        if isinstance(region.loop, ast.For):
            ended = f"{w['ended']} or {turns} < {w['want']}"
        return glue(
            f"def take({w['self']}, {w['items']}, {w['want']}, {w['kept']}):\n"
            "    NAMES\n    STATE\n"
            f"    {w['taken']} = []\n    TURNS\n    {w['ended']} = False\n"
            f"    LOOP\n    KEEP\n    return ({w['taken']}, {turns}, {ended})",
            at,
            NAMES=self._given(constants, at, w["self"]),
            STATE=[s for n in region.state for s in glue(f"{n} = {w['kept']}[{n!r}]", at)],
            TURNS=glue(f"{w['turns']} = 0", at) if skips else [],
            LOOP=loop,
            KEEP=[s for n in region.state for s in glue(f"{w['kept']}[{n!r}] = {n}", at)],
        )

    def _read_by(self, nodes: Sequence[ast.AST], given: Sequence[str]) -> list[str]:
        reads = NameUsage.of(nodes, self.program.names).reads
        return [name for name in given if name in reads]

    def _given(self, names: Sequence[str], at: ast.AST, owner: str) -> list[ast.stmt]:
        return [s for n in names for s in glue(f"{n} = {owner}.given[{n!r}]", at)]

    def _record(self, names: Sequence[str], state: Sequence[str], at: ast.AST) -> ast.expr:
        """The outgoing record; state is frozen, because it changes while the record travels."""
        record = packed(names, at)
        return Freezing(state, self.support["frozen"]).visit(record) if state else record

    # The stages.

    def _operator(self, stage: StageBlock) -> list[ast.stmt]:
        at = stage.node
        name = self.classes[stage.number] = self.fresh.free(class_name(stage.name, ""))
        declared: list[ast.stmt] = []
        if stage.state:
            declared += glue(f"state = {tuple(stage.state)!r}", at)
        if stage.key is not None:
            declared += glue(f"keyed = {tuple(stage.state)!r}", at)
            for kept in stage.state:
                declared += glue(f"{KEYED}{kept} = KEYED()", at, KEYED=self.support["Keyed"])
        if stage.collected:
            declared += glue(f"collected = {tuple(stage.collected)!r}", at)
        return glue(
            f"class NAME(BASE):\n    {shown(stage)!r}\n    DECLARED\n    PROCESS",
            at,
            NAME=name,
            BASE=self.support["StageOperator"],
            DECLARED=declared,
            PROCESS=self._process(stage),
        )

    def _process(self, stage: StageBlock) -> list[ast.stmt]:
        at = stage.node
        w = self.fresh.local("self", "batch", "ctx", "item", "out", "error")
        before = self._given(stage.given, at, w["self"])
        after: list[ast.stmt] = []
        for kept in stage.state:
            if stage.key is not None:
                before += glue(f"{kept} = {w['self']}.{KEYED}{kept}", at)
            else:
                before += glue(f"{kept} = {w['self']}.recall({kept!r}, {w['ctx']})", at)
                after += glue(f"{w['ctx']}.state.put({kept!r}, {kept})", at)
        if stage.resource is not None:
            before += glue(f"{stage.resource} = {w['self']}.resource", at)
        at_once = self._at_once(stage)
        if at_once is not None:
            text = f"{w['ctx']}.emit_batch([RECORD for TARGET in {w['ctx']}.reading({w['batch']})])"
            made = glue(text, at, RECORD=at_once)
            for node in (inner for one in made for inner in ast.walk(one)):
                if isinstance(node, ast.comprehension) and _is_placeholder(node.target):
                    node.target = packed(stage.inputs, at, ast.Store())
            return glue(
                f"def process_batch({w['self']}, {w['batch']}, {w['ctx']}):\n    BEFORE\n    MADE",
                at,
                BEFORE=before,
                MADE=made,
            )
        turn: list[ast.stmt] = list(stage.body)
        gives = bool(stage.outputs) or self._feeds(stage)
        if gives:
            before += glue(f"{w['out']} = []", at)
            state = stage.state if stage.key is None else []
            record = self._record(stage.outputs, state, at)
            turn += glue(f"{w['out']}.append(RECORD)", at, RECORD=record)
            after += glue(f"{w['ctx']}.emit_batch({w['out']})", at)
        if "on_error" in stage.options:
            turn = glue(
                f"try:\n    TURN\nexcept Exception as {w['error']}:\n"
                f"    {w['self']}.leave_out({w['item']}, {w['error']}, {w['ctx']})",
                at,
                TURN=turn,
            )
            turn = self._unpacked(stage, w["item"]) + turn
            target: ast.expr = packed([w["item"]], at, ast.Store())
        else:
            target = packed(stage.inputs, at, ast.Store())
        loop = glue(f"for TARGET in {w['ctx']}.reading({w['batch']}):\n    TURN", at, TURN=turn)
        assert isinstance(loop[0], ast.For)
        loop[0].target = target
        return glue(
            f"def process_batch({w['self']}, {w['batch']}, {w['ctx']}):\n"
            "    BEFORE\n    LOOP\n    AFTER",
            at,
            BEFORE=before,
            LOOP=loop,
            AFTER=after,
        )

    def _at_once(self, stage: StageBlock) -> ast.expr | None:
        """The outgoing record, if the stage only computes one value: a list comprehension is
        faster than appending."""
        body = stage.body[0]
        if len(stage.body) > 1 or stage.state or "on_error" in stage.options:
            return None
        if not isinstance(body, ast.Assign | ast.AnnAssign) or body.value is None:
            return None
        target = body.targets[0] if isinstance(body, ast.Assign) else body.target
        if isinstance(body, ast.Assign) and len(body.targets) > 1:
            return None
        if not isinstance(target, ast.Name) or stage.outputs.count(target.id) != 1:
            return None
        if any(isinstance(node, ast.NamedExpr) for node in ast.walk(body.value)):
            return None
        return Putting(target.id, body.value).put(packed(stage.outputs, stage.node))

    def _unpacked(self, stage: StageBlock, item: str) -> list[ast.stmt]:
        if not stage.inputs:
            return []
        assign = glue(f"TARGET = {item}", stage.node)
        assert isinstance(assign[0], ast.Assign)
        assign[0].targets = [packed(stage.inputs, stage.node, ast.Store())]
        return assign

    def _feeds(self, stage: StageBlock) -> bool:
        """Whether another stage comes behind: it gets an item even if there is nothing in it."""
        region = next(r for r in self.program.regions if stage in r.stages)
        return stage is not region.stages[-1]

    # Before and behind the regions.

    def _finish(self, name: str) -> list[ast.stmt]:
        reads = self._finish_names()
        at = self.program.after[0]
        text = f"def {name}({', '.join(reads)}):\n    BODY"
        return glue(text, at, BODY=self.program.after)

    def _finish_names(self) -> list[str]:
        return [*NameUsage.of(self.program.after, self.program.names).reads]

    def _make(self, name: str, finish: str) -> list[ast.stmt]:
        at = self.program.function
        pipeline = self.fresh.free("pipeline")
        body: list[ast.stmt] = []
        building: list[ast.stmt] = []
        results: list[str] = []
        for region in self.program.regions:
            body += region.before
            building += self._flow(region, pipeline, results)
        building += self._result_sink(results)
        if self.program.after:
            listed = ", ".join(f"{n!r}: {n}" for n in self._finish_names())
            building += glue(f"{pipeline}.returns({finish}, {{{listed}}})", at)
        start = glue(f"{pipeline} = PIPELINE({self.program.name!r})", at, **self._our())
        made = glue(
            f"def {name}({', '.join(self.program.parameters)}):\n    BODY\n    return {pipeline}",
            at,
            BODY=[*body, *start, *building],
        )
        return made

    def _our(self) -> dict[str, str]:
        return {"PIPELINE": self.support["AnnotatedPipeline"], "COLLECT": self.support["Collect"]}

    def _flow(self, region: Region, pipeline: str, results: list[str]) -> list[ast.stmt]:
        stream = self.fresh.free("stream")
        values = self._values([*region.given, *region.state])
        batch = ", batch=BATCH" if "batch" in region.options else ""
        built = glue(
            f"{stream} = {pipeline}.source(SOURCE({values}{batch}), name={region.name!r})",
            region.node,
            SOURCE=self.classes[region.name],
            **({"BATCH": region.options["batch"]} if batch else {}),
        )
        for stage in region.stages:
            built += self._attached(stage, stream)
            if stage.collected:
                results.append(f"{stream}.side_output({RESULT!r})")
                if stage is not region.stages[-1]:
                    kept = self.fresh.free("result")
                    built += glue(f"{kept} = {results.pop()}", stage.node)
                    results.append(kept)
        last = region.stages[-1]
        if last.outputs:
            built += self._output_sink(last, stream)
        elif not last.collected and not last.two_phase:
            results.append(f"{stream}.side_output({RESULT!r})")
        return built

    def _values(self, names: Sequence[str]) -> str:
        if not names:
            return ""
        listed = ", ".join(f"{name!r}: {name}" for name in dict.fromkeys(names))
        return f"{{{listed}}}"

    def _attached(self, stage: StageBlock, stream: str) -> list[ast.stmt]:
        at = stage.node
        built: list[ast.stmt] = []
        if stage.sorted_before:
            options = f"name={f'before-{stage.name}'!r}, ordered=True"
            text = f"{stream} = {stream}.process({self.support['InOrder']}(), {options})"
            built += glue(text, at)
        keyed = ""
        if stage.key is not None and stage.replicas != 1:
            key, item = self.fresh.free("key"), self.fresh.local("item")["item"]
            built += glue(
                f"def {key}({item}):\n    UNPACK\n    return KEY",
                at,
                UNPACK=self._unpacked(stage, item),
                KEY=stage.key,
            )
            keyed = f".key_by({key})"
        holes: dict[str, ast.expr] = {}
        hooks = [self._values([*stage.given, *stage.state])] if stage.given or stage.state else []
        for hook in ("on_init", "on_exit", "on_snapshot", "on_recover", "on_error"):
            given = stage.options.get(hook)
            if given is not None and not isinstance(given, ast.Constant):
                hooks.append(f"{hook}={hook.upper()}")
                holes[hook.upper()] = given
        made, verb = f"{self.classes[stage.number]}({', '.join(hooks)})", f"{keyed}.process"
        if stage.two_phase:
            phases = [one for one in two_phase.OPTIONS if one in stage.options]
            holes |= {one.upper(): stage.options[one] for one in phases}
            given_phases = ", ".join(f"{one}={one.upper()}" for one in phases)
            made, verb = f"{self.support['StageSink']}({made}, {given_phases})", ".sink"
        options = f"name={stage.name!r}, shards=1"
        if "replicate" in stage.options:
            options = f"name={stage.name!r}, shards=SHARDS"
            holes["SHARDS"] = stage.options["replicate"]
        word = stage.options.get("on_error")
        if isinstance(word, ast.Constant):
            options += f", on_error={word.value!r}"
        if stage.kept_in_order:
            options += ", ordered=True"
        return built + glue(f"{stream} = {stream}{verb}({made}, {options})", at, **holes)

    def _output_sink(self, last: StageBlock, stream: str) -> list[ast.stmt]:
        number = next(i for i, r in enumerate(self.program.regions) if last in r.stages)
        name = "output" if number == 0 else f"output-{number + 1}"
        given = last.options.get("sink")
        ordered = ", ordered=True" if last.kept_in_order or last.output_in_order else ""
        holes = {"SINK": given} if given is not None else {}
        sink = "SINK" if given is not None else f"{self.support['Collect']}()"
        return glue(f"{stream}.sink({sink}, name={name!r}{ordered})", last.node, **holes)

    def _result_sink(self, results: list[str]) -> list[ast.stmt]:
        if not results:
            return []
        first, *others = results
        union = f".union({', '.join(others)})" if others else ""
        text = f"{first}{union}.sink(COLLECT(), name={RESULT!r}, shards=1)"
        return glue(text, self.program.function, **self._our())


def _is_placeholder(target: ast.expr) -> bool:
    """Whether it is ours; a comprehension of the user's keeps its own names."""
    return isinstance(target, ast.Name) and target.id == "TARGET"


class Breaks(ast.NodeTransformer):
    """Lets a break of the loop say that the loop has ended."""

    def __init__(self, ended: str) -> None:
        self.ended = ended

    def over(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        return [s for one in statements for s in as_list(self.visit(copy.deepcopy(one)))]

    def visit_Break(self, node: ast.Break) -> list[ast.stmt]:
        return [*glue(f"{self.ended} = True", node), node]

    def _leave(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _leave

    def visit_For(self, node: ast.For | ast.While) -> ast.AST:
        node.orelse = [s for one in node.orelse for s in as_list(self.visit(one))]
        return node

    visit_While = visit_For


class Putting(ast.NodeTransformer):
    """Puts an expression in the place of a name in a record."""

    def __init__(self, name: str, value: ast.expr) -> None:
        self.name = name
        self.value = value

    def put(self, record: ast.expr) -> ast.expr:
        made: ast.expr = self.visit(record)
        return made

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.value if node.id == self.name else node


class Freezing(ast.NodeTransformer):
    def __init__(self, names: Sequence[str], frozen: str) -> None:
        self.names = names
        self.frozen = frozen

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self.names:
            return node
        call = ast.Call(ast.Name(self.frozen, ast.Load()), [node], [])
        return ast.fix_missing_locations(ast.copy_location(call, node))


def as_list(made: ast.AST | list[ast.stmt]) -> list[ast.stmt]:
    return made if isinstance(made, list) else [made]  # type: ignore[list-item]


def class_name(name: str, otherwise: str) -> str:
    parts = [part for part in name.replace(".", "-").replace("_", "-").split("-") if part]
    made = "".join(part[:1].upper() + part[1:] for part in parts)
    return made if made.isidentifier() else (otherwise or "Stage") + made


def shown(stage: StageBlock) -> str:
    """The inputs and outputs of a stage, for readers of the code."""
    keyed = ast.unparse(stage.key) if stage.key is not None else ""
    parts = [lines_text(stage.node)]
    text = listed(parts, Given=stage.given, In=stage.inputs, State=stage.state, Out=stage.outputs)
    return f"{text} Key: {keyed}." if keyed else text


def listed(parts: list[str], **names: Sequence[str]) -> str:
    return " ".join(
        [
            *parts,
            *(
                f"{what}: {', '.join(listed_names)}."
                for what, listed_names in names.items()
                if listed_names
            ),
        ]
    )


def lines_text(first: ast.stmt, until: ast.stmt | None = None) -> str:
    end = first.end_lineno if until is None else until.lineno - 1
    return f"Line {first.lineno}." if end == first.lineno else f"Lines {first.lineno} to {end}."
