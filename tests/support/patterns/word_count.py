"""Map and reduce: words are counted where the text is, and brought together by first letter."""

from collections import Counter

import ray

TEXTS = [
    "the quick brown fox jumps over the lazy dog",
    "the dog sleeps and the fox runs",
    "a quick test of a quick count",
]
REDUCERS = 3


@ray.remote(num_returns=REDUCERS)
def count(text: str) -> list[Counter]:
    shares: list[Counter] = [Counter() for _ in range(REDUCERS)]
    for word in text.split():
        shares[ord(word[0]) % REDUCERS][word] += 1
    return shares


@ray.remote
def merge(*shares: Counter) -> Counter:
    return sum(shares, Counter())


ray.init()
mapped = [count.remote(text) for text in TEXTS]
reduced = [merge.remote(*[shares[i] for shares in mapped]) for i in range(REDUCERS)]
total: Counter = sum(ray.get(reduced), Counter())
for word, number in sorted(total.items(), key=lambda item: (-item[1], item[0]))[:5]:
    print(word, number)
print(sum(total.values()), "words")
