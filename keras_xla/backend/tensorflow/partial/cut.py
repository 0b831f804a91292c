"""A graph cut into parts that run one after the other: plain ones and compiled ones in turns."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from graphlib import TopologicalSorter

Needs = Mapping[str, Collection[str]]


def cut(
    needs: Needs, plain: Collection[str], work: Collection[str], light: Collection[str], least: int, most: int
) -> dict[str, int]:
    """The part in which each operation runs: even numbers are plain parts, odd ones compiled parts.

    What nothing plain waits for (a loss, metrics, the optimizer's update) is compiled together, at the end. A compiled
    part that is not worth its call runs plainly, within the plain parts before and after it, which become one.

    Args:
        needs: For each operation, those that must have run before it.
        plain: Operations that must not be compiled.
        work: Operations that count for what a compiled part is worth.
        light: Operations that run plainly if a plain one uses them, rather than hand their results over.
        least: Operations of `work` that a compiled part has at least.
        most: Compiled parts, at most.
    """
    order = tuple(TopologicalSorter(needs).static_order())
    users = defaultdict(list)
    for name in order:
        for needed in needs[name]:
            users[needed].append(name)
    plain = set(plain)
    while True:
        plain |= {name for name in light if any(user in plain for user in users[name])}
        numbers = _numbers(order, needs, users, plain)
        worth = Counter({number: 0 for number in numbers.values() if number % 2})
        worth.update(numbers[name] for name in work if numbers[name] % 2)
        by_worth = sorted(worth, key=lambda number: (worth[number], number))
        small = [number for number in by_worth if worth[number] < least] or by_worth[: max(len(worth) - most, 0)]
        if not small or not plain:  # without neighbours it stays
            return numbers
        plain |= {name for name, number in numbers.items() if number in small}


def _numbers(order: Sequence[str], needs: Needs, users: Mapping[str, list[str]], plain: set[str]) -> dict[str, int]:
    """As early as possible, but for what nothing plain waits for: that comes last."""
    numbers: dict[str, int] = {}
    for name in order:
        compiled = name not in plain
        earliest = (numbers[needed] for needed in needs[name])
        numbers[name] = max((number + (number % 2 != compiled) for number in earliest), default=int(compiled))
    last = 1 + max((numbers[name] for name in plain), default=0)
    ending: set[str] = set()
    for name in reversed(order):
        if name not in plain and ending.issuperset(users[name]):
            ending.add(name)
            numbers[name] = last
    return numbers
