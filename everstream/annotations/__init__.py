"""Sequential code with `with` blocks, read with `ast` and turned into a pipeline."""

from typing import TYPE_CHECKING

from everstream.lazy import lazy_names

if TYPE_CHECKING:
    from everstream.annotations.function import AnnotatedFunction, AnnotatedPipeline, annotated
    from everstream.annotations.loop import LoopSource
    from everstream.annotations.markers import Stage, ToStream
    from everstream.annotations.problems import AnnotationError
    from everstream.annotations.stage import InOrder, StageOperator, frozen

__all__ = [
    "AnnotatedFunction",
    "AnnotatedPipeline",
    "AnnotationError",
    "InOrder",
    "LoopSource",
    "Stage",
    "StageOperator",
    "ToStream",
    "annotated",
    "frozen",
]

_HOMES = {
    "everstream.annotations.function": "AnnotatedFunction AnnotatedPipeline annotated",
    "everstream.annotations.loop": "LoopSource",
    "everstream.annotations.markers": "Stage ToStream",
    "everstream.annotations.problems": "AnnotationError",
    "everstream.annotations.stage": "InOrder StageOperator frozen",
}
"""Module -> what comes from it. The imports above say the same to type checkers."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(globals(), _HOMES)
