"""The glossary defines each term once, and has those that the documents rely on."""

import re

from tests.docs.scripts import ROOT

GLOSSARY = (ROOT / "docs" / "reference" / "glossary.md").read_text()
ROWS = re.findall(r"^\| ([a-z][^|]*) \| ([^|]+) \|$", GLOSSARY, re.MULTILINE)[1:]
NEEDED = """
pipeline, operator, stream, source, sink, shard, channel, frame, marker, watermark, chain, epoch,
checkpoint, savepoint, recovery line, generation, manifest, store, lease, permit, credit, spare,
standby, worker, stable, checkpoint strategy, side output, rescale, redistribute, quiesce,
local recovery, heartbeat, supervisor, sampler, fence, commit, replay, roll back, key group
"""


def test_each_term_is_defined_once_in_alphabetical_order() -> None:
    terms = [term for term, _ in ROWS]
    assert terms == sorted(set(terms))
    assert all(text.endswith(".") for _, text in ROWS)


def test_the_terms_of_the_house_are_defined() -> None:
    wanted = {" ".join(term.split()) for term in NEEDED.split(",")}
    assert wanted <= {term for term, _ in ROWS}
