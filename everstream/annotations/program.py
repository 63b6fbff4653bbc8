"""An annotated function as data: the code before, in and after its regions."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from everstream.annotations.problems import SourceFile


@dataclass
class StageBlock:
    """One `with es.Stage(...)` and its options."""

    node: ast.With
    number: int
    name: str
    body: list[ast.stmt]
    options: dict[str, ast.expr]
    resource: str | None = None
    """The name behind `as`: what on_init returned."""
    inputs: list[str] = field(default_factory=list)
    """The names in the records that come, in their order."""
    outputs: list[str] = field(default_factory=list)
    """The names in the records that go."""
    state: list[str] = field(default_factory=list)
    given: list[str] = field(default_factory=list)
    """Names from before the region that it reads."""
    collected: list[str] = field(default_factory=list)
    """State that is read behind the regions."""
    kept_in_order: bool = False
    output_in_order: bool = False
    """Of a last stage with replicas: what it outputs is put in order again."""
    sorted_before: bool = False
    """Items are put in order again before they come: replicas before it, and order behind it."""

    @property
    def key(self) -> ast.expr | None:
        return self.options.get("key")

    @property
    def two_phase(self) -> bool:
        """Whether it writes to a system of the user's in transactions that we commit."""
        return "on_commit" in self.options or "before_snapshot" in self.options

    @property
    def replicas(self) -> int | None:
        """As far as it can be read off; None if only a run will tell."""
        given = self.options.get("replicate")
        if given is None:
            return 1
        number = given.value if isinstance(given, ast.Constant) else None
        return number if isinstance(number, int) else None


@dataclass
class Region:
    """One `with es.ToStream(...)`: a loop, the code before its first stage, and its stages."""

    node: ast.With
    loop: ast.For | ast.While
    prologue: list[ast.stmt]
    stages: list[StageBlock]
    options: dict[str, ast.expr]
    name: str
    before: list[ast.stmt] = field(default_factory=list)
    """The statements between this region and the one before, or the function's beginning."""
    state: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    """The names in the records that the loop gives to the first stage."""
    given: list[str] = field(default_factory=list)

    @property
    def targets(self) -> list[ast.AST]:
        return [self.loop.target] if isinstance(self.loop, ast.For) else []

    @property
    def head(self) -> ast.expr:
        """What the loop goes over, or how long."""
        return self.loop.iter if isinstance(self.loop, ast.For) else self.loop.test


@dataclass
class Program:
    """An annotated function."""

    origin: SourceFile
    function: ast.FunctionDef
    names: frozenset[str]
    """All its local names."""
    regions: list[Region]
    after: list[ast.stmt]
    """The code after the last region."""

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def parameters(self) -> list[str]:
        arguments = self.function.args
        listed = [*arguments.posonlyargs, *arguments.args, arguments.vararg]
        return [a.arg for a in [*listed, *arguments.kwonlyargs, arguments.kwarg] if a is not None]

    @property
    def stages(self) -> Sequence[StageBlock]:
        return [stage for region in self.regions for stage in region.stages]
