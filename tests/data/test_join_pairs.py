"""Joined pairs: every pair once per pass, sides together, all sizes, reproducible by seed."""

from collections import Counter

from regard.data.pairs import ParallelTexts, join_pairs

PAIRS = ParallelTexts.from_texts([f"s{index}" for index in range(3000)], [f"t{index}" for index in range(3000)])


def test_a_pass_uses_every_pair_once_and_keeps_sides_together() -> None:
    rows = list(join_pairs(PAIRS, max_pairs=5, passes=2, seed=3))
    counts = Counter(word for source, _ in rows for word in source.split())
    assert set(counts.values()) == {2}
    assert len(counts) == 3000
    assert all(source.replace("s", "t") == target for source, target in rows)


def test_all_sizes_are_equally_frequent_and_passes_differ() -> None:
    rows = list(join_pairs(PAIRS, max_pairs=5, passes=2, seed=3))
    sizes = Counter(len(source.split()) for source, _ in rows)
    assert set(sizes) == {1, 2, 3, 4, 5}
    assert min(sizes.values()) > 0.8 * max(sizes.values())
    pass_length = len(list(join_pairs(PAIRS, max_pairs=5, seed=3)))
    assert rows[:pass_length] == list(join_pairs(PAIRS, max_pairs=5, seed=3))
    assert not set(rows[:pass_length]) & {row for row in rows[pass_length:] if " " in row[0]}
    assert rows != list(join_pairs(PAIRS, max_pairs=5, passes=2, seed=4))


def test_one_pair_per_row_is_the_data_in_another_order() -> None:
    rows = list(join_pairs(PAIRS, max_pairs=1))
    assert sorted(rows) == sorted(zip(PAIRS.source, PAIRS.target, strict=True))
    assert rows != list(zip(PAIRS.source, PAIRS.target, strict=True))
