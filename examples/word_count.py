"""Counts words: the first program to run. Whenever a count changes, the sink gets the new one.

Run it with `everstream run examples/word_count.py`, or as a Python program. Its paths are relative
to the folder you run it from: the repository's root and `examples/` both have `books/`.
"""

import everstream as es

pipeline = es.Pipeline("word-count")
(
    pipeline.source(es.TextLines("books/*.txt"), shards=2)
    .flat_map(str.split)
    .key_by(lambda word: word)
    # (word, count) whenever it changes
    .fold(init=int, update=lambda count, word: count + 1, shards=2)
    .sink(es.JsonLines("counts/"))
)
if __name__ == "__main__":
    pipeline.run(checkpoint=es.Coordinated(every="5s"), store="checkpoints/")
