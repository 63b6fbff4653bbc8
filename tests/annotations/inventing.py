"""Annotated programs made up from a seed: loops, stages, state, keys, replicas, all at random."""

import random
from dataclasses import dataclass, field


@dataclass
class Inventor:
    """Writes one program; every choice comes from the seed."""

    chance: random.Random
    lines: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """Names that an item has at this place."""
    fixed: set[str] = field(default_factory=set)
    """Of these, state of the loop, which stages cannot assign."""
    made: int = 0
    scattered: bool = False
    """Items went to the replica of their key: there is no order any more."""
    mixed: bool = False
    """Items went to replicas: those of one key may overtake each other."""

    def program(self) -> str:
        self.region(1)
        if self.chance.random() < 0.3:
            self.region(2)
        head = ["", "@es.annotated", "def main(limit, extra):"]
        values = ", ".join(self.results)
        return "\n".join([*head, *self.lines, f"    return [{values}]", ""])

    def say(self, level: int, text: str) -> None:
        self.lines.append("    " * level + text)

    def fresh(self, wish: str) -> str:
        self.made += 1
        return f"{wish}{self.made}"

    def value(self) -> str:
        """An expression over what the item has."""
        one, two = (self.chance.choice([*self.names, "extra", "3"]) for _ in range(2))
        return f"({one} {self.chance.choice('+-*')} {two}) % 1009"

    def region(self, number: int) -> None:
        self.scattered = self.mixed = False
        stages = self.chance.randint(1, 4)
        setup: list[str] = []
        body = Inventor(self.chance, made=self.made * 100)
        loop_state = self.loop(body, setup)
        for position in range(stages):
            body.stage(setup, position == stages - 1, self.results)
        for line in setup:
            self.say(1, line)
        options = [f"batch={self.chance.randint(1, 9)}"]
        options += [f"state=[{', '.join(loop_state)}]"] if loop_state else []
        self.say(1, f"with es.ToStream({', '.join(options)}):")
        self.lines += body.lines
        self.made += body.made + 1

    def loop(self, body: "Inventor", setup: list[str]) -> list[str]:
        item = body.fresh("n")
        kept: list[str] = []
        if self.chance.random() < 0.3:
            setup.append(f"{item} = 0")
            body.say(2, f"while {item} < limit:")
            body.say(3, f"{item} += 1")
            kept.append(item)
            body.fixed.add(item)
        else:
            over = self.chance.choice(
                ["range(limit)", "[m * 7 for m in range(limit)]", "iter(range(limit))"]
            )
            body.say(2, f"for {item} in {over}:")
        body.names.append(item)
        if self.chance.random() < 0.4:
            last = body.fresh("last")
            setup.append(f"{last} = []")
            body.say(3, f"{last}.append({item})")
            body.say(3, f"del {last}[:-3]")
            kept.append(last)
            total = body.fresh("sum")
            body.say(3, f"{total} = sum({last})")
            body.names.append(total)
        if self.chance.random() < 0.4:
            body.say(3, f"if {body.value()} % 4 == 1:")
            body.say(4, "continue")
        if self.chance.random() < 0.2:
            body.say(3, f"if {item} > limit - 5:")
            body.say(4, "break")
        return kept

    def stage(self, setup: list[str], last: bool, results: list[str]) -> None:
        kind = self.chance.choice(["work", "work", "state", "keyed"])
        if last and kind == "work":
            kind = "keyed" if self.scattered else "state"
        replicas = self.chance.randint(1, 3)
        value = self.value()
        if kind == "work":
            name = self.chance.choice(["", self.names[-1]]) or self.fresh("v")
            name = self.fresh("v") if name in self.fixed else name
            options = f"replicate={replicas}" if replicas > 1 else ""
            self.say(3, f"with es.Stage({options}):")
            if self.chance.random() < 0.3:
                self.say(4, f"if {self.value()} % 5 == 2:")
                self.say(5, "continue")
            self.say(4, f"{name} = {value}")
            self.names += [name] if name not in self.names else []
            self.mixed |= replicas > 1
        elif kind == "state":
            self.counting(setup, results, value)
        else:
            self.by_key(setup, results, value, replicas)

    def counting(self, setup: list[str], results: list[str], value: str) -> None:
        """State without a key: what depends on the order only where there is one."""
        if self.scattered:
            name = self.fresh("total")
            setup.append(f"{name} = 0")
            results.append(name)
            self.say(3, f"with es.Stage(state=[{name}]):")
            self.say(4, f"{name} += {value}")
            return
        name = self.fresh("seen")
        setup.append(f"{name} = []")
        results.append(name)
        self.say(3, f"with es.Stage(state=[{name}]):")
        self.say(4, f"{name}.append({value})")
        if self.chance.random() < 0.5:
            inner = self.fresh("so_far")
            self.say(4, f"{inner} = len({name})")
            self.names.append(inner)

    def by_key(self, setup: list[str], results: list[str], value: str, replicas: int) -> None:
        name, key = self.fresh("by_key"), f"{self.names[-1]} % {self.chance.randint(2, 5)}"
        results.append(f"dict({name})")
        setup.append(f"{name} = {self.chance.choice(['{}', '{0: 5, 1: 1}'])}")
        self.say(3, f"with es.Stage(state=[{name}], key={key}, replicate={replicas}):")
        if self.mixed or self.scattered:
            self.say(4, f"{name}[{key}] = {name}.get({key}, 0) + {value}")
        else:
            self.say(4, f"{name}[{key}] = ({name}.get({key}, 0) * 31 + {value}) % 10007")
            if self.chance.random() < 0.3:
                self.say(4, f"if {name}[{key}] % 3 == 0:")
                self.say(5, f"del {name}[{key}]")
        self.scattered |= replicas > 1


def invented(seed: int) -> str:
    """The program of this seed; `main(limit, extra)`."""
    return Inventor(random.Random(seed)).program()
