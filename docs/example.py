"""A place to complete: `codespec complete docs/example.py:31:15` continues `find`, as an editor would ask for it."""

from dataclasses import dataclass, field


@dataclass
class Item:
    """So many things of one name."""

    name: str
    price: float
    count: int = 0


@dataclass
class Inventory:
    """Items by name."""

    items: dict[str, Item] = field(default_factory=dict)

    def add(self, name: str, price: float, count: int = 1) -> Item:
        """Adds an item, or more of it."""
        item = self.items.get(name)
        if item is None:
            item = self.items[name] = Item(name, price)
        item.count += count
        return item

    def find(self, name: str) -> Item | None:
        """The item of that name, if there is one."""
        return


def total(inventory: Inventory) -> float:
    """What everything is worth."""
    return sum(item.price * item.count for item in inventory.items.values())


def cheapest(inventory: Inventory) -> Item:
    """The item with the lowest price."""
    return min(inventory.items.values(), key=lambda item: item.price)
