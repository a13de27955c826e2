"""Module docstring.
#            ^ docstring

Second paragraph.
#      ^ docstring
"""

from __future__ import annotations
#                      ^ import indent=0

import os
#        ^ import
import sys as system
#             ^ import
from collections import (
    OrderedDict,
#   ^ import indent=4 open=(
    defaultdict,
#              ^ import
)

# A remark about the limit
#            ^ comment
LIMIT = 10  # trailing remark
#       ^ operator indent=0
#                      ^ comment
NAMES = ["ab", 'c', f"{LIMIT}: text"]
#          ^ string
#                        ^ identifier indent=4 open=[{
#                                ^ string


def area(width: int, height: float = 1.0) -> float:
#                       ^ signature
#                                            ^ signature indent=0
#                                                  ^ block_start
    """The area of a rectangle."""
#0 ^ indent
#                    ^ docstring indent=4
#                                 ^ statement
    total = width * height
#0 ^ indent
#                   ^ operator indent=4
    if total > LIMIT and width:
#                        ^ operator
#                              ^ block_start
        return round(total, 2)
#                           ^ arguments indent=12 open=(
#                             ^ closing
    return max(width, key=abs)
#              ^ arguments
#                         ^ operator indent=8 open=(


class Shape(Base, metaclass=Meta):
#                 ^ signature
#                                 ^ block_start
    '''Things with an area.'''
#                     ^ docstring indent=4

    sides: int = 0
#                ^ operator

    @property
#            ^ identifier
    def name(self) -> str:
        return self.label.upper()
#                   ^ identifier indent=8
#                               ^ arguments
#                                ^ closing

    def draw(self, canvas, *, color="red") -> None:
#                             ^ signature indent=8 open=(
        for point in self.points:
#                                ^ block_start
            canvas.line(
#0 ^ indent
                point.x,
#0 ^ indent indent=16 open=(
                point.y,
#                     ^ identifier
            )
#0 ^ indent
#            ^ closing indent=12
        while True:
#             ^ statement
            break
#                ^ identifier
        text = """not a
        docstring"""
#          ^ string indent=8
        table = {"key": [1, 2, 3]}
#                       ^ operator
#                              ^ statement
#                                 ^ closing indent=8
        pick = table["key"][0]
#                      ^ string
#                           ^ statement
        other = lambda a, b: a + b
#                         ^ signature indent=8
#                            ^ statement
        return foo(bar(1))
#                      ^ arguments
#                        ^ closing indent=12 open=(
#                         ^ closing


async def fetch(url):
#                  ^ signature
    async with session.get(url) as reply:
#                                  ^ statement indent=4
        assert reply.status == 200, "bad status"
#                              ^ operator
#                                        ^ string
    try:
#       ^ block_start indent=8
        yield reply
#            ^ identifier
    except ValueError as error:
#          ^ statement
#                              ^ block_start indent=8
        raise Problem(error) from error
#             ^ statement
    else:
#        ^ block_start
        pass
    items = [item for item in range(10) if item % 2]
#                 ^ statement indent=8 open=[
#                                                 ^ operator
    print(f"{items!r} and {len(items)} more")
#                              ^ arguments
#                                      ^ string indent=8 open=(
    match items:
        case [] :
#               ^ closing
#                ^ block_start
            del items[0]
#                     ^ statement indent=16 open=[
    x = y if z else w
#            ^ statement
#                   ^ statement
    not_an_import = "import os"  # def f(
#                           ^ string indent=4
#                                      ^ comment
    print(items, sep=", ", end="")
#                ^ arguments
#                       ^ string indent=8 open=(
    return x.y.z
#              ^ identifier
