"""A farm: slow work spread over several shards, and a sink that keeps the source's order.

Batches go to the shard that asks first, so a slow one does not hold up the others. The ordered sink
restores the order in which the source emitted the numbers.
"""

import everstream as es

FIRST, LAST = 1_000_000, 1_020_000


def is_prime(number: int) -> bool:
    if number < 2 or number % 2 == 0:
        return number == 2
    return all(number % divisor for divisor in range(3, int(number**0.5) + 1, 2))


pipeline = es.Pipeline("primes")
(
    pipeline.source(es.Range(FIRST, LAST, batch=250), name="numbers")
    .filter(is_prime, name="primes", shards=3)
    .collect(ordered=True)
)
if __name__ == "__main__":
    found = pipeline.run(checkpoint=es.Coordinated(every="1s")).collected()
    print(f"{len(found)} primes from {FIRST} to {LAST}, in order: {found[:5]} ... {found[-1]}")
