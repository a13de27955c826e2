import os, 
#          ^ import
from json import 
#                ^ import

def unfinished(a, 
#                 ^ signature indent=4 open=(

def next_one(b):
#               ^ block_start
    """Says nothing."""
#           ^ docstring
    x = foo(a, 
#              ^ arguments indent=8 open=(
    y = bar(1, 2)
#                ^ closing
    s = 'unclosed string
#                 ^ string
    t = s.
#         ^ identifier indent=4
    return t + 
#              ^ operator

def third(:
    call(one, [two, 
#                   ^ statement
    for i in range(
#                  ^ arguments indent=8 open=(
        print("hello 
#                    ^ string
    z = = 3
    if z ==
        z.append(1
#                ^ arguments
    while True
#             ^ identifier indent=4
        value = {"a": 
#                     ^ operator

class Broken(
#            ^ signature
    def first(self, 
#                   ^ signature indent=8 open=(

    def method(self) -> None
        # comment in broken code
#                    ^ comment
        self.thing = 
#                    ^ operator
        self.call(x, y=
#                 ^ arguments indent=12 open=(
#                      ^ operator
        """a bare text"""
#                 ^ string
        return )
#             ^ identifier indent=8
#               ^ closing

def half(x) -> 
#              ^ signature
    if x:
#        ^ block_start indent=8
        x = [1, 2, (3, 4)
#                        ^ closing
    else:
#        ^ block_start
        import 
#              ^ import indent=8
    raise 
#         ^ statement

def tail(a, b)
#             ^ signature
    t = f"{a} and {b.
#           ^ identifier indent=4 open={
#                    ^ identifier
    u = a[
#         ^ statement
    v = lambda q
#0 ^ indent indent=8 open=[
#               ^ identifier
    def inner(
#             ^ signature
